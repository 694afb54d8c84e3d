"""What it costs to watch ranks for signs of life, in CPU time of the supervisor.

`python bench/hang.py [--ranks 8] [--workers 4] [--files 200]` starts ranks, each with workers, open
files and connections, and samples them as a supervisor does. Printed: CPU time a sample and rank,
and the share of a core with a sample every 5 s; for ranks that print, and for quiet ones, whose
connections are looked at too. `living_descendants`, which a supervisor does anyway, is apart.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from clusterctl.node.event_loop import EventLoop
from clusterctl.node.hang.life import SAMPLE_SECONDS
from clusterctl.node.run.files.run_paths import NodePaths
from clusterctl.node.run.processes.processes import living_descendants
from clusterctl.node.supervisor.hang_watch import HangWatch

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
    given = parser.parse_args()
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
