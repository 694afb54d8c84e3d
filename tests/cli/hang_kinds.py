"""A tiny training that stands still in every way there is, or only looks as if it did."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from clusterctl.model.verdict import HangKind
from clusterctl.values import dataclass
from tests.cli.runs import Project

PROGRAM = '''
import os, pathlib, signal, subprocess, sys, threading, time
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

kind, seconds = sys.argv[1], float(sys.argv[2])
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
last = rank == world - 1


def mark(name):
    new = pathlib.Path(f".{name}-{rank}")
    new.write_text(str(time.time()))
    new.rename(f"{name}-{rank}")


def share(size=4, group=None):
    dist.all_reduce(torch.ones(size), group=group)  # at: share


def compute(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(10_000))


def goes_on(until):
    """Tell all ranks whether rank 0 has time left."""
    left = torch.tensor([float(time.monotonic() < until)])
    dist.broadcast(left, 0)
    return bool(left)


class Shards(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, number):
        if kind == "loader" and last:
            open("/workspace/shard").read()  # at: loader
        elif kind == "loads":
            compute(seconds / 8)
        return number


def locks():
    one, two = threading.Lock(), threading.Lock()

    def other():
        with two:
            time.sleep(1)
            with one:
                pass

    threading.Thread(target=other, daemon=True).start()
    with one:
        time.sleep(1)
        with two:  # at: lock
            pass


def stands_still(side):
    """One of these ways, never to return."""
    mark("stands")
    if kind == "sleep":
        time.sleep(3600 if last else 0)  # at: sleep
        share()
    elif kind == "skip":
        if not last:
            share()
        dist.barrier(group=side)  # at: skip
    elif kind == "order":
        if last:
            dist.all_reduce(torch.ones(4), group=side)  # at: order
        share()
        share(group=side)
    elif kind == "shape":
        dist.all_reduce(torch.ones(4 if last else 8))  # at: shape
    elif kind == "loader":
        for _ in DataLoader(Shards(), num_workers=1):
            share()
    elif kind == "read":
        if last:
            open("/workspace/shard").read()  # at: read
        share()
    elif kind == "lock":
        if last:
            locks()
        share()
    elif kind == "stop":
        if last:
            os.kill(os.getpid(), signal.SIGSTOP)  # at: stop
        share()
    elif kind == "poll":
        while rank and not os.path.exists("compiled-0"):
            time.sleep(0.5)
        time.sleep(3600)  # at: poll
    elif kind == "cut":
        for step in range(1_000_000):
            share(50_000)
            print("step", step, flush=True)


def looks_still():
    """One of these ways for so many seconds, then end well."""
    until = time.monotonic() + seconds
    if kind == "tokenize":
        compute(seconds if rank == 0 else 0)
    elif kind == "save":
        with open(f"weights-{rank}", "wb") as file:
            while rank == 0 and time.monotonic() < until:
                file.seek(0)
                file.write(bytes(1 << 20))
                file.flush()
                os.fsync(file.fileno())
                time.sleep(0.2)
    elif kind == "script":
        words = ["bash", "-c", f"{sys.executable} train.py burn {seconds}; true"]
        subprocess.run(words, check=True)
    elif kind == "notebook":
        compute(seconds)
    elif kind == "file":
        if rank == 0:
            compute(seconds)
            mark("compiled")
        while not os.path.exists("compiled-0"):
            time.sleep(0.5)
    elif kind == "collectives":
        while goes_on(until):
            share(250_000)
    elif kind == "loads":
        for _ in DataLoader(Shards(), num_workers=2):
            share()
    elif kind == "steps":
        while goes_on(until):
            compute(0.2)
            share(10_000)
            print("step", flush=True)
            time.sleep(1)
    elif kind == "evaluates":
        while goes_on(until):
            compute(7 if rank == 0 else 0)
            dist.barrier()
            print("evaluated", flush=True)
    elif kind == "rests":
        while goes_on(until):
            print("rests", flush=True)
            time.sleep(4)
            share()


if kind == "burn":
    compute(seconds)
    sys.exit()
dist.init_process_group("gloo")
side = dist.new_group()
share()
if rank == 0:
    print("begins", flush=True)
if seconds:
    looks_still()
else:
    stands_still(side)
dist.barrier()
print("ends", flush=True)
dist.destroy_process_group()
os._exit(0)  # threads of gloo may abort the process at Python's own end
'''
IN_SCRIPT = 2
"""Ranks that the script of bash starts on each node, by torchrun."""
AFTER = 10
"""Seconds, as the job has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """A way to stand still, and what is to be said of it."""

    kind: str
    """The program's word, and the mark of its line."""
    says: HangKind
    nodes: int = 2
    rank: int = -1
    """The one at fault; as in Python, -1 is the last."""


