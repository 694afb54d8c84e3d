"""A command that is forked is as one for which Python was started."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import warm
from tests.installed import LOCATION
from tests.warm_sandbox import START

INVENTORY = "cluster: lab\nnodes: [127.0.0.1:1, 127.0.0.1:2]\nssh: {user: nobody}\n"


@pytest.fixture(scope="module")
def forks() -> Iterator[warm.Warm]:
    environment = {**os.environ, "PYTHONPATH": str(LOCATION)}
    started = warm.Warm([sys.executable, warm.__file__], environment)
    yield started
    started.close()


@pytest.mark.parametrize(
    ("words", "env"),
    [
        (["--version"], {}),
        (["launch", "--help"], {"COLUMNS": "70"}),
        (["launch", "--no-such-flag", "ünïcödé\udcff", "a  b\n"], {}),
        (["runs", "--json"], {}),
        (["runs"], {"CLUSTERCTL_INVENTORY": "other.yaml"}),
        (["check", "--only", "no.such.check"], {}),
        (["exec", "--timeout", "5", "--", "true"], {"CLUSTERCTL_TIMEOUT": "x"}),
    ],
    ids=lambda each: " ".join(each).encode("ascii", "replace").decode(),
)
def test_it_prints_and_ends_as_one_that_is_started(
    forks: warm.Warm, tmp_path: Path, words: list[str], env: dict[str, str]
) -> None:
    (tmp_path / "hosts.yaml").write_text(INVENTORY)
    environment = {**os.environ, "CLUSTERCTL_STATE": str(tmp_path / "state"), **env}
    environment["PYTHONPATH"] = str(LOCATION)
    started = subprocess.run(
        [*START, *words], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    forked = forks.run(words, environment, tmp_path, 300)
    assert (forked.returncode, forked.stdout) == (started.returncode, started.stdout)
    assert forked.stderr == started.stderr


def test_commands_at_once_have_their_own_folders_and_variables(
    forks: warm.Warm, tmp_path: Path
) -> None:
    told = {}

    def ask(name: str) -> None:
        environment = {**os.environ, "CLUSTERCTL_INVENTORY": f"{name}.yaml"}
        told[name] = forks.run(["runs"], environment, tmp_path, 300).stderr

    asking = [threading.Thread(target=ask, args=(str(number),)) for number in range(8)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    assert all(text.startswith(f"error: {name}.yaml: ") for name, text in told.items()), told
    assert len(told) == len(asking)


def test_one_that_takes_too_long_is_killed(tmp_path: Path) -> None:
    forks = warm.Warm([sys.executable, warm.__file__], {**os.environ, "PYTHONPATH": str(LOCATION)})
    with pytest.raises(subprocess.TimeoutExpired):
        forks.run(["runs"], os.environ, tmp_path, 0)
    environment = {**os.environ, "PYTHONPATH": str(LOCATION)}
    assert forks.run(["--version"], environment, tmp_path, 300).returncode == 0
    forks.close()
