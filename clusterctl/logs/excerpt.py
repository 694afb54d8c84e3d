"""Selects the useful lines of the last ones that a failed rank printed."""

import itertools
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from clusterctl.node.printed_error import FRAME, NOISE

_CPP_FRAME = re.compile(FRAME.pattern.encode())
_FRAME = re.compile(r'^(?P<rank>\[rank\d+\]: ?)?(?P<indent>\s+)File "(?P<path>[^"]*)", line \d+')
_REPORT = re.compile(r"[EW]\d{4} \S+ \d+ torch/distributed/elastic/multiprocessing/api\.py:\d+\]")
"""torchrun's line about a rank that failed, or that it ends for that."""
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python3|^<frozen ")


def without_noise(lines: Iterable[str]) -> tuple[str, ...]:
    """Return the lines without torch's warnings about peers; all of them if nothing is left."""
    given = tuple(lines)
    return tuple(line for line in given if not NOISE.match(line)) or given


def is_frame(line: bytes) -> bool:
    """Tell whether a line is of a C++ stack; a watchdog prints enough to push out its words."""
    return bool(_CPP_FRAME.match(line))


def excerpt(lines: Sequence[str]) -> list[str]:
    """Return the lines without torch's warnings; library frames become one line.

    A traceback with library frames only keeps its last frame. What a torchrun that a script
    started reports after the program's own words is left out.
    """
    out: list[str] = []
    frames: list[_Frame] = []
    for line in (*_before_report(without_noise(lines)), ""):
        match = _FRAME.match(line)
        if match:
            source = (match["rank"] or "") + match["indent"] + " "
            frames.append(_Frame(bool(_LIBRARY.search(match["path"])), source, [line]))
        elif frames and line.startswith(frames[-1].source):
            frames[-1].lines.append(line)
        else:
            out += [*_shortened(frames), line]
            frames = []
    return out[:-1]


def _before_report(lines: tuple[str, ...]) -> tuple[str, ...]:
    report = next((at for at, line in enumerate(lines) if _REPORT.match(line)), len(lines))
    return lines[:report] or lines


class _Frame(NamedTuple):
    """A frame of a traceback."""

    in_library: bool
    source: str
    """What its source code and carets, the lines below the first one, start with."""
    lines: list[str]


def _shortened(frames: list[_Frame]) -> list[str]:
    if all(frame.in_library for frame in frames):
        frames[-1:] = [frame._replace(in_library=False) for frame in frames[-1:]]
    out: list[str] = []
    for in_library, group in itertools.groupby(frames, key=lambda frame: frame.in_library):
        found = list(group)
        if in_library:
            out.append(f"  … {len(found)} library {'frame' if len(found) == 1 else 'frames'}")
        else:
            out += [line for frame in found for line in frame.lines]
    return out
