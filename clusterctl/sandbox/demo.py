"""The whole story on three hosts: each step with the command that a person types, and its output.

check, launch, stop midway, resume from the newest checkpoint, plot, generate with what was trained.
It knows the verbs as a person does, from the outside: every step is a process of its own.
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
from clusterctl.sandbox.layout import BackendName
from clusterctl.sandbox.sandbox import Sandbox

STOP_AT_STEP = 15
LIMIT_SECONDS = 600
"""The story takes two minutes; where it takes this long, something hangs."""
PROMPT = "The for statement"
STOPPED = 125
"""What launch ends with when clusterctl ended the run, not the job itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What is typed, and why."""

    title: str
    argv: Sequence[str]
    wanted: int = 0
    """The exit code without which the story cannot go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """One telling of it."""

    box: Sandbox

    @property
    def folder(self) -> str:
        """Where the demo's model, data and checkpoints are, as the hosts see it."""
        return f"{self.box.hosts[0].shared}/demo"

    def type(self, command: Command) -> None:
        """Run a command as a person types it, its output where ours goes.

        Raises:
            ClusterError: it ended otherwise than wanted.
        """
        _say(command.title, command.argv)
        with self._start(command.argv) as process:
            _judge(process, command)

    def interrupt(self, command: Command, *, at: str, by: Command) -> None:
        """Run a command, and once a line of its output matches, another one beside it.

        Raises:
            ClusterError: either ended otherwise than wanted, or the line never came.
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
                raise ClusterError(f"`{shlex.join(command.argv)}` ended and never said {at!r}")
            _judge(second, by)
            _judge(first, command)

    def on_first(self, title: str, argv: Sequence[str]) -> None:
        """Run a command on the first host, in the folder of the job's code."""
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
    if code != command.wanted:
        typed = shlex.join(command.argv)
        raise ClusterError(f"`{typed}`: wanted exit code {command.wanted}, found {code}")


def tell(name: str, backend: BackendName | None = None) -> int:
    """Tell the story in a sandbox of this name, and take it down whatever happens.

    Args:
        name: of the sandbox.
        backend: how its hosts are made; the best that this machine can do if not told.

    Raises:
        ClusterError: a step did not end as it should, or in time.
    """
    if not Path("train", "demo_assets.py").exists():
        raise UsageError(
            "the demo trains with the project's own train/, which is not in this folder",
            hint="cd to a clone of clusterctl, then: make demo",
        )
    # A kill from outside is an end like Ctrl-C: the sandbox goes down. SIGINT is named too because
    # a shell's `&` starts programs with it ignored.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _interrupt)
    signal.signal(signal.SIGALRM, _too_late)
    signal.alarm(LIMIT_SECONDS)
    began = time.monotonic()
    _say("Three hosts with an sshd each, on this machine.", ["clusterctl", "sandbox", "up"])
    box = sandbox.up(name, nodes=3, backend=backend)
    try:
        for host in box.hosts:
            _print(f"{host.name}  {host.address}:{host.port}  {host.interface}\n")
        _steps(Story(box=box))
    finally:
        signal.alarm(0)
        try:
            _say("Nothing of it stays behind.", ["clusterctl", "sandbox", "down"])
        finally:  # also where nobody reads us any more: `make demo | head`
            box.down()
    _print(f"\nThat was all, in {time.monotonic() - began:.0f} s.\n")
    return 0


def _steps(story: Story) -> None:
    _say(
        "What follows is typed on the controller's side of their network.",
        ["clusterctl", "sandbox", "exec", "--", "bash"],
    )
    _write_job(story)
    story.type(
        Command(
            title="The code goes to the hosts. They share a folder, so it goes once.",
            argv=["clusterctl", "sync"],
        )
    )
    story.on_first(
        "A small model and data to fine-tune it with, made on a host.",
        [sys.executable, "-m", "train.demo_assets", story.folder],
    )
    story.type(
        Command(title="Is there anything that would break the run?", argv=["clusterctl", "check"])
    )
    story.interrupt(
        Command(
            title="Check, sync, start a rank on every host, follow the logs.",
            argv=["clusterctl", "launch"],
            wanted=STOPPED,
        ),
        at=rf"Step {STOP_AT_STEP}/\d+ ",
        by=Command(
            title="In another terminal: enough for today. The ranks save and end.",
            argv=["clusterctl", "stop"],
        ),
    )
    story.type(Command(title="What became of it?", argv=["clusterctl", "status"]))
    story.type(
        Command(
            title="The next day: resume from the newest complete checkpoint.",
            argv=["clusterctl", "resume", "--checkpoint", "latest"],
        )
    )
    story.type(Command(title="Both runs.", argv=["clusterctl", "runs"]))
    story.on_first(
        "What the losses did, over both runs.",
        [sys.executable, "-m", "train.plot", f"{story.folder}/output"],
    )
    story.on_first(
        "What was trained is an adapter for the base model: load it and let it speak.",
        [
            *(sys.executable, "-m", "train.generate", "--model", f"{story.folder}/model"),
            *("--adapter", f"{story.folder}/output/adapter", "--prompt", PROMPT),
        ],
    )


def _write_job(story: Story) -> None:
    """Add the job to the sandbox's inventory, where a person would."""
    folder = story.folder
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
    with story.box.inventory.open("a") as file:
        file.write(text)
    _say("The inventory: the hosts, and the job that they shall do.", ["cat", "hosts.yaml"])
    _print(story.box.inventory.read_text())


def _real(argv: Sequence[str]) -> list[str]:
    """Return the argv with this very program where the person types its name."""
    if argv[0] == "clusterctl":
        return [sys.executable, "-m", *argv]
    return list(argv)


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _too_late(_number: int, _frame: FrameType | None) -> NoReturn:
    raise ClusterError(f"the demo did not end within {LIMIT_SECONDS} s")


def _say(title: str, argv: Sequence[str]) -> None:
    colours = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    bold, end = ("\x1b[1m", "\x1b[0m") if colours else ("", "")
    _print(f"\n# {title}\n{bold}$ {shlex.join(argv)}{end}\n")


def _print(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
