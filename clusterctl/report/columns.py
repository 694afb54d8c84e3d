"""Which columns of a table have room: on a narrow terminal some are left out, and none is torn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

GAP = 2
"""Spaces behind a column."""
NOTHING_SHORTER: Mapping[str, int] = {}


def columns(
    rows: Sequence[Mapping[str, str]],
    wanted: Sequence[str],
    room: int,
    *,
    enough: Mapping[str, int] = NOTHING_SHORTER,
) -> dict[str, int]:
    """Return the columns that have room, and how wide each may be.

    Args:
        rows: the cells, by column.
        wanted: the columns, the most wanted first; the first is there in any case. One that is
            empty in every row is left out.
        room: of the terminal.
        enough: of a column that may be cut or go on below: how much of it must have room.
    """
    natural = {title: max(len(title), *(len(row[title]) for row in rows)) for title in wanted}
    widths: dict[str, int] = {}
    for title, width in natural.items():
        if not any(row[title] for row in rows):
            continue
        least = min(width, enough.get(title, width))
        if widths and sum(widths.values()) + GAP * len(widths) + least > room:
            break
        widths[title] = least
    left = room - sum(widths.values()) - GAP * len(widths)
    for title, least in widths.items():
        more = max(0, min(left, natural[title] - least))
        widths[title] = least + more
        left -= more
    return widths
