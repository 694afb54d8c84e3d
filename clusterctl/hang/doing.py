"""What a rank does, by the stack of its main thread."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import takewhile

from clusterctl.model.dump import Frame, NodeDump, ProcessDump, RankDump, ThreadStack
from clusterctl.node.hang.blame import DRIVER, MOUNT
from clusterctl.values import dataclass

_SHOWN = 120
"""Characters of a function, and of a file's name."""
_PYTHON = (".py", ".ipynb", ">")
"""How the name of a file of Python code ends: `<stdin>`, too."""
_LONGEST_FILE = 512
_MOST_FRAMES = 64
"""Frames of the kernel that may tell for what a thread waits."""
BUSY = 50
"""Percent of a core: a main thread that uses more computes."""
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
_WORKER = "_worker_loop"
"""In which a worker of torch's data loader is."""
_FETCH = re.compile(r"(?:^|/)torch/utils/data/_utils/fetch\.py$")
_LAUNCHES = re.compile(
    r"(?:^|/)torch/(?:distributed/elastic/agent/.* |multiprocessing/spawn\.py (?:join|spawn)$)"
)
_SPAWNED = re.compile(r"(?:^|/)torch/multiprocessing/spawn\.py$")
_FORKED = re.compile(r"/multiprocessing/(?:process|resource_tracker|forkserver)\.py$")
"""Of a process that Python's multiprocessing started: torch's alone may be a rank."""
_FOR_A_SERVER, _FOR_A_DRIVER = "waits for a file server", "waits for the driver of a GPU"
_FOR_A_CHILD = "waits for a process that it started"
_FOR_A_LOCK, _FOR_DATA = "waits for a lock or another thread", "waits for a socket or a pipe"
_WAITS = tuple(
    (re.compile(pattern), words)
    for pattern, words in (
        (MOUNT, _FOR_A_SERVER),
        (DRIVER, _FOR_A_DRIVER),
        (r"folio_wait|io_schedule|wait_on_page|blkdev|jbd2|ext4|xfs_|btrfs", "waits for a disk"),
        (r"nanosleep", "sleeps"),
        (r"futex", _FOR_A_LOCK),
        (r"\bdo_wait\b|kernel_wait4", _FOR_A_CHILD),
        (r"pipe_read|pipe_wait|anon_pipe", "waits for data of a pipe"),
        (r"poll|select|sk_wait|wait_woken|inet_|tcp_|unix_stream", _FOR_DATA),
        (r"flock|locks_lock|lease|fcntl_setlk|posix_lock", "waits for the lock of a file"),
    )
)

