"""A push of models: ours against `rsync -a` to every host at once, in one run.

`python bench/push.py [HOSTS] [ROUNDS] [MB] [MBITS]` starts sshd servers in namespaces and takes
turns: each side brings one file of random bytes to every host, which does not have it. Printed are
the medians, the ratio and the CPU time of the whole machine. All hosts share its cores. So without
a limit the ratio is one of CPU time; with MBITS every machine sends at most so many Mbit/s, and
what a chain saves on the source's link shows.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import psutil

from bench._box import argument, at_once, clusterctl, hosts, in_turns, timed
from clusterctl.sandbox.sandbox import Sandbox

HOSTS, ROUNDS, MB, MBITS = argument(1, 8), argument(2, 3), argument(3, 1000), argument(4, 0)
TARGET = "/workspace/push"


def main() -> None:
    """Bring the file there each way, in turns."""
    with hosts(HOSTS, "netns") as (box, folder):
        file = folder / "model"
        with file.open("wb") as out:
            for _ in range(MB):
                out.write(os.urandom(1_000_000))
        limit_links(box)
        link = f"{MBITS} Mbit/s" if MBITS else "no limit"
        print(f"{HOSTS} hosts, {MB} MB, {link}, load {os.getloadavg()[0]:.1f}", flush=True)
        found = in_turns(
            ROUNDS,
            {
                "push": lambda: turn(box, lambda: ours(box, file)),
                "rsync": lambda: turn(box, lambda: rsync(box, file)),
            },
        )
    medians = {
        name: [statistics.median(each) for each in zip(*turns, strict=True)]
        for name, turns in found.items()
    }
    for name, (seconds, cpu) in medians.items():
        print(f"{name:6} {seconds:6.2f} s, {cpu:6.2f} s of CPU time")
    for place, what in enumerate(("on the clock", "of CPU time")):
        print(f"ratio {what} {medians['push'][place] / medians['rsync'][place]:.2f}")


def turn(box: Sandbox, side: Callable[[], None]) -> tuple[float, float]:
    """Return the seconds of a side on the clock, and of CPU time; the hosts have no file before."""
    for host in box.hosts:
        box.on(host.name, ["rm", "-rf", TARGET])
        box.on(host.name, ["mkdir", "-p", TARGET])
    os.sync()  # nobody writes back what the other side wrote
    before = busy()
    return timed(side), busy() - before


def limit_links(box: Sandbox) -> None:
    """Limit what each machine sends, this one included."""
    if MBITS:
        words = ["root", "tbf", "rate", f"{MBITS}mbit", "burst", "1m", "latency", "50ms"]
        done = [box.run(["tc", "qdisc", "add", "dev", "switch", *words])]
        for host in box.hosts:
            argv = ["tc", "qdisc", "add", "dev", host.interface, *words]
            done.append(box.on(host.name, argv))
        if any(one.returncode for one in done):
            sys.exit(f"tc failed: {done[0].stderr}")


def busy() -> float:
    """Return the seconds that the machine's CPUs have worked."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)


def ours(box: Sandbox, file: Path) -> None:
    """Push to every host."""
    clusterctl(box, "push", f"{file}:{TARGET}/model")


def rsync(box: Sandbox, file: Path) -> None:
    """Copy to every host as one types it, all at once."""
    words = ["rsync", "-a", str(file)]
    commands = ([*words, f"{host.name}:{TARGET}/model"] for host in box.hosts)
    if any(code for code, _ in at_once(box, commands)):
        sys.exit("rsync failed")


if __name__ == "__main__":
    main()
