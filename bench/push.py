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
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

import psutil  # noqa: E402

from clusterctl.sandbox import sandbox  # noqa: E402
from clusterctl.sandbox.backend import SandboxSpec  # noqa: E402
from clusterctl.sandbox.sandbox import Sandbox  # noqa: E402

HOSTS = int(sys.argv[1]) if len(sys.argv) > 1 else 8
ROUNDS = int(sys.argv[2]) if len(sys.argv) > 2 else 3
MB = int(sys.argv[3]) if len(sys.argv) > 3 else 1000
MBITS = int(sys.argv[4]) if len(sys.argv) > 4 else 0
TARGET = "/workspace/push"


def main() -> None:
    """Bring the file there each way, in turns."""
    box = sandbox.up(f"benchpush{os.getpid()}", SandboxSpec(nodes=HOSTS), backend="netns")
    try:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "model")
            with file.open("wb") as out:
                for _ in range(MB):
                    out.write(os.urandom(1_000_000))
            limit_links(box)
            link = f"{MBITS} Mbit/s" if MBITS else "no limit"
            print(f"{HOSTS} hosts, {MB} MB, {link}, load {os.getloadavg()[0]:.1f}", flush=True)
            sides = {"push": ours, "rsync": rsync}
            seconds: dict[str, list[float]] = {name: [] for name in sides}
            cpu: dict[str, list[float]] = {name: [] for name in sides}
            for _ in range(ROUNDS):
                for name, side in sides.items():
                    for host in box.hosts:
                        box.on(host.name, ["rm", "-rf", TARGET])
                        box.on(host.name, ["mkdir", "-p", TARGET])
                    os.sync()  # nobody writes back what the other side wrote
                    before, began = busy(), time.monotonic()
                    side(box, file)
                    seconds[name].append(time.monotonic() - began)
                    cpu[name].append(busy() - before)
            for name in sides:
                medians = statistics.median(seconds[name]), statistics.median(cpu[name])
                print(f"{name:6} {medians[0]:6.2f} s, {medians[1]:6.2f} s of CPU time", flush=True)
            for what, values in (("on the clock", seconds), ("of CPU time", cpu)):
                ratio = statistics.median(values["push"]) / statistics.median(values["rsync"])
                print(f"ratio {what} {ratio:.2f}", flush=True)
    finally:
        box.down()


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
    words = ["-m", "clusterctl", "push", f"{file}:{TARGET}/model"]
    done = box.run([sys.executable, *words], env={"PYTHONPATH": str(ROOT)})
    if done.returncode:
        sys.exit(f"push ended with {done.returncode}: {done.stderr[-2000:]}")


def rsync(box: Sandbox, file: Path) -> None:
    """Copy to every host as one types it, all at once."""
    started = []
    for host in box.hosts:
        command = box.command(["rsync", "-a", str(file), f"{host.name}:{TARGET}/model"])
        started.append(subprocess.Popen(command, env=box.environment()))
    if any([process.wait() for process in started]):  # noqa: C419  (every one is waited for)
        sys.exit("rsync failed")


if __name__ == "__main__":
    main()
