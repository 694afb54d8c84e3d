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
        str(path.relative_to(CHECKOUT))
        for path in (CHECKOUT / "clusterctl").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    about = {name for name in names if name.split("/")[0].endswith(".dist-info")}
    assert names - about == sources
    assert {Path(name).name for name in about} == {
        "METADATA", "RECORD", "WHEEL", "LICENSE", "entry_points.txt",
    }  # fmt: skip


def test_it_holds_the_files_that_no_import_would_miss(names: set[str]) -> None:
    assert {
        "clusterctl/py.typed",
        "clusterctl/inventory/hosts.schema.json",
        "clusterctl/node/agent/loader.py",
        "clusterctl/sandbox/host.py",
    } <= names
