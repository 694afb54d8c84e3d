"""What the benchmarks of a sandbox share: its hosts, commands of both sides, turns, CPU seconds."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import psutil

from clusterctl.sandbox import sandbox
from clusterctl.sandbox.backend import SandboxSpec
from clusterctl.sandbox.layout import BackendName
from clusterctl.sandbox.sandbox import Sandbox

ROOT = Path(__file__).parent.parent
LIMIT = 300
T = TypeVar("T")
# Compiled modules are kept, as in every installation, and as those of the rivals are.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def argument(place: int, default: int) -> int:
    """Return a number of the command line."""
    return int(sys.argv[place]) if len(sys.argv) > place else default


@contextmanager
def hosts(count: int, backend: BackendName | None = None) -> Iterator[tuple[Sandbox, Path]]:
    """Yield so many hosts, and a folder that is empty; both are gone afterwards."""
    name = f"bench{Path(sys.argv[0]).stem.replace('_', '')}{os.getpid()}"
    box = sandbox.up(name, SandboxSpec(nodes=count), backend=backend)
    try:
        with tempfile.TemporaryDirectory() as folder:
            yield box, Path(folder)
    finally:
        box.down()


def clusterctl(box: Sandbox, *words: str, cwd: Path = ROOT, state: Path | None = None) -> str:
    """Run a command of ours, and return its stdout."""
    own = {"PYTHONPATH": str(ROOT)} | ({"CLUSTERCTL_STATE": str(state)} if state else {})
    argv = [sys.executable, "-m", "clusterctl", *words]
    done = box.run(argv, env=own, cwd=cwd, timeout=LIMIT)
    if done.returncode:
        sys.exit(f"{words[0]} failed ({done.returncode}):\n{done.stderr[-2000:]}\n{done.stdout}")
    return done.stdout


def at_once(box: Sandbox, commands: Iterable[list[str]]) -> list[tuple[int, str]]:
    """Type commands by hand, all at once; return their exit codes, and what they printed."""
    started = [
        subprocess.Popen(
            box.command(argv),
            env=box.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for argv in commands
    ]
    printed = [process.communicate(timeout=LIMIT)[0] for process in started]
    return [(one.returncode, text) for one, text in zip(started, printed, strict=True)]


def in_turns(rounds: int, sides: Mapping[str, Callable[[], T]]) -> dict[str, list[T]]:
    """Let the sides take turns; return what each returned."""
    found: dict[str, list[T]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            found[name].append(side())
    return found


def timed(side: Callable[[], object]) -> float:
    """Return the seconds that a side takes."""
    began = time.monotonic()
    side()
    return time.monotonic() - began


def cpu_seconds(servers: Iterable[psutil.Process]) -> tuple[float, float]:
    """Return what the ended children of this process, and servers with theirs, have used."""
    own = os.times()
    used = 0.0
    for server in servers:
        times = server.cpu_times()
        used += times.user + times.system + times.children_user + times.children_system
    return own.children_user + own.children_system, used
