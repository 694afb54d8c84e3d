"""Chooses the columns of a table that fit: a narrow terminal gets fewer columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

GAP = 2
"""Spaces after a column."""


def columns(
    rows: Sequence[Mapping[str, str]],
    wanted: Sequence[str],
    width: int,
    *,
    enough: Mapping[str, int],
) -> dict[str, int]:
    """Return the columns that fit, and the width of each.

    Args:
        rows: the cells, by column.
        wanted: the columns, the most important first; the first is always shown. A column that
            is empty in every row is left out.
        width: the width of the terminal.
        enough: for a column that may be cut or wrapped, the width that must fit.
    """
    natural = {title: max(len(title), *(len(row[title]) for row in rows)) for title in wanted}
    widths: dict[str, int] = {}
    for title, needed in natural.items():
        if not any(row[title] for row in rows):
            continue
        least = min(needed, enough.get(title, needed))
        if widths and sum(widths.values()) + GAP * len(widths) + least > width:
            break
        widths[title] = least
    left = width - sum(widths.values()) - GAP * len(widths)
    for title, least in widths.items():
        more = max(0, min(left, natural[title] - least))
        widths[title] = least + more
        left -= more
    return widths
