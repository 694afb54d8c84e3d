"""The job of a chaos run: numbered lines at a steady rate, until a file tells it to end.

    job.py FORM ENOUGH

What a line's number is gets noted beside the run once the line is written, so that what a reader
of the logs must see is known from another source than the logs.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

SECONDS = 0.05
PADDING = "." * 180
WITNESSES = Path("/workspace/witness")
"""On the node's own disk."""


def main() -> None:
    form, enough = sys.argv[1:3]
    if form == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if form == "shell":
        signal.signal(signal.SIGTERM, save)
    if form == "daemons":
        subprocess.Popen(["sleep", "3001"])
        subprocess.Popen(["sleep", "3002"], start_new_session=True)
        daemonize("3003")
        daemonize("3004")
    rank = int(os.environ["RANK"])
    folder = WITNESSES / os.environ["CLUSTERCTL_RUN_ID"]
    folder.mkdir(parents=True, exist_ok=True)
    witness = os.open(folder / str(rank), os.O_WRONLY | os.O_CREAT, 0o600)
    number = 0
    while not Path(enough).exists():
        line = f"rank {rank} line {number} {PADDING}|\n".encode()
        while line:
            line = line[os.write(1 + number % 2, line) :]
        os.pwrite(witness, b"%012d" % (number + 1), 0)
        number += 1
        time.sleep(SECONDS)


def save(number: int, frame: object) -> None:
    """End as a job that saves first."""
    time.sleep(0.3)
    sys.exit(0)


def daemonize(seconds: str) -> None:
    """Start a process that has left its parents and their session."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execvp("sleep", ["sleep", seconds])
        os._exit(0)
    os.wait()


if __name__ == "__main__":
    main()
