"""Judges whether ranks show signs of life, and whether a run is hung. Pure: others look and wait.

Output, bytes that move, also in the memory of its GPU, and CPU time are signs of life. A rank that
waits in a collective may use CPU time nevertheless: NCCL polls. So CPU time alone counts until two
looks at the stacks find the rank at the same place in one. That kernels run on its GPU is no sign:
those of NCCL poll, too.
"""

from __future__ import annotations

import os
from typing import Any, Dict, FrozenSet, List, Mapping, NamedTuple, Optional, Tuple

BYTES_NOISE = 64 * 1024
"""Bytes a second that are no sign of life: keepalives, a store that is polled, a metrics logger."""
CPU_NOISE = 0.05
"""Cores in use that are none: watchdog threads, a loop that polls for a file."""
TIMES_LONGEST = 3.0
"""A run is not hung before it is quiet for so many times its longest quiet stretch until then."""
LOOK_SECONDS, MOST_LOOK_SECONDS = 10.0, 60.0
"""How long a rank's CPU time alone is believed, and the longest between two looks."""
SAMPLE_SECONDS = 5.0
INNERMOST = 8
"""Python frames that tell where a thread waits: a collective has some wrappers around it."""
_COLLECTIVES = (
    "/torch/distributed/distributed_c10d.py",
    "/torch/distributed/_functional_collectives.py",
)
"""Not all of torch.distributed: sharded tensors and checkpoints compute there."""
_SYNCHRONIZE = ("/torch/cuda/", "synchronize")
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python3", "<frozen")

Frames = Tuple[Tuple[str, str, int], ...]
"""Function, file and line of each, innermost first."""


class Moved(NamedTuple):
    """What a rank with all its processes did from one sample to the next."""

    seconds: float
    printed: bool
    bytes: int
    """Read, written, and exchanged with other nodes."""
    stores: bool
    """A process waits for a disk, and waited there for something else before."""
    cpu: float
    """Seconds of CPU time, and of waiting for a core."""
    computes: bool = False
    """The memory of its GPU moved."""

    @property
    def shows(self) -> bool:
        """It printed or computed, or more bytes moved than keepalives need, or to a slow disk."""
        moved = self.bytes > BYTES_NOISE * self.seconds
        return self.printed or self.computes or self.stores or moved

    @property
    def busy(self) -> bool:
        """It used CPU time worth a word."""
        return self.cpu > CPU_NOISE * self.seconds


def sample_seconds(after: float) -> float:
    """Return how often to look at the ranks of a run that is hung after so many seconds."""
    return min(SAMPLE_SECONDS, after / 5)


class RankLife:
    """The signs of life of one rank, on a clock that no one sets."""

    def __init__(self, now: float, after: float) -> None:
        """Take the rank's start for the first sign of life."""
        self._alive = self._shown = now
        self._first_look = min(LOOK_SECONDS, after / 5)
        self._longest_pause = min(MOST_LOOK_SECONDS, after / 5)
        self._pause = self._first_look
        self._looked: Optional[float] = None
        self._busy = False
        self._waits = False
        """Two looks have found it in the same place in a collective."""
        self._place: Optional[str] = None
        self._since = now
        """Since when it may have been in that place."""

    def quiet(self, now: float) -> float:
        """Return the seconds since its last sign of life."""
        return now - self._alive

    def see(self, now: float, moved: Moved) -> None:
        """Take what it did until now."""
        self._busy = moved.busy and not moved.shows
        if moved.shows:
            self._alive = self._shown = now
            self._pause, self._looked = self._first_look, None
            self._place, self._waits = None, False
        elif moved.busy and not self._waits:
            self._alive = now

    def silent(self, now: float) -> bool:
        """Tell whether it shows nothing but CPU time, so that its stack may soon be read."""
        return now - self._shown >= self._first_look / 2

    def wants_look(self, now: float) -> bool:
        """Tell whether only its stacks can say what it uses CPU time for."""
        last = self._shown if self._looked is None else self._looked
        return self._busy and now - last >= self._pause

    def look(self, now: float, place: Optional[str], *, told: bool = True) -> None:
        """Take where it waits, as its stacks tell; None: it does something else.

        Not `told`: no stack could be read, which is no sign of life of one that waits.
        """
        if not told and self._waits:
            self._looked = now
            return
        first = self._looked is None
        self._waits = place is not None and place == self._place
        if self._waits:
            self._alive = min(self._alive, self._since)
            self._pause = min(2 * self._pause, MOST_LOOK_SECONDS)
        else:
            self._alive = now
            # What it used CPU time for before the first look is unknown, but that was short.
            self._since = self._shown if first else now
            self._pause = self._first_look if place else min(2 * self._pause, self._longest_pause)
        self._place, self._looked = place, now


