"""Runs the demo on three hosts: prints each command that you would type, and its output.

check, launch, stop midway, resume from the newest checkpoint, plot, generate with the result. It
uses clusterctl from the outside: every step is a separate process.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

import yaml

from clusterctl.errors import ClusterError, UsageError
from clusterctl.sandbox import sandbox
from clusterctl.sandbox.backend import SandboxSpec
from clusterctl.sandbox.layout import BackendName
from clusterctl.sandbox.sandbox import Sandbox

STOP_AT_STEP = 15
LIMIT_SECONDS = 600
"""The demo takes two minutes; if it takes this long, something hangs."""
PROMPT = "The for statement"
STOPPED = 125
"""The exit code of launch if clusterctl ended the run, not the job itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command to run, with its title."""

    title: str
    argv: Sequence[str]
    expected: int = 0
    """The exit code that the demo needs to continue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """One run of the demo."""

    box: Sandbox

    @property
    def folder(self) -> str:
        """Where the demo's model, data and checkpoints are, as the hosts see it."""
        return f"{self.box.hosts[0].shared}/demo"

    def type(self, command: Command) -> None:
        """Print and run a command.

        Raises:
            ClusterError: its exit code is not the expected one.
        """
        _say(command.title, command.argv)
        with self._start(command.argv) as process:
            _judge(process, command)

    def interrupt(self, command: Command, *, at: str, by: Command) -> None:
        """Run a command; once a line of its output matches, run another one concurrently.

        Raises:
            ClusterError: an exit code is not the expected one, or no line matched.
        """
        _say(command.title, command.argv)
        with ExitStack() as stack:
            first = stack.enter_context(self._start(command.argv, stdout=subprocess.PIPE))
            second = None
            assert first.stdout is not None
            for line in first.stdout:
                _print(line)
                if second is None and re.search(at, line):
                    _say(by.title, by.argv)
                    second = stack.enter_context(self._start(by.argv))
            if second is None:
                raise ClusterError(f"`{shlex.join(command.argv)}` ended and never printed {at!r}")
            _judge(second, by)
            _judge(first, command)

    def on_first(self, title: str, argv: Sequence[str]) -> None:
        """Run a command on the first host, in the folder with the job's code."""
        host = self.box.hosts[0]
        words = f"cd {host.shared}/code && {shlex.join(argv)}"
        self.type(Command(title=title, argv=["ssh", host.name, words]))

    @contextmanager
    def _start(
        self, argv: Sequence[str], stdout: int | None = None
    ) -> Iterator[subprocess.Popen[str]]:
        with subprocess.Popen(
            self.box.command(_real(argv)),
            env=self.box.environment(),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.STDOUT if stdout else None,
            text=True,
        ) as process:
            try:
                yield process
            finally:
                process.kill()  # ends nothing that ended by itself


def _judge(process: subprocess.Popen[str], command: Command) -> None:
    code = process.wait()
    if code != command.expected:
        typed = shlex.join(command.argv)
        raise ClusterError(f"`{typed}`: expected exit code {command.expected}, found {code}")


def run(name: str, backend: BackendName | None = None) -> int:
    """Run the demo in a sandbox of this name, and remove the sandbox in any case.

    Args:
        name: the sandbox's name.
        backend: how its hosts are made; by default the best that this machine supports.

    Raises:
        ClusterError: a step failed or took too long.
    """
    if not Path("train", "demo_assets.py").exists():
        raise UsageError(
            "the demo trains with the project's own train/, which is not in this folder",
            hint="cd to a clone of clusterctl, then: make demo",
        )
    # SIGTERM ends the demo like Ctrl-C: the sandbox is removed. SIGINT is set, too, because a
    # shell's `&` starts programs that ignore it.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _interrupt)
    signal.signal(signal.SIGALRM, _too_late)
    signal.alarm(LIMIT_SECONDS)
    began = time.monotonic()
    _say("Three hosts with an sshd each, on this machine.", ["clusterctl", "sandbox", "up"])
    box = sandbox.up(name, SandboxSpec(nodes=3), backend=backend)
    try:
        for host in box.hosts:
            _print(f"{host.name}  {host.address}:{host.port}  {host.interface}\n")
        _steps(Demo(box=box))
    finally:
        signal.alarm(0)
        try:
            _say("Remove the hosts and all their files.", ["clusterctl", "sandbox", "down"])
        finally:  # also if the reader of the output exited: `make demo | head`
            box.down()
    _print(f"\nDone in {time.monotonic() - began:.0f} s.\n")
    return 0


