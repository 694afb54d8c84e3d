"""When `make` rebuilds the wheel and the folder that the tests run in."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import pytest

MAKEFILE = Path(__file__).resolve().parents[1] / "Makefile"
WHEEL = "#!/bin/sh\nmkdir -p build\n"

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make here")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for folder in (".ci", ".venv", "clusterctl"):
        (tmp_path / folder).mkdir()
    for name in ("README.md", "LICENSE", "pyproject.toml", "clusterctl/a.py"):
        (tmp_path / name).touch()
    for name in ("wheel", "setup"):
        (tmp_path / ".ci" / name).write_text(WHEEL)
        (tmp_path / ".ci" / name).chmod(0o755)
    shutil.copy(MAKEFILE, tmp_path)
    subprocess.run(["make", "build/ready"], cwd=tmp_path, check=True)
    time.sleep(0.05)  # longer than a tick of the file system's clock
    return tmp_path


def is_built(checkout: Path) -> bool:
    return subprocess.run(["make", "-q", "build/ready"], cwd=checkout, check=False).returncode == 0


def test_nothing_new_is_nothing_to_build(checkout: Path) -> None:
    assert is_built(checkout)


@pytest.mark.parametrize("name", ["notes.md", "clusterctl/b.py"])
def test_a_new_file_is_built_in(checkout: Path, name: str) -> None:
    (checkout / name).touch()
    assert not is_built(checkout)


@pytest.mark.parametrize("name", ["hosts.yaml", "clusterctl/a.py"])
def test_a_file_that_is_removed_is_taken_out(checkout: Path, name: str) -> None:
    (checkout / "hosts.yaml").touch()
    subprocess.run(["make", "build/ready"], cwd=checkout, check=True)
    time.sleep(0.05)
    assert is_built(checkout)
    (checkout / name).unlink()
    assert not is_built(checkout)
