"""When `make` rebuilds the wheel and the folder that the tests run in, and which failures count."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

MAKEFILE = Path(__file__).resolve().parents[1] / "Makefile"
CI_TEST = MAKEFILE.parent / ".ci" / "test"
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


FAILS_ONCE = """
import pathlib
import pytest

@pytest.mark.parametrize("number", range({tests}))
def test_it(number):
    assert pathlib.Path(str(number)).exists() or pathlib.Path(str(number)).touch()
"""


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("def test_it(): pass", 0, ""),
        (FAILS_ONCE.format(tests=1), 0, "flaky, passed alone: test_it.py::test_it[0]"),
        (FAILS_ONCE.format(tests=6), 1, "6 tests failed: none is tried again"),
        ("def test_it(): assert False", 1, "1 failed beside others; tried once more, alone:"),
        ("syntax error", 2, ""),
    ],
)
def test_few_failures_are_tried_again_alone(
    tmp_path: Path, text: str, code: int, said: str
) -> None:
    tree, python = tmp_path / "build" / "tree", tmp_path / "build" / "venv" / "bin" / "python"
    for folder in (tree, python.parent, tmp_path / ".ci"):
        folder.mkdir(parents=True)
    shutil.copy(CI_TEST, tmp_path / ".ci")
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (tree / "pytest.ini").write_text("[pytest]\n")
    (tree / "test_it.py").write_text(text)
    done = subprocess.run(
        [tmp_path / ".ci" / "test", "-p", "no:randomly"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert said in done.stderr
    assert ("flaky" in done.stderr) == ("flaky" in said)


LINTER = '#!/bin/sh\ncase "$*" in *{failing}*) echo "{failing} failed"; exit 1; esac\n'


@pytest.mark.parametrize("failing", ["ruff check", "mypy", "nothing"])
def test_what_ruff_or_mypy_finds_fails_the_tests(checkout: Path, failing: str) -> None:
    (checkout / ".venv" / "bin").mkdir()
    for name, text in ((".venv/bin/python", LINTER), (".ci/test", "#!/bin/sh\necho tested\n")):
        (checkout / name).write_text(text.format(failing=failing))
        (checkout / name).chmod(0o755)
    done = subprocess.run(
        ["make", "test"], cwd=checkout, capture_output=True, text=True, check=False
    )
    assert (done.returncode == 0) == (failing == "nothing"), done.stderr
    assert ("tested" in done.stdout) == (failing != "ruff check")  # types are checked beside them
