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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path

from train.distributed import host_memory
from train.errors import ConfigError
from train.lock import Lock

MOST = 64
"""Workers of a node."""
ROOM = 512 << 20
"""Bytes of memory for each: the libraries of the tokenizer take 300 MiB."""
ROW_SECONDS = 400e-6
BYTE_SECONDS = 0.1e-6
"""About what a CPU takes: a chat template runs in Python for each row, however short it is."""
WORTHWHILE = 6.0
"""Seconds of one CPU's work from which workers save time: each first imports for three."""
PATIENCE = 5.0
"""Seconds that a worker may take to remove what it has half done."""


def worker_count(rows: int, size: int, shards: int) -> int:
    """Return how many workers are worth their start for so many rows and bytes, at least 1."""
    seconds = rows * ROW_SECONDS + size * BYTE_SECONDS
    if seconds < WORTHWHILE:
        return 1
    room = host_memory.available() // 2 // ROOM
    return max(1, min(MOST, cpus(), room, shards, round(seconds)))


def cpus(quota: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Return how many CPUs this process may use: a launcher or a container may have fewer."""
    here = getattr(os, "sched_getaffinity", None)  # (macOS cannot tell)
    count = len(here(0)) if here else os.cpu_count() or 1
    with suppress(OSError, ValueError):  # without a limit it says "max"
        given, period = map(int, quota.read_text().split())
        count = min(count, -(-given // period))
    return max(1, count)


@contextmanager
def running(
    counts: list[int], work: Callable[[Callable[[int], None]], None]
) -> Iterator[Callable[[], None]]:
    """Have a process for each count do some work; however this ends, they end too.

    The work, which must pickle, is given what sets its own count.

    Yields:
        What takes the counts, and raises if a worker failed: its ConfigError, or a RuntimeError.
    """
    context = multiprocessing.get_context("spawn")
    workers: list[tuple[SpawnProcess, Connection, Connection]] = []

    def check() -> None:
        for number, (worker, reader, _) in enumerate(workers):
            ended = worker.exitcode
            counts[number] = _received(reader, counts[number])
            if ended:
                raise RuntimeError(f"a process that tokenizes ended with code {ended}")

    try:
        for _ in counts:
            reader, writer = context.Pipe(duplex=False)
            worker = context.Process(target=_work, args=(writer, work), daemon=True)
            workers.append((worker, reader, writer))  # (a reader without a writer is at its end)
            worker.start()
        yield check
    finally:
        started = [worker for worker, *_ in workers if worker.pid]
        for worker in started:
            worker.terminate()
        for worker in started:
            worker.join(PATIENCE)
            if worker.is_alive():
                worker.kill()
                worker.join()


def _received(reader: Connection, count: int) -> int:
    """Return the last count that a worker has sent, or raise its error."""
    while reader.poll():
        match reader.recv():
            case int(later):
                count = later
            case problems, hint:
                raise ConfigError(*problems, hint=hint)
    return count


def _work(writer: Connection, work: Callable[[Callable[[int], None]], None]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends this one
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there is a worker for each CPU already
    try:
        work(writer.send)
    except ConfigError as error:
        writer.send((error.problems, error.hint))
        sys.exit(1)
    finally:
        Lock.release_all()  # SIGTERM may have come amid a release


def _end_with_parent() -> None:
    """End this process if its parent is killed."""
    parent = multiprocessing.parent_process()
    assert parent
    parent.join()
    os._exit(1)
