"""The training of a healing run, slowed down, with numbered lines of every rank.

    healed_job.py PROGRAM LIMIT STEPS SAVE_STEPS WORDS…

PROGRAM is `train`, which gets these words, or `light`: see `light_training`.

It trains up to the step that the file LIMIT names, and waits there. Its lines are numbered in each
attempt, and what a line's number is gets noted beside the run, as in `job.py`.
"""

import fcntl
import json
import os
import runpy
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SECONDS = 0.1
"""Of a step, at least."""
PADDING = "." * 180
WITNESSES = Path("/workspace/witness")
"""On the node's own disk."""
ALIVE = Path("/shared/alive")
STATE = Path("/var/tmp/clusterctl-0")
ATTEMPTS = 100
"""A rank's number here is this times its attempt, and its rank."""
# Locks of an open file, which children inherit, and a question that takes none.
_ASK, _SET = 36, 37
_LOCK = "hhqqi4x"


class Lines:
    """What a rank prints in one attempt."""

    def __init__(self, number: int, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._rank, self._count = number, 0
        self._witness = os.open(folder / str(number), os.O_WRONLY | os.O_CREAT, 0o600)

    def write(self) -> None:
        """Write the next one."""
        line = f"rank {self._rank} line {self._count} {PADDING}|\n".encode()
        while line:
            line = line[os.write(1, line) :]
        self._count += 1
        os.pwrite(self._witness, b"%012d" % self._count, 0)


def main() -> None:
    program, limit, steps, save_steps = sys.argv[1:5]
    del sys.argv[1:5]
    run, rank = os.environ["CLUSTERCTL_RUN_ID"], int(os.environ["RANK"])
    (job,) = STATE.glob(f"*/{run}/*/job.json")
    attempt = int(json.loads(job.read_text())["attempt"])
    number = ATTEMPTS * attempt + rank
    lines = Lines(number, WITNESSES / run)
    overlaps = live_alone(ALIVE / run, attempt)
    given = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
    output, resumed = Path(given["--output-dir"]), given.get("--resume-from-checkpoint", "")
    about = {"attempt": attempt, "overlaps": overlaps, "resumed": resumed, "complete": seen(output)}
    begins = WITNESSES / f"{run}.begins"
    begins.mkdir(exist_ok=True)
    (begins / f"{number}.json").write_text(json.dumps(about))
    lines.write()

    def wait(step: int) -> None:
        while True:
            lines.write()
            time.sleep(SECONDS)
            if step <= int(Path(limit).read_text() or "0"):
                return

    if program == "light":
        import light_training  # type: ignore[import-not-found]  # noqa: PLC0415  (beside it)

        light_training.train(output, resumed, int(steps), int(save_steps), wait)
    else:
        slow_down(wait)
        sys.argv += ["--max-steps", steps, "--save-steps", save_steps]
        runpy.run_module("train", run_name="__main__")


def live_alone(folder: Path, attempt: int) -> list[int]:
    """Return the earlier attempts of which a process lives on any node; hold a lock as this one."""
    folder.mkdir(parents=True, exist_ok=True)
    own = os.open(folder / str(attempt), os.O_RDWR | os.O_CREAT, 0o600)
    os.set_inheritable(own, True)
    fcntl.fcntl(own, _SET, struct.pack(_LOCK, fcntl.F_RDLCK, 0, 0, 0, 0))
    found = []
    for earlier in range(1, attempt):
        other = os.open(folder / str(earlier), os.O_RDWR | os.O_CREAT, 0o600)
        wanted = struct.pack(_LOCK, fcntl.F_WRLCK, 0, 0, 0, 0)
        if struct.unpack(_LOCK, fcntl.fcntl(other, _ASK, wanted))[0] != fcntl.F_UNLCK:
            found.append(earlier)
        os.close(other)
    return found


def seen(output: Path) -> list[int]:
    """Return the steps of the complete checkpoints that are here."""
    try:
        found = output.glob("step-*/COMPLETE")
        return sorted(int(path.parent.name.removeprefix("step-")) for path in found)
    except (OSError, ValueError):
        return []


def slow_down(wait: Callable[[int], None]) -> None:
    """Wait before each step of `train`."""
    from train.trainer import Trainer  # noqa: PLC0415  (the first line is written before)

    real = Trainer.update

    def update(self: Trainer, number: int, step: Any) -> Any:
        wait(number)
        return real(self, number, step)

    Trainer.update = update  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
