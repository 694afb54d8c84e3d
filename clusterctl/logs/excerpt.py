"""Selects the useful lines of the last ones that a failed rank printed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_NOISE = re.compile(
    r"^(?:\[rank\d+\]: ?)?(?:"
    r"\[W\d{2,} .*(?:\[c10d\]|\.(?:cpp|hpp):\d+\])"
    r"|W\d{4} .*torch/distributed/"
    r"|frame #\d+: |Exception raised from .* at /"
    r")"
)
"""Warnings of torch's c10d about peers that exited, and their C++ frames."""
_FRAME = re.compile(r'^(?P<rank>\[rank\d+\]: ?)?(?P<indent>\s+)File "(?P<path>[^"]*)", line \d+')
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python3|^<frozen ")


def without_noise(lines: Iterable[str]) -> tuple[str, ...]:
    """Return the lines without torch's warnings about peers; all of them if nothing is left."""
    given = tuple(lines)
    return tuple(line for line in given if not _NOISE.match(line)) or given


def excerpt(lines: Sequence[str]) -> list[str]:
    """Return the lines without torch's warnings; library frames become one line.

    A traceback with library frames only keeps its last frame.
    """
    out: list[str] = []
    frames: list[list[str]] = []
    for line in (*without_noise(lines), ""):
        frame = _FRAME.match(line)
        if frame:
            frames.append([line])
        elif frames and _is_of(line, frames[-1]):
            frames[-1].append(line)
        else:
            out += _shortened(frames)
            frames = []
            out.append(line)
    return out[:-1]


def _is_of(line: str, frame: Sequence[str]) -> bool:
    """Tell whether a line is source code or carets below a frame's first line."""
    first = _FRAME.match(frame[0])
    assert first is not None
    start = (first["rank"] or "") + first["indent"] + " "
    return line.startswith(start)


def _shortened(frames: Sequence[Sequence[str]]) -> list[str]:
    ours = [not _LIBRARY.search(_path(frame)) for frame in frames]
    if frames and not any(ours):
        ours[-1] = True
    out: list[str] = []
    skipped = 0
    for frame, keep in zip(frames, ours, strict=True):
        if not keep:
            skipped += 1
            continue
        out += _skipped(skipped)
        skipped = 0
        out += frame
    return out + _skipped(skipped)


def _path(frame: Sequence[str]) -> str:
    found = _FRAME.match(frame[0])
    return found["path"] if found else ""


def _skipped(count: int) -> list[str]:
    return [f"  … {count} library {'frame' if count == 1 else 'frames'}"] if count else []
