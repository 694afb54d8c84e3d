"""What this machine allows us: threads, processes and open files, of which each node needs some."""

import contextlib
import errno
import os
import resource
import threading
from collections.abc import Callable

from clusterctl.errors import CouldNotTell

DESCRIPTORS = 8192
"""Open files that many connections need; the soft limit is often 1024."""
HINT = (
    "raise the limit of processes (docker run --pids-limit, ulimit -u) or of open files"
    " (ulimit -n), or use fewer nodes: --nodes"
)
_M_ARENA_MAX, _M_MMAP_THRESHOLD = -8, -3
ARENAS = 2
"""Heaps of glibc's that all threads share. By default each core has eight, each with free space
of its own: Python runs one thread at a time, so they are no quicker."""
LARGE = 128 * 1024
"""Bytes from which glibc gives each block pages of its own, which go back at once. It would raise
that to the largest block so far: all that follow, such as an agent for each node, leave gaps."""
MANY = 64
"""Nodes from which memory counts more than time: such a block costs a page fault per 4 KiB, which
is a third of the time that a few nodes' logs take."""
_AT_LIMIT = {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE}


def at_limit(error: BaseException) -> bool:
    """Say whether an error means that this machine gives us no more of something."""
    if isinstance(error, OSError):
        return error.errno in _AT_LIMIT
    return isinstance(error, RuntimeError) and "start new thread" in str(error)


def start_thread(target: Callable[..., object], *args: object, name: str) -> threading.Thread:
    """Start a daemon thread and return it."""
    try:
        thread = threading.Thread(target=target, args=args, name=name, daemon=True)
        thread.start()
    except RuntimeError as error:
        if not at_limit(error):
            raise
        running = threading.active_count()
        message = f"this machine allows no more threads: {running} run, expected one more"
        raise CouldNotTell(message, hint=HINT) from error
    return thread


def raise_descriptor_limit() -> None:
    """Allow as many open files as many connections need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def share_arenas(*, nodes: int) -> None:
    """Let few heaps serve many threads; of many nodes, give large blocks back; only with glibc."""
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import ctypes  # noqa: PLC0415  (some builds of Python lack it)

        libc = ctypes.CDLL(None)
        if "MALLOC_ARENA_MAX" not in os.environ:
            libc.mallopt(_M_ARENA_MAX, ARENAS)
        if nodes >= MANY and "MALLOC_MMAP_THRESHOLD_" not in os.environ:
            libc.mallopt(_M_MMAP_THRESHOLD, LARGE)
