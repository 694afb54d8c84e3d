"""What it costs to watch ranks for signs of life, and how long it takes to name a hang.

`python bench/hang.py [--ranks 8] [--workers 4] [--files 200]` starts ranks, each with workers, open
files and connections, and samples them as a supervisor does. Printed: CPU time a sample and rank,
and the share of a core with a sample every 5 s; for ranks that print, and for quiet ones, whose
connections are looked at too. `living_descendants`, which a supervisor does anyway, is apart.

Then (`--hosts 4 --rounds 5`; as root on Linux with pdsh; `--hosts 0`: not) a rank of a real run
stands still in a sandbox. `clusterctl dump`, verdict included, takes turns with what one types by
hand: pdsh with `pgrep` and `py-spy dump` of each rank, where py-spy is on every host already. That
prints stacks only; to compare them is left to the reader. Printed are medians and their ratio, and
the seconds after which `launch` told the verdict by itself.

`--many 64`: only how long `dump` takes on so many hosts, whose ranks import no torch, and the CPU
seconds of the client and of the hosts, their supervisors' own among them.
"""

from __future__ import annotations

import argparse
import functools
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
import psutil

from bench._box import ROOT, cpu_seconds, hosts, in_turns, timed
from clusterctl.node.event_loop import EventLoop
from clusterctl.node.hang.life import SAMPLE_SECONDS
from clusterctl.node.run.files.run_paths import NodePaths
from clusterctl.node.run.processes.processes import living_descendants
from clusterctl.node.supervisor.watch.hang_watch import HangWatch
from clusterctl.sandbox import netns
from clusterctl.sandbox.sandbox import Sandbox

GOAL_PERCENT = 0.3
"""Of a core, for each rank."""
RANK = """
import os, socket, sys, time
workers, files = int(sys.argv[1]), int(sys.argv[2])
for _ in range(workers):
    if not os.fork():
        break
kept = [open(os.devnull) for _ in range(files)]
server = socket.create_server(("127.0.0.1", 0))
kept += [socket.create_connection(server.getsockname()) for _ in range(8)]
print("ready", flush=True)
time.sleep(3600)
"""
AFTER = 10
"""Seconds of `--hang-after`."""
STANDS_STILL = """
import os, pathlib, time
import torch, torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
print("begins", flush=True)
pathlib.Path(f"{os.environ['STANDS']}-{dist.get_rank()}").write_text(str(time.time()))
if dist.get_rank() == 1:
    time.sleep(3600)
dist.all_reduce(torch.ones(1))
"""
SLEEPS = """
import time

print("begins", flush=True)
time.sleep(3600)
"""
KEEPING_SECONDS = 5.0
"""What the nodes take to keep stacks of a run that has become hung."""
VERB = [sys.executable, "-m", "clusterctl"]


class Record:
    """The part of a run's files that watching needs."""

    def __init__(self, folder: str) -> None:
        self.paths = NodePaths(folder)

    def event(self, kind: str, **details: object) -> None:
        """Forget what happens."""


def cost(watch: Any, snapshots: list[dict[str, Any]], logs: list[Path], samples: int) -> float:
    """Return the CPU seconds of one sample of all ranks; `logs` grow before each."""
    living, spent = living_descendants(), 0.0
    assert len(living) >= len(snapshots)
    for _ in range(samples):
        for log in logs:
            with log.open("a") as file:
                file.write("line\n")
        watch._due = 0.0  # noqa: SLF001  (the next look is now)
        began = time.process_time()
        watch.scan(living)
        spent += time.process_time() - began
    return spent / samples


