"""Plays chaos schedules: `python -m tests.chaos SEED…`, or `FIRST-LAST`; `--healing` others.

Each worker has three hosts of its own and plays its seeds on them one after another. What a seed
came to is a line of the summary; of one that failed everything that was printed is kept.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
import traceback
from pathlib import Path

from tests.chaos import faults, healing, schedule
from tests.chaos import play as chaos
from tests.chaos.invariants import describe
from tests.chaos.play import Played
from tests.chaos.stage import Stage


def seeds_of(words: list[str]) -> list[int]:
    """Return the seeds that `7 20-29` means."""
    found: list[int] = []
    for word in words:
        first, _, last = word.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def main() -> int:
    """Play them; 0: all invariants held."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("seeds", nargs="+", metavar="SEED", help="7, or 100-199")
    parser.add_argument("--jobs", type=int, default=1, help="how many at a time")
    parser.add_argument("--out", type=Path, default=Path("/tmp/chaos"), help="for what they print")
    parser.add_argument("--healing", action="store_true", help="trainings that restart themselves")
    args = parser.parse_args()
    seeds = seeds_of(args.seeds)
    args.out.mkdir(parents=True, exist_ok=True)
    workers = []
    for number in range(min(args.jobs, len(seeds))):
        pid = os.fork()
        if pid == 0:
            os._exit(work(number, seeds[number :: args.jobs], args.out, heals=args.healing))
        workers.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in workers]
    return 1 if any(codes) else 0


def work(number: int, seeds: list[int], out: Path, *, heals: bool) -> int:
    """Play these seeds, on new hosts after each that failed; return whether any did."""
    any_failed = False
    while seeds:
        name = f"t{os.getpid()}-{number}"  # the next test session takes down what was killed
        try:
            with Stage.up(name, out / name) as stage:
                while seeds:
                    failed = one(stage, seeds.pop(0), out, heals=heals)
                    any_failed = any_failed or failed
                    if failed:
                        break
        except Exception:  # noqa: BLE001  (the next seeds get new hosts)
            traceback.print_exc()
            any_failed = True
        shutil.rmtree(out / name, ignore_errors=True)
    return int(any_failed)


def one(stage: Stage, seed: int, out: Path, *, heals: bool) -> bool:
    """Play one seed, report it, and return whether it failed."""
    began = time.monotonic()
    drawn = healing.draw(seed) if heals else schedule.draw(seed)
    try:
        if isinstance(drawn, healing.Healing):
            played = healing.play(stage, drawn)
        else:
            played = chaos.play(stage, drawn)
    except Exception:  # noqa: BLE001  (the other seeds are played all the same)
        played = Played(drawn, wrong=[f"the harness: {traceback.format_exc()}"])
    report(played, time.monotonic() - began, out)
    if played.wrong:
        keep(stage, played, out / f"seed-{seed}")
        faults.heal(stage)
    else:
        stage.clear()
    return bool(played.wrong)


def report(played: Played, seconds: float, out: Path) -> None:
    """Append a line to the summary, and print it."""
    took = "" if played.gone_after is None else f" gone {played.gone_after:.1f} s"
    took += f" late {played.late:.1f} s"
    what = f"FAILED {' | '.join(played.wrong)}" if played.wrong else "ok"
    shown = describe(played.schedule, played.dones)
    line = f"{played.schedule.seed} [{shown}] {seconds:.1f} s{took} {what}"
    if played.wrong:
        heals = "--healing " if isinstance(played.schedule, healing.Healing) else ""
        line += f" | replay: python -m tests.chaos {heals}{played.schedule.seed}"
    with (out / "summary.txt").open("a") as file:
        file.write(line.replace("\n", " / ") + "\n")
    print(line, flush=True)


def keep(stage: Stage, played: Played, folder: Path) -> None:
    """Keep what was printed, and the run's folders."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for path in stage.folder.glob("*-*.*"):
        shutil.copy(path, folder)
    for node in stage.nodes:
        part = stage.part(node, played.run) if played.run else None
        if part is not None and part.exists():
            shutil.copytree(part, folder / node, ignore_dangling_symlinks=True)


if __name__ == "__main__":
    sys.exit(main())
