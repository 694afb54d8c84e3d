"""`clusterctl` and `python -m clusterctl`: run the command, then leave whatever still waits."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys

from clusterctl.cli.shared.main import main

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def run() -> NoReturn:
    """Exit with the command's code at once, without the time in which Python clears every module.

    Python would end a daemon thread that still waits for a node wherever it is. If that is in C++
    or Rust code, glibc aborts the process: `FATAL: exception not rethrown`. And an interrupt that
    came while `exec` ran a string, as the making of a dataclass does, ends Python with SIGINT after
    `-m`, although it was caught (CPython's `unhandled_keyboard_interrupt`).
    """
    code = main()
    atexit._run_exitfuncs()  # noqa: SLF001 - what Python itself would run
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    run()