_IN_PYTHON = (
    (re.compile(r"/pdb\.py "), "waits in the debugger"),
    (re.compile(r"/threading\.py _shutdown$"), "waits at its end for its other threads"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Doing:
    """A rank, and what it does."""

    run: str
    node: str
    rank: int
    dump: RankDump
    own: ProcessDump | None
    """The process of its program; None: it has ended, or none is seen."""
    workers: tuple[ProcessDump, ...]
    """Data loaders' workers, and whatever else the program started."""
    main: ThreadStack
    """The main thread of its program."""
    busy: bool
    """That computes, or would if it got a core."""
    where: Frame | None
    """The innermost line of the user's own code."""
    operation: str
    """In which it waits for other ranks, such as `all_reduce`; empty: it does not."""
    several: bool = False
    """What clusterctl counts as one rank is a launcher, which started several programs."""


def all_doing(dumps: Sequence[NodeDump]) -> tuple[Doing, ...]:
    """Return every rank, in order; each of its programs if it has several."""
    found = (
        _doing(node.run, node.node, rank, own, programs)
        for node in dumps
        for rank in node.ranks
        for programs in [_programs(rank)]
        for own in programs or (None,)
    )
    return tuple(sorted(found, key=lambda one: one.rank))


def _doing(
    run: str, node: str, dump: RankDump, own: ProcessDump | None, programs: Sequence[ProcessDump]
) -> Doing:
    main, trains = main_thread(own), set(map(id, programs))
    busy = main.state == "R" or (main.cpu_percent or 0) >= BUSY
    kernel = Frame(function=main.wait) if main.wait else None
    return Doing(
        run=run,
        node=node,
        rank=dump.rank,
        dump=dump,
        own=own,
        workers=tuple(each for each in dump.processes if id(each) not in trains),
        main=main,
        busy=busy,
        where=place(main.frames) or kernel,
        operation=_operation(main, busy=busy),
        several=len(programs) > 1,
    )


def _programs(dump: RankDump) -> list[ProcessDump]:
    """Return the processes of a rank that train: its own, or what its script or launcher started.

    A node's only rank may be a script that starts torchrun.
    """
    live = [each for each in dump.processes if each.state not in _ZOMBIE]
    if dump.ended or not live:
        return []
    if not _starts_others(live[0]):
        return live[:1]
    rest = [one for one in live[1:] if any(python_frames(main_thread(one).frames))]
    train = [one for one in rest if not (_starts_others(one) or _is_helper(one))]
    return train or rest[:1] or live[:1]


def _starts_others(process: ProcessDump) -> bool:
    """Tell whether a process is a shell, or a launcher, that waits for what it started."""
    thread = main_thread(process)
    python = list(python_frames(thread.frames))
    if not python:
        return waits_for(thread) == _FOR_A_CHILD
    library = list(takewhile(lambda frame: not is_own(frame), python))
    if any(_LAUNCHES.search(f"{_file(frame)} {_short(frame)}") for frame in library):
        return True
    # A program of the user's own may wait for another one, too.
    return len(library) == len(python) and _file(python[0]).endswith("/subprocess.py")


def _is_helper(process: ProcessDump) -> bool:
    """Tell whether a program started a process to help it, such as a data loader's worker."""
    frames = main_thread(process).frames
    files = [_file(frame) for frame in frames]
    loads = any(frame.function == _WORKER for frame in frames)
    return loads or (any(map(_FORKED.search, files)) and not any(map(_SPAWNED.search, files)))


def main_thread(process: ProcessDump | None) -> ThreadStack:
    """Return it; an empty one if there is none."""
    return process.threads[0] if process and process.threads else ThreadStack(id=0)


def stopped(process: ProcessDump) -> bool:
    """Tell whether a signal or a debugger stopped it."""
    return process.state in _STOPPED


def is_own(frame: Frame) -> bool:
    """Tell whether a frame is of the user's own code, and of no library."""
    return frame.file.endswith(_PYTHON) and not (
        _LIBRARY.search(_file(frame)) or _COLLECTIVE.search(_file(frame))
    )


def place(frames: Sequence[Frame]) -> Frame | None:
    """Return the innermost frame of the user's own code; else of a package but torch; else any."""
    python = list(python_frames(frames))
    own = next(filter(is_own, python), None)
    packages = (f for f in python if _PACKAGES.search(_file(f)) and not _TORCH.search(_file(f)))
    return own or next(packages, None) or next(iter(python or frames), None)


def _operation(thread: ThreadStack, *, busy: bool) -> str:
    """Return what of torch a thread waits in for other ranks; empty: in nothing."""
    python = list(python_frames(thread.frames))
    if not python:
        return ""
    inside = list(takewhile(lambda frame: _COLLECTIVE.search(_file(frame)), python))
    named = [name for frame in inside if (name := _short(frame)) not in _WRAPPERS]
    if named:
        return named[-1]
    innermost = f"{_file(python[0])} {_short(python[0])}"
    known = (name for pattern, name in _IN_TORCH if pattern.search(innermost))
    found = next(known, "")
    # NCCL spins: there a rank is busy and waits nevertheless.
    return found if found == "synchronize" or not busy else ""


def waits_for_batch(thread: ThreadStack) -> bool:
    """Tell whether a thread waits for a batch of torch's data loader."""
    library = takewhile(lambda frame: not is_own(frame), python_frames(thread.frames))
    return any(_LOADER.search(_file(frame)) for frame in library)


def at_work(process: ProcessDump) -> ThreadStack | None:
    """Return the thread of a data loader's worker, without its parent's frames, if it loads."""
    thread = main_thread(process)
    frames = tuple(takewhile(lambda frame: frame.function != _WORKER, thread.frames))
    loads = any(_FETCH.search(_file(frame)) for frame in frames)
    return replace(thread, frames=frames) if loads else None


def waits_for(thread: ThreadStack) -> str:
    """Return in words what a thread waits for in the kernel; empty: it runs, or that is hidden."""
    library = takewhile(lambda frame: not is_own(frame), python_frames(thread.frames))
    calls = [f"{_file(frame)} {_short(frame)}" for frame in library]
    for pattern, words in _IN_PYTHON:
        if any(map(pattern.search, calls)):
            return words
    inside = (frame.function for frame in thread.frames[:_MOST_FRAMES] if not frame.file)
    kernel = " ".join(word[:_SHOWN] for word in (thread.wait, *inside))
    return next((words for pattern, words in _WAITS if pattern.search(kernel)), "")


def on_mount(thread: ThreadStack) -> bool:
    """Tell whether a thread waits for the server of a file system."""
    return waits_for(thread) == _FOR_A_SERVER


def is_blind(one: Doing) -> bool:
    """Tell whether a rank may wait in a collective, too: its Python stack could not be read."""
    if one.own is None or not one.own.missing or any(python_frames(one.main.frames)):
        return False
    return waits_for(one.main) in {"", _FOR_A_LOCK, _FOR_DATA, _FOR_A_DRIVER}


def in_driver(thread: ThreadStack) -> bool:
    """Tell whether a thread waits for a GPU's driver."""
    return waits_for(thread) == _FOR_A_DRIVER


def spot(frame: Frame | None) -> str:
    """Return `train.py:88 train_step`."""
    if frame is None:
        return ""
    file = frame.file.rpartition("/")[2][-_SHOWN:]
    line = f":{frame.line}" if frame.line else ""
    return " ".join(filter(None, (f"{file}{line}" if file else "", frame.function[:_SHOWN])))


def _file(frame: Frame) -> str:
    """Return the end of a file's name: no node makes us search more."""
    return frame.file[-_LONGEST_FILE:]


def _short(frame: Frame) -> str:
    """Return a function's name without its class, or the function that it is defined in."""
    return frame.function[-_SHOWN:].rpartition(".")[2]


def python_frames(frames: Sequence[Frame]) -> Iterator[Frame]:
    """Yield the frames of Python code."""
    return (frame for frame in frames if frame.file.endswith(_PYTHON))