HANGS = (
    Hang(kind="sleep", says="elsewhere", nodes=4),
    Hang(kind="skip", says="order", nodes=3),
    Hang(kind="order", says="order", nodes=3),
    Hang(kind="loader", says="storage"),
    Hang(kind="read", says="storage", nodes=3),
    Hang(kind="lock", says="lock"),
    Hang(kind="stop", says="stopped"),
    Hang(kind="poll", says="elsewhere", nodes=3, rank=0),
    Hang(kind="cut", says="network", nodes=4),
)
HEALTHY = (
    "tokenize", "save", "script", "notebook", "file", "collectives",
    "loads", "steps", "evaluates", "rests",
)  # fmt: skip
LAUNCHERS = ("torchrun", "direct", "accelerate")


def line_of(at: str) -> int:
    """Return the number of the line that has a mark."""
    lines = PROGRAM.splitlines()
    return 1 + next(n for n, line in enumerate(lines) if line.endswith(f"# at: {at}"))


def launch(
    project: Project, launcher: str, nodes: int, kind: str, seconds: float, *, script: bool = False
) -> Launch:
    """Start it on the first nodes; `script`: from a script of bash, which `direct` takes."""
    document = yaml.safe_load(project.inventory.read_text())
    known = yaml.safe_load(project.sandbox.inventory.read_text())["nodes"]
    words = ["train.py", kind, str(seconds)]
    if script:
        words = ["bash", "train.sh"]
    job = {
        "launcher": launcher,
        "command": words,
        "env": {"OMP_NUM_THREADS": "1"},
        "hang": {"after": f"{AFTER}s"},
    }
    document |= {"nodes": known[:nodes], "job": job}
    project.inventory.write_text(yaml.safe_dump(document, sort_keys=False))
    place = project.placed
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    place.chmod(0o777)
    (place / "train.py").write_text(PROGRAM)
    torchrun = Path(document["defaults"]["python"]).with_name("torchrun")
    argv = f"{torchrun} --nproc-per-node {IN_SCRIPT} train.py {kind} {seconds}"
    (place / "train.sh").write_text(f"cd .\n{argv}\n")
    # No check and no sync: the time until it begins is not what is looked at.
    options = ["--no-check", "--no-sync", "--procs-per-node", "1", "--json"]
    return Launch(project, options)


class Launch:
    """A command that follows the run that it started."""

    def __init__(self, project: Project, options: list[str]) -> None:
        self.project = project
        self.process = project.start("launch", *options, stderr=subprocess.STDOUT)
        self.told: list[dict[str, Any]] = []
        """What it has printed."""

    def read_until(self, found: Callable[[dict[str, Any]], bool]) -> dict[str, Any] | None:
        """Return the first document from here on that is looked for; None: it ended without."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if not line.startswith("{"):
                continue  # a warning
            self.told.append(json.loads(line))
            if found(self.told[-1]):
                return self.told[-1]
        return None

    @property
    def run(self) -> str:
        """The run's name, once it is known."""
        return str(next(one["run"] for one in self.told if one.get("run")))


def stood_since(place: Path, nodes: int) -> float:
    """Return when the last rank came to where it stands."""
    return max(float((place / f"stands-{rank}").read_text()) for rank in range(nodes))


def cut(project: Project, one: str, other: str) -> float:
    """Let no packet pass between two hosts; return when that was."""
    sandbox = project.sandbox
    address = sandbox.host(other).address
    rules = "".join(
        f" chain {hook} {{ type filter hook {hook} priority 0; ip {end} {address} drop; }}\n"
        for hook, end in (("input", "saddr"), ("output", "daddr"))
    )
    done = sandbox.on(one, ["nft", "-f", "-"], input=f"table inet cut {{\n{rules}}}\n")
    assert done.returncode == 0, done.stderr
    return time.time()


def mend(project: Project, one: str) -> None:
    """Undo the cut."""
    project.sandbox.on(one, ["nft", "delete", "table", "inet", "cut"])
