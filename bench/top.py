"""What `clusterctl top` costs: CPU time of the controller and of a node.

`python bench/top.py [--nodes 64] [--seconds 30]`, as root on Linux: a run of one rank on each of so
many hosts of a sandbox, which prints a step twice a second. Printed are, in percent of a core: the
controller that draws twice a second on a terminal of 200 columns; on a node the process that
watches for it, and a supervisor, with its samples, while nobody watches. All are CPU time, so a
busy machine changes little.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import select
import statistics
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from bench._box import hosts
from clusterctl.sandbox.sandbox import Sandbox

TICK = os.sysconf("SC_CLK_TCK")
GOALS = {"controller": 15.0, "watching, a node": 0.3, "supervisor, a node": 0.3}
JOB = """
import os, time
for step in range(1, 100000):
    time.sleep(0.5)
    print(f"Step {step}/100000 | Loss: {3 + 1 / step:.4f} | 0.50s | 1812 tok/s", flush=True)
"""


def seconds_of(pid: int) -> float:
    """Return the CPU time of a process."""
    line = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(line[11]) + int(line[12])) / TICK


def processes(*words: str) -> set[int]:
    """Return the processes whose arguments have all of these words."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = path.read_text(errors="replace")
        except OSError:
            continue
        if all(word in text for word in words):
            found.add(int(path.parent.name))
    return found


def percent(pids: set[int], before: dict[int, float], seconds: float) -> list[float]:
    return [
        100 * (seconds_of(pid) - before[pid]) / seconds
        for pid in pids
        if Path(f"/proc/{pid}").exists()
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=30.0)
    args = parser.parse_args()
    with hosts(args.nodes) as (made, folder):
        (folder / "job.py").write_text(JOB)
        measure(made, folder, args.seconds)


def measure(made: Sandbox, folder: Path, seconds: float) -> None:
    """Launch, watch, and print what that took."""
    words = [sys.executable, "-m", "clusterctl"]
    launch = [*words, "launch", "--detach", "--no-check", "--launcher", "direct", "--", "job.py"]
    environment = made.environment() | {"TERM": "xterm", "PYTHONPATH": str(sys.path[0])}
    done = subprocess.run(
        made.command(launch, cwd=folder),
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    run = done.stdout.split()[-1]
    time.sleep(10)
    guards = processes(f"/{run}/", "guard:main")
    supervisors = {
        pid for pid in guards if Path(f"/proc/{pid}/stat").exists() and _parent(pid) in guards
    }
    found = {"supervisor, a node": _cost(supervisors, seconds)}
    known = processes("-I\0-S\0")
    pid, end = pty.fork()
    argv = made.command([*words, "top", run], cwd=folder)
    if pid == 0:
        os.execvpe(argv[0], argv, environment)
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
    _read(end, 15.0 + seconds)  # until all nodes have answered
    agents = processes("-I\0-S\0") - known
    controller = processes("\0top\0", run)
    before = {one: seconds_of(one) for one in agents | controller}
    began = time.monotonic()
    count = _read(end, seconds)
    took = time.monotonic() - began
    found["controller"] = [sum(percent(controller, before, took))]
    found["watching, a node"] = percent(agents, before, took)
    os.write(end, b"q")
    _read(end, 3.0)
    subprocess.run(made.command([*words, "stop", run]), env=environment, check=False)
    print(f"{len(made.hosts)} nodes, {len(agents)} watched, {count / took / 1000:.1f} kB/s drawn")
    for name, values in found.items():
        print(
            f"{name:20} {statistics.mean(values):6.2f} % of a core (most {max(values):.2f}),"
            f" wanted at most {GOALS[name]} %"
        )


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _cost(pids: set[int], seconds: float) -> list[float]:
    before, began = {pid: seconds_of(pid) for pid in pids}, time.monotonic()
    time.sleep(seconds)
    return percent(pids, before, time.monotonic() - began)


def _read(end: int, seconds: float) -> int:
    """Read what is drawn, as a terminal does; return how many bytes."""
    until, count = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        if select.select([end], [], [], 0.1)[0]:
            try:
                count += len(os.read(end, 65536))
            except OSError:
                return count
    return count


if __name__ == "__main__":
    main()
