"""A sync with nothing to do on many hosts: ours against rsync typed by hand, in one run.

`python bench/sync.py [HOSTS] [ROUNDS]` starts sshd servers on loopback, brings them a folder, and
takes turns. Printed are medians and ratios; rsync is typed for one host, and for all at once.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
# Compiled modules are kept, as in every installation, and as those of the rivals are.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

from clusterctl.sandbox import sandbox  # noqa: E402
from clusterctl.sandbox.sandbox import Sandbox  # noqa: E402

HOSTS = int(sys.argv[1]) if len(sys.argv) > 1 else 8
ROUNDS = int(sys.argv[2]) if len(sys.argv) > 2 else 7
FILES = 400
SIZE = 8000


def main() -> None:
    """Bring the folder there once each way, then take turns."""
    box = sandbox.up(f"benchsync{os.getpid()}", nodes=HOSTS, backend="loopback")
    try:
        with tempfile.TemporaryDirectory() as folder:
            code = make_code(Path(folder) / "code")
            by_hand = Path(folder) / "by-hand"
            by_hand.mkdir()
            names = [host.name for host in box.hosts]
            sides: dict[str, Callable[[], None]] = {
                "clusterctl sync": lambda: ours(box, code),
                "rsync to one host": lambda: rsync(box, code, by_hand, names[:1]),
                f"rsync to {HOSTS} at once": lambda: rsync(box, code, by_hand, names),
            }
            for side in sides.values():
                side()
            compare(sides)
    finally:
        box.down()


def make_code(folder: Path) -> Path:
    """Make a git repository such as people train from."""
    for number in range(FILES):
        path = folder / f"pkg{number % 20}" / f"m{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {number}\n" + "x" * SIZE)
    git = ("git", "-c", "user.name=b", "-c", "user.email=b@example.org", "-C", str(folder))
    for words in (("init", "-q"), ("add", "."), ("commit", "-qm", "code")):
        subprocess.run([*git, *words], check=True)
    return folder


def ours(box: Sandbox, code: Path) -> None:
    """Sync every host."""
    argv = [sys.executable, "-m", "clusterctl", "sync", "-i", str(box.inventory)]
    done = box.run(argv, cwd=code, env={"PYTHONPATH": str(ROOT)})
    if done.returncode:
        sys.exit(f"sync ended with {done.returncode}: {done.stderr[-2000:]}")


def rsync(box: Sandbox, code: Path, folder: Path, names: list[str]) -> None:
    """Mirror the folder to each host as one types it, all at once."""
    started = []
    for name in names:
        argv = ["rsync", "-a", "--delete", "--exclude=.git", f"{code}/", f"{name}:{folder}/{name}/"]
        started.append(subprocess.Popen(box.command(argv), env=box.environment()))
    if any([process.wait() for process in started]):  # noqa: C419  (every one is waited for)
        sys.exit("rsync failed")


def compare(sides: dict[str, Callable[[], None]]) -> None:
    """Take turns and print the medians; the first side is ours."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(ROUNDS):
        for name, side in sides.items():
            began = time.monotonic()
            side()
            seconds[name].append(time.monotonic() - began)
    ours_median = statistics.median(next(iter(seconds.values())))
    print(f"a sync with nothing to do, {HOSTS} hosts, {FILES} files")
    for position, (name, values) in enumerate(seconds.items()):
        median = statistics.median(values)
        ratio = f"   ours / theirs {ours_median / median:.2f}" if position else ""
        print(f"  {name:22} {median:6.2f} s ({min(values):.2f} to {max(values):.2f}){ratio}")


if __name__ == "__main__":
    main()
