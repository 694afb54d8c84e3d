"""Upload a checkpoint to an object store: `python -m train.tools.upload output/step-000120 URL`.

A training with `upload_to` starts this for each checkpoint. It tries again until the store has
taken all, so a store that is away for a night only delays it.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from train.checkpoint import remote
from train.checkpoint.manifest import CorruptCheckpoint
from train.errors import CHECKPOINT, DONE, INTERRUPTED, USAGE, ConfigError


def main(argv: Sequence[str] | None = None) -> int:
    """Upload, and print what happens, a line each; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m train.tools.upload", description=__doc__)
    parser.add_argument("folder", type=Path, help="a whole checkpoint, such as output/step-000120")
    parser.add_argument("url", help="what it comes below, such as s3://bucket/run")
    parser.add_argument("--until-eof", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.until_eof:
        # The training decides when this ends; its end, however it comes, is that of its pipe.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        threading.Thread(target=end_with_training, daemon=True).start()
    began = time.monotonic()
    try:
        sent = remote.upload(args.folder, args.url, say)
    except ConfigError as error:
        say(str(error))
        return USAGE
    except CorruptCheckpoint as damage:
        say(f"{args.folder}: {damage}")
        return CHECKPOINT
    except KeyboardInterrupt:
        return INTERRUPTED
    took = time.monotonic() - began
    say(f"uploaded, {sent / 2**20:.1f} MiB in {took:.1f} s" if sent else "there already")
    return DONE


def say(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)


def end_with_training() -> None:
    """End this process once the training has closed its pipe or exited."""
    os.read(0, 1)  # (a buffered reader would be locked at the exit)
    os._exit(CHECKPOINT)


if __name__ == "__main__":
    sys.exit(main())