def main() -> int:
    """Print the figures; 1 if the goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--files", type=int, default=200)
    parser.add_argument("--samples", type=int, default=30)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--many", type=int, default=0)
    given = parser.parse_args()
    if given.many:
        return many(given.many, given.rounds)
    missed = sampling(given)
    why = netns.missing() or ("" if shutil.which("pdsh") else "no pdsh")
    if given.hosts and why:
        print(f"no comparison with pdsh and py-spy: {why}")
    elif given.hosts:
        naming(given.hosts, given.rounds)
    return missed


def naming(count: int, rounds: int) -> None:
    """Print how long it takes to name a rank that stands still, on both sides."""
    with hosts(count) as (box, folder), launched(box, folder, STANDS_STILL) as (launch, env):
        stands = box.shared / "stands"
        assert launch.stdout is not None
        told = next((line for line in launch.stdout if '"verdict"' in line), None)
        if told is None:
            sys.exit("launch ended, and told no verdict")
        since = max(float(one.read_text()) for one in stands.parent.glob("stands-*"))
        print(
            f"launch told it {time.time() - since:.1f} s after the last rank stood still"
            f" (--hang-after {AFTER}s): {json.loads(told)['verdict']['text']}"
        )
        sides = {"clusterctl dump": [*VERB, "dump"], "pdsh, py-spy": by_hand(box)}
        compare(box, sides, rounds, env, folder)


@contextmanager
def launched(
    box: Sandbox, folder: Path, program: str
) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """Yield the launch of a program, and the environment of further verbs; stop it afterwards."""
    (folder / "still.py").write_text(program)
    env = {"PYTHONPATH": str(ROOT), "CLUSTERCTL_STATE": str(folder / "state")}
    env["CLUSTERCTL_INVENTORY"] = str(box.inventory)
    options = ["--launcher", "direct", "--procs-per-node", "1", "--no-check", "--json"]
    options += ["--hang-after", f"{AFTER}s", "--env", f"STANDS={box.hosts[0].shared}/stands"]
    launch = subprocess.Popen(
        box.command([*VERB, "launch", *options, "--", "still.py"], cwd=folder),
        env=box.environment() | env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield launch, env
    finally:
        box.run([*VERB, "stop", "--all", "--grace", "0"], env=env, cwd=folder)
        launch.wait()


def many(count: int, rounds: int) -> int:
    """Print what `dump` takes on many hosts."""
    with hosts(count) as (box, folder), launched(box, folder, SLEEPS) as (launch, env):
        assert launch.stdout is not None
        if not any('"hung"' in line for line in launch.stdout):  # all have py-spy by then
            sys.exit("launch ended, and its run was not hung")
        time.sleep(KEEPING_SECONDS)
        pids = [pid for host in box.hosts for pid in box.backend.processes(host)]
        servers = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
        for _ in range(rounds):
            began, before = time.monotonic(), cpu_seconds(servers)
            done = box.run([*VERB, "dump"], env=env, cwd=folder, stdin=subprocess.DEVNULL)
            seconds = time.monotonic() - began
            if done.returncode or f"[*:0-{count - 1}] still.py:5" not in done.stdout:
                sys.exit(f"dump ended with {done.returncode}: {done.stdout}{done.stderr}")
            own, there = (
                now - then for now, then in zip(cpu_seconds(servers), before, strict=True)
            )
            print(f"  {count} hosts: {seconds:.2f} s; CPU: client {own:.2f} s, hosts {there:.2f} s")
    return 0


def by_hand(box: Sandbox) -> list[str]:
    """Return what finds each rank's process on each host, and prints its stack."""
    py_spy = Path(sys.executable).with_name("py-spy")
    dumps = f"pgrep -f '[s]till.py$' | xargs -n 1 {py_spy} dump --nonblocking --pid"
    names = ",".join(host.name for host in box.hosts)
    return ["pdsh", "-R", "ssh", "-S", "-f", "64", "-w", names, dumps]


def compare(
    box: Sandbox, sides: dict[str, list[str]], rounds: int, env: dict[str, str], folder: Path
) -> None:
    """Take turns and print the medians."""

    def look(name: str) -> None:
        done = box.run(sides[name], env=env, cwd=folder, stdin=subprocess.DEVNULL)
        if done.returncode or "still.py:10" not in done.stdout:
            sys.exit(f"{name} ended with {done.returncode}: {done.stdout}{done.stderr}")

    turn = {name: functools.partial(timed, functools.partial(look, name)) for name in sides}
    seconds = in_turns(rounds, turn)
    ours, theirs = map(statistics.median, seconds.values())
    for name, values in seconds.items():
        spread = f"({min(values):.2f} to {max(values):.2f}, {rounds} turns)"
        print(f"  {name:16} {statistics.median(values):6.2f} s {spread}")
    print(f"  {len(box.hosts)} hosts: ours / theirs {ours / theirs:.2f}")


def sampling(given: argparse.Namespace) -> int:
    """Print what the samples cost; 1 if that is above the goal."""
    words = [sys.executable, "-c", RANK, str(given.workers), str(given.files)]
    ranks = [subprocess.Popen(words, stdout=subprocess.PIPE) for _ in range(given.ranks)]
    with tempfile.TemporaryDirectory() as folder:
        try:
            for rank in ranks:
                assert rank.stdout is not None
                for _ in range(1 + given.workers):
                    rank.stdout.readline()
            logs = [Path(folder, "ranks", f"{n}.log") for n in range(given.ranks)]
            logs[0].parent.mkdir()
            for log in logs:
                log.touch()
            snapshots = [
                {"rank": n, "pid": rank.pid, "state": "running"} for n, rank in enumerate(ranks)
            ]
            job: Any = {"launcher": "direct", "device": "cpu"}
            job["hang"] = {"after": 300.0, "action": "report"}
            record: Any = Record(folder)
            watch = HangWatch(EventLoop(), job, record, lambda: snapshots, lambda: None)
            worst = 0.0
            for kind, grow in (("printing", logs), ("quiet", [])):
                seconds = cost(watch, snapshots, grow, given.samples) / given.ranks
                percent = 100 * seconds / SAMPLE_SECONDS
                worst = max(worst, percent)
                print(f"{kind:9}{1e3 * seconds:8.3f} ms a rank{percent:9.4f} % of a core")
            began = time.process_time()
            for _ in range(given.samples):
                living_descendants()
            each = (time.process_time() - began) / given.samples
            print(f"living_descendants {1e3 * each:.3f} ms, every 2 s, for all ranks")
        finally:
            # Before the ranks end: without them, their workers are nobody's.
            started = [str(process.pid) for process in living_descendants()]
            subprocess.run(["kill", *started], check=False)
    print(f"goal: {GOAL_PERCENT} %: {'kept' if worst <= GOAL_PERCENT else 'missed'}")
    return int(worst > GOAL_PERCENT)


if __name__ == "__main__":
    sys.exit(main())