class RunLife:
    """Whether a run is hung: the master's judgement of what all nodes tell."""

    def __init__(self, after: float) -> None:
        """Judge a run hung that is quiet for `after` seconds."""
        self._after = after
        self._longest = self._quiet = 0.0
        self._printed: Optional[float] = None
        """When the first output was there."""
        self._nodes: FrozenSet[str] = frozenset()
        """Those with ranks, at the last look."""
        self._ended = 0.0
        """When the last node had none any longer: the others have waited for these until then."""
        self.hung = False
        self.false_alarms = 0

    @property
    def limit(self) -> float:
        """After how many quiet seconds it is hung: adaptive, for some jobs rest between steps."""
        return max(self._after, TIMES_LONGEST * self._longest)

    @property
    def quiet(self) -> float:
        """For how many seconds no rank on any node has shown a sign of life."""
        return self._quiet

    def judge(self, now: float, quiet: Mapping[str, Optional[float]], *, printed: bool) -> bool:
        """Take what each node tells; return whether `hung` has changed.

        Args:
            now: a clock that no one sets.
            quiet: by node that still has ranks, for how long its liveliest rank is quiet; None: it
                has not told.
            printed: some rank has printed something: before that, nothing is judged.
        """
        if printed and self._printed is None:
            self._printed = now
        told = [seconds for seconds in quiet.values() if seconds is not None]
        if self._printed is None or not told or len(told) < len(quiet):
            return False
        if self._nodes - set(quiet):
            self._ended = now
        self._nodes = frozenset(quiet)
        seconds = min(*told, now - max(self._printed, self._ended))
        if seconds < self._quiet:  # a sign of life
            self._longest = max(self._longest, self._quiet)
        lives, self._quiet = seconds < self._quiet, seconds
        if self.hung and lives:
            self.hung, self.false_alarms = False, self.false_alarms + 1
            return True
        if not self.hung and seconds >= self.limit:
            self.hung = True
            return True
        return False


def place_of(rank: Mapping[str, Any], *, on_gpu: bool = False) -> Optional[str]:
    """Return where a rank of a dump waits for others; None: it works, or this is unknown.

    Args:
        rank: a `RankDump` as JSON carries it.
        on_gpu: it waits for its GPU, on which nothing moves: whatever line of Python that is.
    """
    found: List[str] = []
    for process in rank["processes"]:
        threads = process["threads"]
        main = _python_frames(threads[0]) if threads else ()
        if main and (on_gpu or any(map(_waits_for_others, main[:INNERMOST]))):
            frames = ["%s %s:%d" % frame for frame in main]
            found.append("\n".join([str(process["pid"]), *frames]))
        elif sum(thread.get("cpu_percent") or 0 for thread in threads) > 100 * CPU_NOISE:
            return None
    return "\n".join(found) or None


def look_of(rank: Mapping[str, Any]) -> Optional[Dict[str, Any]]:
    """Return whether a rank of a dump `waits` for others, and `where` its own code is.

    None: no stack could be read. What its other processes do meanwhile does not count.
    """
    mains = [_python_frames(each["threads"][0]) for each in rank["processes"] if each["threads"]]
    mains = [main for main in mains if main]
    if not mains:
        return None
    own = next((one for one in mains[0] if not any(map(one[1].__contains__, _LIBRARIES))), None)
    return {
        "waits": any(any(map(_waits_for_others, main[:INNERMOST])) for main in mains),
        "where": "%s:%d %s" % (os.path.basename(own[1]), own[2], own[0]) if own else "",
    }


def _python_frames(thread: Mapping[str, Any]) -> Frames:
    frames = [
        (one["function"], one.get("file", ""), one.get("line", 0)) for one in thread["frames"]
    ]
    return tuple(frame for frame in frames if ".py" in frame[1])


def _waits_for_others(frame: Tuple[str, str, int]) -> bool:
    function, file, _line = frame
    folder, name = _SYNCHRONIZE
    return any(each in file for each in _COLLECTIVES) or (folder in file and function == name)
