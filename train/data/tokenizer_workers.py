"""Tokenizing with several CPUs of a node: processes that share the shards, as several nodes do.

A chat template runs in Python, one chat after the other; only tokenizing texts uses all CPUs by
itself. The workers are new processes: this one has threads, which a fork would cut off.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from train.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection

MOST = 16
"""Workers of a node: each takes a few hundred MiB for the libraries of the tokenizer."""
WORTHWHILE = 16 << 20
"""Bytes of data for each worker: less is tokenized before a worker has imported its libraries."""
PATIENCE = 5.0
"""Seconds that a worker may take to remove what it has half done."""


def worth(size: int, shards: int) -> int:
    """Return how many workers are worth their start for so much data; below 2 none is."""
    # A launcher may have given this process some of the CPUs only. (macOS cannot tell)
    here = getattr(os, "sched_getaffinity", None)
    cpus = len(here(0)) if here else os.cpu_count() or 1
    return min(MOST, cpus, shards, size // WORTHWHILE)


@contextmanager
def at_work(count: int, work: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """Have so many processes do some work; however this ends, they end too.

    Args:
        count: How many.
        work: Something that can be pickled; what it raises as a ConfigError reaches this process.

    Yields:
        What raises if a worker failed: its ConfigError, or a RuntimeError.
    """
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe(duplex=False) for _ in range(count)]
    workers = [
        context.Process(target=_be_worker, args=(writer, work), daemon=True) for _, writer in pipes
    ]

    def check() -> None:
        for worker, (reader, _) in zip(workers, pipes, strict=True):
            if worker.exitcode:
                if reader.poll():
                    problems, hint = reader.recv()
                    raise ConfigError(problems, hint=hint)
                message = f"a process that tokenizes ended with code {worker.exitcode}"
                raise RuntimeError(message)

    try:
        for worker in workers:
            worker.start()
        yield check
    finally:
        started = [worker for worker in workers if worker.pid]
        for worker in started:
            worker.terminate()
        for worker in started:
            worker.join(PATIENCE)
            if worker.is_alive():
                worker.kill()
                worker.join()


def _be_worker(writer: Connection, work: Callable[[], None]) -> None:
    """Do the work, in a process of its own."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends this one
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there is a worker for each CPU already
    try:
        work()
    except ConfigError as error:
        writer.send((error.problems, error.hint))
        sys.exit(1)


def _end_with_parent() -> None:
    """End this process if its parent is killed."""
    parent = multiprocessing.parent_process()
    assert parent
    parent.join()
    os._exit(1)