def _steps(demo: Demo) -> None:
    _say(
        "The next commands run on the controller's side of the network.",
        ["clusterctl", "sandbox", "exec", "--", "bash"],
    )
    _write_job(demo)
    demo.type(
        Command(
            title="Copy the code to the hosts. They share a folder, so one copy is enough.",
            argv=["clusterctl", "sync"],
        )
    )
    demo.on_first(
        "Make a small model and training data on a host.",
        [sys.executable, "-m", "train.tools.demo_assets", demo.folder],
    )
    demo.type(
        Command(title="Check for anything that would break the run.", argv=["clusterctl", "check"])
    )
    demo.interrupt(
        Command(
            title="Check, sync, start a rank on every host, follow the logs.",
            argv=["clusterctl", "launch"],
            expected=STOPPED,
        ),
        at=rf"Step {STOP_AT_STEP}/\d+ ",
        by=Command(
            title="In another terminal, stop the run. The ranks save a checkpoint and exit.",
            argv=["clusterctl", "stop"],
        ),
    )
    demo.type(Command(title="Show the state of the run.", argv=["clusterctl", "status"]))
    demo.type(
        Command(
            title="The next day: resume from the newest complete checkpoint.",
            argv=["clusterctl", "resume", "--checkpoint", "latest"],
        )
    )
    demo.type(Command(title="List both runs.", argv=["clusterctl", "runs"]))
    demo.on_first(
        "Plot the losses of both runs.",
        [sys.executable, "-m", "train.tools.plot", f"{demo.folder}/output"],
    )
    demo.on_first(
        "Load the base model with the trained adapter and generate text.",
        [
            *(sys.executable, "-m", "train.tools.generate", "--model", f"{demo.folder}/model"),
            *("--adapter", f"{demo.folder}/output/adapter", "--prompt", PROMPT),
        ],
    )


def _write_job(demo: Demo) -> None:
    """Add the job to the sandbox's inventory."""
    folder = demo.folder
    config = f"{folder}/config.yaml"
    job = {
        "command": ["-m", "train", "--config", config],
        "env": {"OMP_NUM_THREADS": "1"},  # three hosts share the cores of this machine
        "needs": [f"{folder}/model", f"{folder}/train.jsonl"],
        "check": ["-m", "train", "--check", "--config", config],
        "checkpoints": f"{folder}/output",
        "resume_args": ["--resume-from-checkpoint", "{checkpoint}"],
    }
    text = yaml.safe_dump({"job": job}, sort_keys=False, default_flow_style=None, width=100)
    with demo.box.inventory.open("a") as file:
        file.write(text)
    _say("The inventory: the hosts and their job.", ["cat", "hosts.yaml"])
    _print(demo.box.inventory.read_text())


def _real(argv: Sequence[str]) -> list[str]:
    """Return the argv with this installation of clusterctl in place of its name."""
    if argv[0] == "clusterctl":
        return [sys.executable, "-m", *argv]
    return list(argv)


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _too_late(_number: int, _frame: FrameType | None) -> NoReturn:
    raise ClusterError(f"the demo did not finish within {LIMIT_SECONDS} s")


def _say(title: str, argv: Sequence[str]) -> None:
    colours = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    bold, end = ("\x1b[1m", "\x1b[0m") if colours else ("", "")
    _print(f"\n# {title}\n{bold}$ {shlex.join(argv)}{end}\n")


def _print(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
