"""`top` in a real terminal, over a real run: a rank that is slow, a node that is lost, a resize."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import struct
import sys
import termios
import time
from collections.abc import Callable

import pyte
import pytest

from tests.cli.conftest import MakeProject
from tests.cli.runs import Project
from tests.conftest import MakeSandbox

pytestmark = pytest.mark.netns

JOB = """
import os, time
from pathlib import Path
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank, step = dist.get_rank(), 0
while True:
    step += 1
    until = time.monotonic() + (0.4 if rank == 2 else 0.02)
    while time.monotonic() < until:
        pass
    dist.all_reduce(torch.ones(1))
    if rank == 0:
        print(f"Step {step}/100000 | Loss: {3 + 1 / step:.4f}", flush=True)
"""


class Terminal:
    """A terminal of some size in which `top` runs."""

    def __init__(self, project: Project, run: str, columns: int, lines: int) -> None:
        words = [sys.executable, "-m", "clusterctl", "top", run]
        argv = project.sandbox.command(words, cwd=project.folder)
        environment = project.sandbox.environment() | project.settings({"TERM": "xterm"})
        self.screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self.screen)
        self.pid, self._end = pty.fork()
        if self.pid == 0:
            os.execvpe(argv[0], argv, environment)
        self._set_size()

    def resize(self, columns: int, lines: int) -> None:
        self.screen.resize(lines, columns)
        self._set_size()

    def _set_size(self) -> None:
        size = struct.pack("HHHH", self.screen.lines, self.screen.columns, 0, 0)
        fcntl.ioctl(self._end, termios.TIOCSWINSZ, size)

    def type(self, text: str) -> None:
        os.write(self._end, text.encode())

    def wait_for(self, shown: Callable[[list[str]], bool], seconds: float = 120.0) -> list[str]:
        until = time.monotonic() + seconds
        while not shown([line.rstrip() for line in self.screen.display]):
            assert time.monotonic() < until, "\n".join(self.screen.display)
            if select.select([self._end], [], [], 0.1)[0]:
                self._stream.feed(os.read(self._end, 65536))
        return [line.rstrip() for line in self.screen.display]

    def end(self) -> int:
        """Press q; return the exit code."""
        self.type("q")
        while True:
            try:
                if not os.read(self._end, 65536):
                    break
            except OSError:
                break
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_slow_rank_and_a_lost_node_are_on_top(
    make_sandbox: MakeSandbox, make_project: MakeProject
) -> None:
    project = make_project(make_sandbox(nodes=3))
    (project.folder / "job.py").write_text(JOB)
    run = project.launch("--detach", "--lost-after", "300", "--", "job.py").stdout.strip()
    project.wait_for(run, "running")
    terminal = Terminal(project, run, 120, 30)
    lines = terminal.wait_for(lambda lines: any("the others wait" in line for line in lines), 240)
    table = [line for line in lines if line.startswith("node") and " running" in line]
    assert table[0].startswith("node3")
    assert "rank 2 slow" in table[0]
    assert any("Step" in line and "[node1:0]" in line for line in lines)

    terminal.resize(80, 20)
    terminal.wait_for(lambda lines: "q quit" in lines[19] and lines[0].startswith(run[:20]))
    project.sandbox.fault("node2", "sshd-killed")
    lines = terminal.wait_for(lambda lines: any("unreachable" in line for line in lines))
    assert next(line for line in lines if line.startswith("node2")).split()[1] == "unreachable"
    project.sandbox.heal()
    terminal.wait_for(lambda lines: not any("unreachable" in line for line in lines))
    assert terminal.end() == 0

    document = json.loads(project.run("top", run, "--once", "--json").stdout)
    assert document["stragglers"][0]["rank"] == 2
    assert len(document["nodes"][0]["use"]["trend"]) > 3
    assert project.run("stop", run).returncode == 0
