"""What a rank does, by the stack of its main thread."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import takewhile

from clusterctl.model.dump import Frame, NodeDump, ProcessDump, RankDump, ThreadStack
from clusterctl.values import dataclass

BUSY = 50
"""Percent of a core from which a rank is said to compute."""
_STOPPED, _ZOMBIE = frozenset("Tt"), frozenset("ZX")
_PACKAGES = re.compile(r"(?:^|/)(?:site|dist)-packages/")
_LIBRARY = re.compile(_PACKAGES.pattern + r"|/lib/python3[.\d]*/|^<frozen")
_TORCH = re.compile(r"(?:^|/)torch/")
_COLLECTIVE = re.compile(
    r"(?:^|/)torch/distributed/(?:distributed_c10d|c10d_logger|rendezvous|_functional_collectives"
    r"|nn/functional|fsdp/.*)\.py$"
)
_WRAPPERS = frozenset(("wrapper", "inner", "__exit__"))
_IN_TORCH = (
    (re.compile(r"(?:^|/)torch/cuda/(?:__init__|streams)\.py synchronize$"), "synchronize"),
    (re.compile(r"(?:^|/)torch/autograd/graph\.py _engine_run_backward$"), "backward"),
    (re.compile(r"(?:^|/)torch/nn/parallel/distributed\.py "), "DistributedDataParallel"),
)
"""In which an idle rank waits for others, or for its GPU, which may wait for others'."""
_LOADER = re.compile(r"(?:^|/)torch/utils/data/dataloader\.py$")
_FETCH = re.compile(r"(?:^|/)torch/utils/data/_utils/fetch\.py$")
_MOUNT = re.compile(
    r"\bfuse_|\bnfs4?_|\brpc_wait|\blustre|\bll_|\bcl_sync|\bceph_|\bcifs_|\bsmb2?_|\bv9fs_|\bp9_"
    r"|\bgpfs|\brequest_wait_answer|\bfolio_wait_bit_common.*\bnfs"
)
_WAITS = tuple(
    (re.compile(pattern), words)
    for pattern, words in (
        (_MOUNT.pattern, "waits for a file server"),
        (r"folio_wait|io_schedule|wait_on_page|blkdev|jbd2|ext4|xfs_|btrfs", "waits for a disk"),
        (r"nanosleep", "sleeps"),
        (r"futex", "waits for a lock or another thread"),
        (r"do_wait\b|do_wait4|kernel_wait", "waits for a process that it started"),
        (r"pipe_read|pipe_wait|anon_pipe", "waits for data of a pipe"),
        (r"poll|select|sk_wait|wait_woken|inet_|tcp_|unix_stream", "waits for a socket or a pipe"),
        (r"flock|locks_lock|lease|fcntl_setlk|posix_lock", "waits for the lock of a file"),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Doing:
    """A rank, and what it does."""

    node: str
    dump: RankDump

    @property
    def rank(self) -> int:
        """Its number."""
        return self.dump.rank

    @property
    def own(self) -> ProcessDump | None:
        """Its own process; None: it has ended."""
        gone = self.dump.ended or not self.dump.processes
        first = None if gone else self.dump.processes[0]
        return None if first and first.state in _ZOMBIE else first

    @property
    def main(self) -> ThreadStack:
        """The main thread of its own process."""
        return main_thread(self.own)

    @property
    def where(self) -> Frame | None:
        """The innermost line of the user's own code."""
        return place(self.main.frames)

    @property
    def operation(self) -> str:
        """In which it waits for other ranks, such as `all_reduce`; empty: it does not."""
        return operation(self.main, busy=self.busy)

    @property
    def busy(self) -> bool:
        """Its main thread computes, or would if it got a core."""
        return self.main.state == "R" or (self.main.cpu_percent or 0) >= BUSY

    @property
    def workers(self) -> tuple[ProcessDump, ...]:
        """Data loaders' workers, and whatever else it started."""
        return self.dump.processes[1:]


def all_doing(dumps: Sequence[NodeDump]) -> tuple[Doing, ...]:
    """Return every rank, in order."""
    found = (Doing(node=node.node, dump=rank) for node in dumps for rank in node.ranks)
    return tuple(sorted(found, key=lambda one: one.rank))


def main_thread(process: ProcessDump | None) -> ThreadStack:
    """Return it; an empty one if there is none."""
    return process.threads[0] if process and process.threads else ThreadStack(id=0)


def stopped(process: ProcessDump) -> bool:
    """Tell whether a signal or a debugger stopped it."""
    return process.state in _STOPPED


def is_own(frame: Frame) -> bool:
    """Tell whether a frame is of the user's own code, and of no library."""
    return frame.file.endswith((".py", ".ipynb", ">")) and not (
        _LIBRARY.search(frame.file) or _COLLECTIVE.search(frame.file)
    )


def place(frames: Sequence[Frame]) -> Frame | None:
    """Return the innermost frame of the user's own code; else of a package but torch; else any."""
    python = list(_python(frames))
    own = next(filter(is_own, python), None)
    packages = (f for f in python if _PACKAGES.search(f.file) and not _TORCH.search(f.file))
    return own or next(packages, None) or next(iter(python or frames), None)


def operation(thread: ThreadStack, *, busy: bool) -> str:
    """Return what of torch a thread waits in for other ranks; empty: in nothing."""
    python = list(_python(thread.frames))
    if not python:
        return ""
    inside = list(takewhile(lambda frame: _COLLECTIVE.search(frame.file), python))
    named = [name for frame in inside if (name := _short(frame)) not in _WRAPPERS]
    if named:
        return named[-1]
    innermost = f"{python[0].file} {python[0].function}"
    known = (name for pattern, name in _IN_TORCH if pattern.search(innermost))
    found = next(known, "")
    # NCCL spins: there a rank is busy and waits nevertheless.
    return found if found == "synchronize" or not busy else ""


def waits_for_batch(thread: ThreadStack) -> bool:
    """Tell whether a thread waits for a batch of torch's data loader."""
    library = takewhile(lambda frame: not is_own(frame), _python(thread.frames))
    return any(_LOADER.search(frame.file) for frame in library)


def at_work(process: ProcessDump) -> ThreadStack | None:
    """Return the thread of a data loader's worker, without its parent's frames, if it loads."""
    thread = main_thread(process)
    frames = tuple(takewhile(lambda frame: frame.function != "_worker_loop", thread.frames))
    loads = any(_FETCH.search(frame.file) for frame in frames)
    return replace(thread, frames=frames) if loads else None


def waits_for(thread: ThreadStack) -> str:
    """Return in words for what the kernel lets a thread wait; empty: it runs, or nobody told."""
    kernel = " ".join((thread.wait, *(f.function for f in thread.frames if not f.file)))
    return next((words for pattern, words in _WAITS if pattern.search(kernel)), "")


def on_mount(thread: ThreadStack) -> bool:
    """Tell whether a thread waits for the server of a file system."""
    return waits_for(thread) == _WAITS[0][1]


def spot(frame: Frame | None) -> str:
    """Return `train.py:88 train_step`."""
    if frame is None:
        return ""
    file = frame.file.rpartition("/")[2]
    line = f":{frame.line}" if frame.line else ""
    return " ".join(filter(None, (f"{file}{line}" if file else "", frame.function)))


def _short(frame: Frame) -> str:
    """Return a function's name without its class, or the function that it is defined in."""
    return frame.function.rpartition(".")[2]


def _python(frames: Sequence[Frame]) -> Iterator[Frame]:
    """Yield the frames of Python code."""
    return (frame for frame in frames if frame.file.endswith((".py", ".ipynb", ">")))
