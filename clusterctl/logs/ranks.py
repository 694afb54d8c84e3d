"""Parses and prints sets of ranks such as `0-3,7`."""

from collections.abc import Iterable

MOST = 1_000_000
"""Larger ranks are typing errors."""


def fold_ranks(ranks: Iterable[int]) -> str:
    """Return ranks in order, with ranges as `first-last`."""
    spans: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if spans and spans[-1][1] == rank - 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


def name_ranks(ranks: Iterable[int]) -> str:
    """Return ranks for a sentence: `rank 3`, `ranks 0-3`, `no rank`."""
    folded = fold_ranks(ranks)
    if not folded:
        return "no rank"
    return f"rank {folded}" if folded.isdecimal() else f"ranks {folded}"


def parse_ranks(text: str) -> frozenset[int]:
    """Parse ranks such as `0-3,7`; raise ValueError if it is not a list of ranks."""
    ranks: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(f"expected ranks such as 0-3,7, found {text!r}")
        begin, end = int(first), int(last if dash else first)
        if end >= MOST:
            raise ValueError(f"expected ranks below {MOST}, found {part.strip()[:20]!r}")
        if end < begin:
            raise ValueError(f"expected ranks in ascending order, found {part.strip()!r}")
        ranks.update(range(begin, end + 1))
    return frozenset(ranks)
