"""`make gpu`: what only a GPU shows, in one command of at most nine minutes."""

from __future__ import annotations

import sys


def start() -> int:
    if sys.version_info < (3, 11):  # noqa: UP036  (started by whatever python3 is here)
        found = ".".join(map(str, sys.version_info[:3]))
        print(f"error: expected Python 3.11 or newer, found {found}", file=sys.stderr)
        print("hint: PYTHON=python3.12 make gpu", file=sys.stderr)
        return 3
    from bench.gpu.check import main

    return main()


if __name__ == "__main__":
    sys.exit(start())
