"""What people install: the wheel is whole, holds nothing else, and is what the tests run."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.installed import LOCATION

CHECKOUT = Path(__file__).resolve().parents[1]
"""Where the sources lie; the tests may see it through links that leave the sources out."""
INIT = (str(Path(sys.executable).with_name("clusterctl")), "init")

pytestmark = pytest.mark.skipif(
    os.environ.get("CLUSTERCTL_TESTED") != "wheel", reason="only `make test` builds the wheel"
)


@pytest.fixture(scope="module")
def names() -> set[str]:
    """Return the files of the wheel."""
    [path] = (CHECKOUT / "build").glob("*.whl")
    with ZipFile(path) as wheel:
        return set(wheel.namelist())


def test_the_tests_run_the_wheel() -> None:
    assert Path(sysconfig.get_path("purelib")) == LOCATION
    assert not Path("clusterctl").exists(), "a process that is started here would run the sources"


@pytest.mark.parametrize("argv", [["-c"], ["-P", "-c"], ["-I", "-c"]], ids=" ".join)
def test_a_process_of_a_test_runs_the_wheel(argv: list[str]) -> None:
    code = "import clusterctl; print(clusterctl.__file__)"
    done = subprocess.run([sys.executable, *argv, code], capture_output=True, check=True, text=True)
    assert Path(done.stdout.strip()).is_relative_to(LOCATION)


def test_the_command_is_installed() -> None:
    command = Path(sys.executable).with_name("clusterctl")
    done = subprocess.run([command, "--version"], capture_output=True, check=True, text=True)
    assert done.stdout.startswith("clusterctl ")


def test_it_holds_every_source_file_and_nothing_else(names: set[str]) -> None:
    sources = {
        below + str(path.relative_to(CHECKOUT))
        for folder, below in (("clusterctl", ""), ("train", "clusterctl/program/"))
        for path in (CHECKOUT / folder).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    about = {name for name in names if name.split("/")[0].endswith(".dist-info")}
    assert names - about == sources
    assert {Path(name).name for name in about} == {
        "METADATA", "RECORD", "WHEEL", "LICENSE", "entry_points.txt",
    }  # fmt: skip


def test_the_training_program_is_copied_from_it_and_runs(tmp_path: Path) -> None:
    """In a folder of the person's own, where no checkout is on the path."""
    command = [*INIT, "--with-train", "--no-connect"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False, text=True)
    assert done.returncode == 0, done
    assert "hint: clusterctl setup --requirements train/requirements.txt" in done.stderr
    assert (tmp_path / "hosts.yaml").exists()
    packages = (tmp_path / "train" / "requirements.txt").read_text()
    assert "torch>=" in packages
    assert "extra" not in packages
    code = "import train, train.config.parse; print(train.__file__)"
    argv = [sys.executable, "-c", code]
    found = subprocess.run(argv, cwd=tmp_path, capture_output=True, check=True, text=True)
    assert found.stdout.strip() == str(tmp_path / "train" / "__init__.py")
    argv = [sys.executable, "-m", "train", "--help"]
    shown = subprocess.run(argv, cwd=tmp_path, capture_output=True, check=True, text=True)
    assert "--smoke" in shown.stdout


def test_a_train_that_is_there_is_left(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "hosts.yaml").write_text("cluster: a\nnodes: [b]\n")
    command = [*INIT, "--with-train"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("error: --with-train: expected no train")
    (tmp_path / "train").rmdir()
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False, text=True)
    assert done.returncode == 0, done
    assert (tmp_path / "hosts.yaml").read_text() == "cluster: a\nnodes: [b]\n"


def test_it_holds_the_files_that_no_import_would_miss(names: set[str]) -> None:
    assert {
        "clusterctl/py.typed",
        "clusterctl/inventory/hosts.schema.json",
        "clusterctl/node/agent/loader.py",
        "clusterctl/sandbox/host.py",
    } <= names
