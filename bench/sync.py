"""A sync: ours against `rsync -a` typed by hand, in one run.

`python bench/sync.py [HOSTS] [ROUNDS] [FILES]` starts sshd servers on loopback, gives each host a
folder of its own, and takes turns: first copy, nothing to do, one file changed, half deleted.
Printed are medians and the ratio; rsync goes to all hosts at once.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import yaml

from bench._box import argument, at_once, clusterctl, hosts, timed
from clusterctl.sandbox.sandbox import Sandbox

HOSTS, ROUNDS, FILES = argument(1, 8), argument(2, 7), argument(3, 400)
SIZE = 8000 if FILES < 10000 else 1000
FOLDERS = 200 if FILES >= 10000 else 20

Side = Callable[[], None]


def main() -> None:
    """Bring the folder there each way, then take turns."""
    with hosts(HOSTS, "loopback") as (box, folder):
        bench = Bench(box, folder)
        bench.compare("first copy", 1)
        time.sleep(4)  # a file that was written just now is read again
        bench.ours()
        bench.compare("nothing to do", ROUNDS)
        bench.compare("one file changed", ROUNDS, bench.change_one)
        bench.delete_half()
        bench.compare("half deleted", 1)


class Bench:
    """One folder, and the hosts that are brought it."""

    def __init__(self, box: Sandbox, folder: Path) -> None:
        """Make the folder and an inventory in which no two hosts share one."""
        self.box = box
        self.code = make_code(folder / "code")
        self.by_hand = folder / "by-hand"
        self.by_hand.mkdir()
        self.inventory = folder / "hosts.yaml"
        inventory = yaml.safe_load(box.inventory.read_text())
        inventory.pop("shared", None)
        inventory.pop("workdir", None)
        for number, node in enumerate(inventory["nodes"]):
            node["workdir"] = str(folder / f"workdir{number}")
        self.inventory.write_text(yaml.safe_dump(inventory))

    def ours(self) -> None:
        """Sync every host."""
        clusterctl(self.box, "sync", "--delete", "-i", str(self.inventory), cwd=self.code)

    def rsync(self) -> None:
        """Mirror the folder to each host as one types it, all at once."""
        words = ["rsync", "-a", "--delete", "--exclude=.git", f"{self.code}/"]
        names = [host.name for host in self.box.hosts]
        commands = ([*words, f"{name}:{self.by_hand}/{name}/"] for name in names)
        if any(code for code, _ in at_once(self.box, commands)):
            sys.exit("rsync failed")

    def change_one(self) -> None:
        """Edit one file."""
        with (self.code / "pkg1" / "m1.py").open("a") as file:
            file.write("#\n")

    def delete_half(self) -> None:
        """Delete every other file."""
        for number in range(0, FILES, 2):
            path_of(self.code, number).unlink()

    def compare(self, what: str, rounds: int, before: Side = lambda: None) -> None:
        """Take turns and print the medians; a change is made before each round."""
        seconds: tuple[list[float], list[float]] = ([], [])
        for _ in range(rounds):
            before()
            for side, values in zip((self.ours, self.rsync), seconds, strict=True):
                values.append(timed(side))
        ours, theirs = (
            f"{statistics.median(v):6.2f} s ({min(v):.2f} to {max(v):.2f})" for v in seconds
        )
        ratio = statistics.median(seconds[0]) / statistics.median(seconds[1])
        print(f"{what:18} sync {ours}   rsync {theirs}   ratio {ratio:.2f}", flush=True)


def path_of(folder: Path, number: int) -> Path:
    """Return where a file of the benchmark's folder lies."""
    return folder / f"pkg{number % FOLDERS}" / f"m{number}.py"


def make_code(folder: Path) -> Path:
    """Make a git repository such as people train from."""
    for number in range(FILES):
        path = path_of(folder, number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {number}\n" + "x" * SIZE)
    git = ("git", "-c", "user.name=b", "-c", "user.email=b@example.org", "-C", str(folder))
    for words in (("init", "-q"), ("add", "."), ("commit", "-qm", "code")):
        subprocess.run([*git, *words], check=True)
    return folder


if __name__ == "__main__":
    main()
