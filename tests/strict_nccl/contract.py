"""What one rank is about to do on a group, and how the calls of all its ranks must agree."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

RECORD_BYTES = 512


class ContractBroken(RuntimeError):  # noqa: N818  (as the classes of train/)
    """NCCL would hang, corrupt data or refuse this; the message names ranks and calls."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call on a group, as a rank issues it."""

    op: str
    details: str = ""
    """Reduction, root, dtype and sizes: the same on all ranks."""
    note: str = ""
    """What may differ by rank."""

    def __str__(self) -> str:
        said = ", ".join(part for part in (self.details, self.note) if part)
        return f"{self.op}({said})"

    def record(self) -> bytes:
        """Return this call as all ranks exchange it."""
        text = json.dumps([self.op, self.details, self.note]).encode()
        if len(text) > RECORD_BYTES:
            raise ValueError(f"{self}: expected at most {RECORD_BYTES} bytes, found {len(text)}")
        return text.ljust(RECORD_BYTES)

    @classmethod
    def of(cls, record: bytes) -> Call:
        """Return the call of a record."""
        return cls(*json.loads(record))


def disagreement(calls: Mapping[int, Call]) -> str:
    """Return how the calls of ranks differ; nothing if they agree."""
    if len({(call.op, call.details) for call in calls.values()}) == 1:
        return ""
    said = {rank: str(call) for rank, call in calls.items()}
    return "; ".join(
        f"{named(rank for rank, text in said.items() if text == call)} in {call}"
        for call in dict.fromkeys(said.values())
    )


def unmatched(rank: int, mine: Call, peer: int, theirs: Call) -> str:
    """Return why a send and a receive of a pair do not match; nothing if they do."""
    if {mine.op, theirs.op} == {"send", "recv"} and mine.details == theirs.details:
        return ""
    return f"rank {rank} in {mine}; rank {peer} in {theirs}"


def named(ranks: Iterable[int]) -> str:
    """Return ranks as a message shows them: rank 3, ranks 0-2, 5."""
    listed = sorted(ranks)
    runs: list[Sequence[int]] = [
        [rank for _, rank in run]
        for _, run in groupby(enumerate(listed), lambda place: place[1] - place[0])
    ]
    texts = [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    return f"rank{'s' * (len(listed) > 1)} {', '.join(texts) or 'none'}"
