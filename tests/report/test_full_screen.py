"""However the view ends, the terminal is as before; also while Ctrl-Z stops it."""

from __future__ import annotations

import os
import pty
import select
import signal
import sys
import termios
import time
from collections.abc import Iterator

import pytest

VIEW = """
import sys, time
from rich.console import Console
from rich.text import Text
from clusterctl.cli.shared.signals import termination_as_interrupt
from clusterctl.report.full_screen import FullScreen
with termination_as_interrupt(), FullScreen(Console()) as full:
    count = 0
    while True:
        for key in full.pressed():
            if key == "q":
                raise SystemExit(0)
            if key == "c":
                raise RuntimeError
            count += 1
            full.show([Text(f"{count} {key}")])
        time.sleep(0.02)
"""
SHELL = """
import os, signal, subprocess, sys
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
job = subprocess.Popen([sys.executable, "-c", sys.argv[1]], process_group=0)
os.tcsetpgrp(0, job.pid)
print("job", job.pid, flush=True)
while True:
    _, status = os.waitpid(job.pid, os.WUNTRACED)
    os.tcsetpgrp(0, os.getpgrp())
    if not os.WIFSTOPPED(status):
        print("ended", os.waitstatus_to_exitcode(status), flush=True)
        break
    print("stopped", flush=True)
    sys.stdin.readline()
    os.tcsetpgrp(0, job.pid)
    os.kill(job.pid, signal.SIGCONT)
sys.stdin.readline()
"""
"""What a shell does with a job in its foreground; Enter is `fg`."""
ALTERNATE, MAIN, CURSOR = "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25h"


class Terminal:
    def __init__(self) -> None:
        self.pid, self.end = pty.fork()
        if self.pid == 0:
            os.environ.update(TERM="xterm")
            os.execv(sys.executable, [sys.executable, "-c", SHELL, VIEW])
        self.output = ""
        self.before = self.modes()
        self.wait_for(ALTERNATE)
        self.job = int(self.output.split("job ")[1].split()[0])

    def modes(self) -> int:
        return int(termios.tcgetattr(self.end)[3]) & (termios.ECHO | termios.ICANON)

    def type(self, text: str) -> None:
        os.write(self.end, text.encode())

    def wait_for(self, text: str) -> None:
        until = time.monotonic() + 60
        while text not in self.output:
            assert time.monotonic() < until, (text, self.output)
            if select.select([self.end], [], [], 0.1)[0]:
                self.output += os.read(self.end, 65536).decode()

    def is_as_before(self) -> bool:
        shown = self.output.rpartition(ALTERNATE)[2]
        return MAIN in shown and CURSOR in shown and self.modes() == self.before

    def close(self) -> None:
        self.type("\n")
        os.waitpid(self.pid, 0)
        os.close(self.end)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    found = Terminal()
    yield found
    found.close()


@pytest.mark.parametrize("how", ["q", "c", "\x03", "TERM"])
def test_the_terminal_is_restored(terminal: Terminal, how: str) -> None:
    assert terminal.modes() != terminal.before
    if how == "TERM":
        os.kill(terminal.job, signal.SIGTERM)
    else:
        terminal.type(how)
    terminal.wait_for("ended")
    assert terminal.is_as_before(), terminal.output


def test_ctrl_z_gives_the_terminal_back_until_fg(terminal: Terminal) -> None:
    terminal.type("x\x1b[A")
    terminal.wait_for("2 up")
    terminal.type("\x1a")
    terminal.wait_for("stopped")
    assert terminal.is_as_before()
    terminal.output = ""
    terminal.type("\n")
    terminal.wait_for("3 redraw")
    assert ALTERNATE in terminal.output
    assert terminal.modes() != terminal.before
    terminal.type("q")
    terminal.wait_for("ended 0")
    assert terminal.is_as_before()
