"""Runs the demo on three hosts: prints each command that you would type, and its output.

check, launch, stop midway, resume from the newest checkpoint, plot, generate with the result. It
uses clusterctl from the outside: every step is a separate process.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

import yaml

from clusterctl.errors import ClusterError, UsageError
from clusterctl.sandbox import sandbox
from clusterctl.sandbox.backend import SandboxSpec
from clusterctl.sandbox.layout import BackendName
from clusterctl.sandbox.sandbox import Sandbox
from clusterctl.values import dataclass

STOP_AT_STEP = 15
LIMIT_SECONDS = 600
"""The demo takes two minutes; if it takes this long, something hangs."""
PROMPT = "The for statement"
STOPPED = 125
"""The exit code of launch if clusterctl ended the run, not the job itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """One run of the demo."""

    box: Sandbox

    @property
    def folder(self) -> str:
        """Where the demo's model, data and checkpoints are, as the hosts see it."""
        return f"{self.box.hosts[0].shared}/demo"

    def type(self, title: str, *argv: str) -> None:
        """Print and run a command; raise ClusterError if it failed."""
        _say(title, argv)
        with self._start(argv) as process:
            _expect(process, argv)

    def type_on_host(self, title: str, *argv: str) -> None:
        """Run a command on the first host, in the folder with the job's code."""
        host = self.box.hosts[0]
        self.type(title, "ssh", host.name, f"cd {host.shared}/code && {shlex.join(argv)}")

    def launch_and_stop(self) -> None:
        """Launch the job, and stop it from elsewhere once it has trained for some steps."""
        launch, stop = ["clusterctl", "launch"], ["clusterctl", "stop"]
        step = rf"Step {STOP_AT_STEP}/\d+ "
        title = "In another terminal, stop the run. The ranks save a checkpoint and exit."
        _say("Check, sync, start a rank on every host, follow the logs.", launch)
        with ExitStack() as stack:
            launching = stack.enter_context(self._start(launch, stdout=subprocess.PIPE))
            stopping = None
            assert launching.stdout is not None
            for line in launching.stdout:
                _print(line)
                if stopping is None and re.search(step, line):
                    _say(title, stop)
                    stopping = stack.enter_context(self._start(stop))
            if stopping is None:
                raise ClusterError(f"`{shlex.join(launch)}` ended and never printed {step!r}")
            _expect(stopping, stop)
            _expect(launching, launch, STOPPED)

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


def _expect(process: subprocess.Popen[str], argv: Sequence[str], code: int = 0) -> None:
    if (found := process.wait()) != code:
        raise ClusterError(f"`{shlex.join(argv)}`: expected exit code {code}, found {found}")


def run(name: str, backend: BackendName | None = None) -> int:
    """Run the demo in a sandbox, and remove it; raise ClusterError if a step failed."""
    if not Path("train", "tools", "demo_assets.py").exists():
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
    title = "Copy the code to the hosts. They share a folder, so one copy is enough."
    demo.type(title, "clusterctl", "sync")
    title = "Make a small model and training data on a host."
    demo.type_on_host(title, sys.executable, "-m", "train.tools.demo_assets", demo.folder)
    demo.type("Check for anything that would break the run.", "clusterctl", "check")
    demo.launch_and_stop()
    demo.type("Show the state of the run.", "clusterctl", "status")
    title = "The next day: resume from the newest complete checkpoint."
    demo.type(title, "clusterctl", "resume", "--checkpoint", "latest")
    demo.type("List both runs.", "clusterctl", "runs")
    title, output = "Plot the losses of both runs.", f"{demo.folder}/output"
    demo.type_on_host(title, sys.executable, "-m", "train.tools.plot", output)
    demo.type_on_host(
        "Load the base model with the trained adapter and generate text.",
        *(sys.executable, "-m", "train.tools.generate", "--model", f"{demo.folder}/model"),
        *("--adapter", f"{output}/adapter", "--prompt", PROMPT),
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
    colors = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    bold, end = ("\x1b[1m", "\x1b[0m") if colors else ("", "")
    _print(f"\n# {title}\n{bold}$ {shlex.join(argv)}{end}\n")


def _print(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
