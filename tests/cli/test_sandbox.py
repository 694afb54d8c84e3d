"""`clusterctl sandbox` as a person types it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def clusterctl() -> Iterator[Run]:
    """Run the command on a sandbox of this test's own."""
    name = f"c{os.getpid()}"

    def run(action: str, *words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "clusterctl", "sandbox", action, "--name", name, *words]
        return subprocess.run(argv, capture_output=True, text=True, check=False)

    yield run
    run("down")


def test_in_a_shell_of_a_sandbox_its_name_goes_without_saying(clusterctl: Run) -> None:
    assert clusterctl("up", "--nodes", "1").returncode == 0
    words = [sys.executable, "-m", "clusterctl", "sandbox", "fault", "node1", "port-taken", "4001"]
    assert clusterctl("exec", "--", *words).stdout == "node1: port-taken 4001\n"


def test_up_status_fault_heal_down(clusterctl: Run) -> None:
    assert clusterctl("up", "--nodes", "2").returncode == 0
    assert clusterctl("fault", "node2", "port-taken", "4001").stdout == "node2: port-taken 4001\n"
    shown = json.loads(clusterctl("status", "--json").stdout)
    assert [host["name"] for host in shown["hosts"]] == ["node1", "node2"]
    assert shown["faults"] == [{"node": "node2", "kind": "port-taken", "value": "4001"}]
    assert "port-taken 4001" in clusterctl("status").stdout
    assert clusterctl("heal").stdout == "node2: healed of port-taken 4001\n"
    assert clusterctl("heal").stderr.endswith(": no host has a fault\n")
    down = clusterctl("down", "-v")
    assert (down.returncode, down.stderr.endswith(": stopped and removed\n")) == (0, True)
    assert clusterctl("down").stderr.startswith("there is no sandbox ")
    assert clusterctl("down", "-q").stderr == ""
    gone = clusterctl("status")
    assert gone.returncode == 2
    assert "hint: clusterctl sandbox up" in gone.stderr


def test_exec_passes_arguments_stdin_folder_and_exit_code(clusterctl: Run) -> None:
    clusterctl("up", "--nodes", "1")
    script = 'printf "%s|" "$@"; pwd; exit 7'
    done = clusterctl("exec", "--", "sh", "-c", script, "sh", "a b", "", "$HOME", "--name")
    assert done.stdout == f"a b||$HOME|--name|{Path.cwd()}\n"
    assert done.returncode == 7


def test_exec_on_a_host(clusterctl: Run) -> None:
    clusterctl("up", "--nodes", "2", "--backend", "loopback")
    done = clusterctl("exec", "--on", "node2", "--", "sh", "-c", "echo $CLUSTERCTL_SANDBOX_HOST")
    assert done.stdout == "node2\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("up", "--nodes", "0"), "--nodes: expected a whole number, 1 or more"),
        (("up", "--gpus", "H100"), "as H100x8"),
        pytest.param(
            *(("up", "--shells", "ksh"), "found 'ksh'"),
            marks=pytest.mark.skipif(os.geteuid() != 0, reason="needs root to choose shells"),
        ),
        (("exec", "--", "true"), "no sandbox"),
        (("up", "--nodes", "x"), "--nodes: expected a whole number, 1 or more, found 'x'"),
        (("down", "--name", "No/Such"), "sandbox name: expected"),
    ],
)
def test_what_cannot_be_is_refused_with_a_hint(
    clusterctl: Run, words: tuple[str, ...], said: str
) -> None:
    done = clusterctl(*words)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
