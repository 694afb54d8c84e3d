"""stdout and stderr that accept any character and whose failure ends nothing else."""

import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterator

EXIT_UNWRITTEN = 1

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


class _Messages(io.TextIOWrapper):
    """Stderr that loses what cannot be written: a full disk under a log ends no launch."""

    def write(self, text: str, /) -> int:
        """Write, or lose it."""
        with contextlib.suppress(OSError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        """Flush, or lose it."""
        with contextlib.suppress(OSError):
            super().flush()


def harden_streams() -> None:
    """Make this process's own streams take whatever a job prints, in any locale."""
    for number in range(3):  # `>&-`: else the next file opened would be our stdout
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    if sys.stdout is sys.__stdout__ and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    if sys.stderr is sys.__stderr__ and isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr = _Messages(
            sys.stderr.buffer,
            encoding=sys.stderr.encoding,
            errors="backslashreplace",
            line_buffering=True,
            write_through=True,
        )


def cannot_write(problem: BaseException) -> bool:
    """Tell whether this is stdout that takes no more: its reader exited, or its disk is full."""
    if isinstance(problem, BrokenPipeError):
        return True
    return isinstance(problem, OSError) and problem.filename is None and problem.errno in _FULL


@contextlib.contextmanager
def readers_may_leave() -> Iterator[None]:
    """Let the reader of the block's output exit early (`| head`): the result counts."""
    try:
        yield
        sys.stdout.flush()
    except (BrokenPipeError, SystemExit) as problem:  # the second: rich ends the process so
        give_up(problem)


def give_up(problem: BaseException) -> int:
    """Write no more to stdout, and say why unless its reader exited (`| head`)."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(problem, OSError) and not isinstance(problem, BrokenPipeError):
        sys.stderr.write(f"error: cannot write the output: {problem.strerror}\n")
    return EXIT_UNWRITTEN
