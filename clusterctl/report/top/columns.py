"""Lays a table out: the most important columns get room first. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from clusterctl.report.console import safe_line
from clusterctl.report.status import STYLES
from clusterctl.report.top.look import Look
from clusterctl.report.top.rows import BAD, Line
from clusterctl.verbs.top.use import Trend

_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII = "_.-:=+*#"
_TREND = 12
"""Characters of a sparkline; with room, twice as many."""
_LEAST_NOTE, _LONGEST_NAME = 16, 28
_GAP = "  "
_Column = tuple[str, str, bool]
"""Key, heading, and whether it is a number."""
_COLUMNS: tuple[_Column, ...] = (
    ("name", "node", False), ("state", "state", False), ("ranks", "ranks", False),
    ("gpu", "GPU", True), ("trend", "", False), ("gpu memory", "GPU mem", True),
    ("power", "power", True), ("temp", "temp", True), ("cpu", "CPU", True),
    ("memory", "memory", True), ("net in", "net in", True), ("net out", "net out", True),
    ("read", "read", True), ("write", "write", True),
)  # fmt: skip
_IMPORTANT = (
    "name", "state", "gpu", "trend", "cpu", "gpu memory", "memory", "temp", "power", "net in",
    "net out", "write", "read", "ranks",
)  # fmt: skip
"""The order in which columns get room."""


def laid_out(lines: Sequence[Line], look: Look, selected: int) -> list[Text]:
    """Return the heading and the lines, with the columns that have room."""
    length = 2 * _TREND if look.width >= 150 else _TREND  # noqa: PLR2004
    rows = [
        {
            **line.cells,
            "name": safe_line(line.name),
            "state": line.state,
            "trend": _sparkline(line.trend, length, blocks=look.blocks),
        }
        for line in lines
    ]
    widths = {
        key: max([cell_len(row.get(key, "")) for row in rows], default=0) for key in _IMPORTANT
    }
    noted = any(line.note for line in lines)
    if not noted and look.height is not None:
        widths["name"] = min(widths["name"], max(_LONGEST_NAME, look.width // 3))
    elif noted:
        widths["name"] = min(widths["name"], _LONGEST_NAME)
    room = look.width - (_LEAST_NOTE if noted else 0)
    chosen: set[str] = set()
    headings = {key: heading for key, heading, _ in _COLUMNS}
    for key in _IMPORTANT:
        if widths[key]:
            widths[key] = max(widths[key], cell_len(headings[key]))
            if room >= widths[key] or key == "name":
                chosen.add(key)
                room -= widths[key] + len(_GAP)
    columns = [column for column in _COLUMNS if column[0] in chosen]

    def line_of(cell: Callable[[str], str], note: str) -> str:
        parts = (_padded(cell(key), widths[key], right=number) for key, _heading, number in columns)
        return _GAP.join([*parts, note]).rstrip()

    found = [
        fit(Text(line_of(headings.__getitem__, "" if not noted else "note"), "dim"), look.width)
    ]
    for place, (line, row) in enumerate(zip(lines, rows, strict=True)):
        text = line_of(lambda key, row=row: row.get(key, ""), safe_line(line.note))  # type: ignore[misc]
        style = STYLES.get(line.state, "") if line.bad >= min(BAD.values()) else ""
        style = style or ("yellow" if line.bad else "")
        found.append(fit(Text(text, "reverse" if place == selected else style), look.width))
    return found


def _sparkline(trend: Trend, length: int, *, blocks: bool) -> str:
    """Return how use was, the newest last: each character is a mean of some samples."""
    if not any(value is not None for value in trend):
        return ""
    step = max(1, -(-len(trend) // length))
    marks = _BLOCKS if blocks else _ASCII
    highest = max(100.0, *(value for value in trend if value is not None))
    found = []
    start = len(trend) % step
    groups = [trend[:start]] if start else []
    groups += [trend[place : place + step] for place in range(start, len(trend), step)]
    for group in groups[-length:]:
        known = [value for value in group if value is not None]
        level = sum(known) / len(known) / highest if known else 0.0
        found.append(marks[min(len(marks) - 1, int(level * len(marks)))] if known else " ")
    return "".join(found).rjust(length)


def fit(text: Text, width: int) -> Text:
    """Return a text of at most a width."""
    text.truncate(width, overflow="ellipsis")
    text.no_wrap = True
    return text


def _padded(text: str, width: int, *, right: bool) -> str:
    length = cell_len(text)
    if length > width:
        return set_cell_size(text, width - 1) + "…"
    return " " * (width - length) + text if right else text + " " * (width - length)
