"""Shows a run at a moment as lines of at most a width: worst first, equal nodes as one. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field, replace

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from clusterctl.inventory.ranges import name_hosts
from clusterctl.logs.ranks import fold_ranks
from clusterctl.report.console import safe_line
from clusterctl.report.lines import age
from clusterctl.report.status import STYLES, fall, pace_words, size, slow_rank
from clusterctl.values import dataclass
from clusterctl.verbs.top.snapshot import Top, TopNode
from clusterctl.verbs.top.use import NodeNow, RankNow, Trend

SORTS = ("worst", "name", "use", "memory")
"""The orders of nodes, in which the key s turns."""
FOLDED_NODES = 8
"""Of more nodes, equal ones become one line."""
ALIKE = 10.0
"""Percent of use by which equal nodes differ at most."""
_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII = "_.-:=+*#"
_TREND = 12
"""Characters of a sparkline; with room, twice as many."""
_LEAST_NOTE, _LONGEST_NAME = 16, 28
_LEAST_LINES = 3
"""Of the log."""
_MOST_PROBLEMS = 4
_GAP = "  "
_BAD = {
    "failed": 90, "lost": 90, "unreachable": 80, "hung": 70, "absent": 60, "stopping": 50,
    "left out": 40, "starting": 30, "stopped": 20,
}  # fmt: skip
"""How much a state needs attention."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How it is shown; keys change that."""

    width: int
    height: int | None = None
    """None: as many lines as it takes."""
    sort: str = SORTS[0]
    fold: bool | None = None
    """None: if there are many nodes."""
    open: frozenset[str] = frozenset()
    """Nodes whose ranks are shown."""
    all_open: bool | None = None
    """None: if all lines have room."""
    selected: int = 0
    help: str = ""
    """What keys do; empty: there are none."""
    blocks: bool = True
    """The terminal can show Unicode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a line stands for."""

    nodes: tuple[str, ...]
    ranks: tuple[int, ...] = ()
    """Empty: all of the node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """A line of the table."""

    target: Target
    name: str
    state: str = ""
    use: tuple[float, ...] = ()
    """Of the GPUs, the least and the most of what is folded."""
    cells: dict[str, str] = field(default_factory=dict)
    trend: Trend = ()
    note: str = ""
    bad: float = 0.0
    memory: float = 0.0
    group: tuple[str, ...] = ()
    """Lines of the same group may be folded."""


def render(top: Top, look: Look) -> tuple[list[Text], list[Target]]:
    """Return the lines, and what those stand for that can be selected."""
    head = [each[: look.width] for each in _head(top, look.width)]
    table, targets = _table(top, look, used=len(head))
    lines = [*head, *table]
    room = None if look.height is None else look.height - len(lines) - bool(look.help)
    lines += _log(top, look, room)
    if look.help:
        if look.height is not None:
            lines = lines[: look.height - 1]
            lines += [Text()] * (look.height - 1 - len(lines))
        lines.append(_fit(Text(look.help, "reverse"), look.width))
    return lines, targets


def _head(top: Top, width: int) -> Iterator[Text]:
    """Yield what is known of the whole run."""
    view = top.status
    answering = sum(not one.answer.error for one in top.nodes)
    total = sum(len(one.answer.ranks) for one in top.nodes)
    began = f", {age(top.time - view.began)}" if view.began else ""
    text = Text(safe_line(view.title), "bold")
    text.append(f"  {top.state}", STYLES.get(top.state, ""))
    attempt = f", attempt {view.attempt} of {view.attempts}" if view.attempts > 1 else ""
    text.append(f"{began}, {answering}/{len(top.nodes)} nodes, {total} ranks{attempt}")
    yield _fit(text, width)
    parts = [pace_words(top.progress)]
    if top.progress:
        loss, tokens = top.progress.loss, top.progress.tokens_per_s
        parts += [f"loss {loss:.4g}"] if loss is not None else []
        parts += [f"{tokens:.0f} tok/s"] if tokens is not None else []
    if any(parts):
        yield _fit(Text(", ".join(filter(None, parts))), width)
    parts = []
    if top.printed_age_s is not None:
        parts.append(f"printed {age(top.printed_age_s)} ago")
    one = view.checkpoint
    if one:
        step = "" if one.step is None else f" (step {one.step})"
        when = "" if top.checkpoint_age_s is None else f" {age(top.checkpoint_age_s)} ago"
        parts.append(f"checkpoint{when}{step}")
    elif view.checkpoints:
        parts.append("no checkpoint yet")
    if parts:
        yield _fit(Text(safe_line(", ".join(parts))), width)
    problems = list(_problems(top))
    for style, words in problems[:_MOST_PROBLEMS]:
        yield _fit(Text(safe_line(words), style), width)
    if len(problems) > _MOST_PROBLEMS:
        yield _fit(Text(f"and {len(problems) - _MOST_PROBLEMS} more", "yellow"), width)


def _problems(top: Top) -> Iterator[tuple[str, str]]:
    view = top.status
    if view.hung:
        quiet = age(max(0.0, top.time - view.hung.since))
        yield "red", f"hung: no rank has shown a sign of life for {quiet}"
    if view.verdict and view.verdict.kind != "unknown":
        yield "red", view.verdict.text
    if view.first_cause:
        cause = view.first_cause
        where = cause.node if cause.rank is None else f"{cause.node}:{cause.rank}"
        yield "red", f"first cause: {where}: {cause.message}"
    for node, straggler in sorted(view.stragglers, key=lambda each: -each[1].lost_percent):
        yield "yellow", slow_rank(node, straggler)
    if view.fell:
        yield "yellow", fall(view.fell)


def _table(top: Top, look: Look, *, used: int) -> tuple[list[Text], list[Target]]:
    """Return the lines of nodes and ranks, with their heading, and their targets."""
    nodes = [_node_line(top, one) for one in top.nodes]
    order = {name: place for place, name in enumerate(one.answer.node.name for one in top.nodes)}
    nodes.sort(key=lambda one: _order(one, look.sort, order))
    of_node = {one.answer.node.name: one for one in top.nodes}
    fold = len(nodes) > FOLDED_NODES if look.fold is None else look.fold
    room = None if look.height is None else look.height - used - 2 - _LEAST_LINES
    wanted = len(nodes) + sum(len(one.now.ranks) for one in top.nodes if one.now)
    fits = len(nodes) <= FOLDED_NODES if room is None else wanted <= room
    all_open = (fits and not fold) if look.all_open is None else look.all_open
    lines: list[_Line] = []
    for line in _folded(nodes) if fold else nodes:
        lines.append(line)
        (name, *more) = line.target.nodes
        if not more and (all_open or name in look.open):
            ranks = [_rank_line(top, of_node[name], one) for one in _ranks(of_node[name])]
            ranks.sort(key=lambda one: -one.bad)
            lines += _folded(ranks) if fold else ranks
    selected = min(max(look.selected, 0), len(lines) - 1) if look.help else -1
    shown, first = lines, 0
    if room is not None and len(lines) > room:
        most = max(1, room - 1)
        first = max(0, min(selected - most // 2, len(lines) - most))
        shown = lines[first : first + most]
    found = _laid_out(shown, look, selected - first)
    left = len(lines) - len(shown)
    if left:
        below = len(lines) - first - len(shown)
        where = f"{first} lines above, {below} below" if first else f"{below} more lines"
        found.append(_fit(Text(where, "dim"), look.width))
    return found, [line.target for line in lines]


def _order(line: _Line, sort: str, order: dict[str, int]) -> tuple[float, float]:
    place = float(order[line.target.nodes[0]])
    if sort == "use":
        return (line.use[0] if line.use else -1.0), place
    if sort == "memory":
        return -line.memory, place
    return (-line.bad if sort == "worst" else 0.0), place


def _ranks(one: TopNode) -> Sequence[RankNow]:
    """Return the ranks of a node; until it has sent a sample, only their numbers."""
    if one.now and one.now.ranks:
        return one.now.ranks
    return [RankNow(rank=each.rank) for each in one.answer.ranks]


def _node_line(top: Top, one: TopNode) -> _Line:
    answer, now = one.answer, one.now or NodeNow(time=0.0)
    name = answer.node.name
    ranks = [each.rank for each in answer.ranks]
    slow = [each for node, each in top.status.stragglers if node == name]
    fell = [each for node, each in top.status.fell if node == name]
    notes = [f"rank {each.rank} slow ({each.lost_percent} %)" for each in slow]
    notes += [f"use fell to {each.now:.0f} %" for each in fell]
    notes += [f"slowed: {now.slowed}"] if now.slowed else []
    why = answer.error or (answer.end.reason if answer.end else "")
    if answer.left_out:
        why = answer.left_out.why
    notes += [str(why)] if why else []
    use = now.percent if now.percent is not None else now.cpu_percent
    bad = float(_BAD.get(one.state, 0)) + 20 * bool(slow) + 10 * bool(fell or now.slowed)
    total = now.gpu_memory_total_bytes or now.memory_total_bytes
    used = now.gpu_memory_bytes or now.memory_bytes
    return _Line(
        target=Target(nodes=(name,)),
        name=name,
        state=one.state,
        use=() if use is None else (use,),
        cells={
            "ranks": fold_ranks(ranks),
            "gpu": _percent(now.percent),
            "cpu": _percent(now.cpu_percent),
            "memory": _amount(now.memory_bytes),
            "gpu memory": _share(now.gpu_memory_bytes, now.gpu_memory_total_bytes),
            "power": "" if now.watts is None else f"{now.watts:.0f} W",
            "temp": "" if now.celsius is None else f"{now.celsius:.0f} °C",
            "net in": _rate(now.receive_bytes_s),
            "net out": _rate(now.send_bytes_s),
            "read": _rate(now.read_bytes_s),
            "write": _rate(now.write_bytes_s),
        },
        trend=now.trend,
        note="; ".join(notes),
        bad=bad,
        memory=used / total if used and total else 0.0,
        group=("node", one.state) if not notes else (),
    )


def _rank_line(top: Top, node: TopNode, one: RankNow) -> _Line:
    name = node.answer.node.name
    label = f"rank {one.rank}" if one.rank is not None else f"GPU {one.gpu}"
    notes = [
        f"slow ({each.lost_percent} %): {each.reason}"
        for where, each in top.status.stragglers
        if (where, each.rank) == (name, one.rank)
    ]
    notes += [f"slowed: {one.slowed}"] if one.slowed else []
    known = next((each for each in node.answer.ranks if each.rank == one.rank), None)
    state = known.state if known else ""
    use = one.percent if one.percent is not None else one.cpu_percent
    on_gpu = one.gpu is not None
    return _Line(
        target=Target(nodes=(name,), ranks=() if one.rank is None else (one.rank,)),
        name=f"  {label}",
        state=state,
        use=() if use is None else (use,),
        cells={
            "ranks": f"GPU {one.gpu}" if on_gpu and one.rank is not None else "",
            "gpu": _percent(one.percent),
            "cpu": _percent(one.cpu_percent),
            "memory": "" if on_gpu else _amount(one.memory_bytes),
            "gpu memory": _share(one.memory_bytes, one.memory_total_bytes) if on_gpu else "",
            "power": "" if one.watts is None else f"{one.watts:.0f} W",
            "temp": "" if one.celsius is None else f"{one.celsius:.0f} °C",
        },
        trend=one.trend,
        note="; ".join(notes),
        bad=10.0 * bool(notes),
        group=("rank", state) if not notes and one.rank is not None else (),
    )


def _folded(lines: Sequence[_Line]) -> Iterator[_Line]:
    """Yield lines in their order; equal ones as one, at the place of the first."""
    groups: dict[tuple[str, ...], list[_Line]] = {}
    for line in lines:
        groups.setdefault(line.group, []).append(line)
    done: set[int] = set()
    for line in lines:
        if id(line) in done:
            continue
        alike = [line]
        if line.group:
            alike = [one for one in groups[line.group] if id(one) not in done and _alike(line, one)]
        done.update(map(id, alike))
        yield line if len(alike) == 1 else _as_one(alike)


def _alike(line: _Line, other: _Line) -> bool:
    if not line.use or not other.use:
        return line.use == other.use
    return abs(line.use[0] - other.use[0]) <= ALIKE / 2


def _as_one(lines: Sequence[_Line]) -> _Line:
    """Return equal lines as one, with their count; numbers are those of the least and the most."""
    first = lines[0]
    nodes = tuple(dict.fromkeys(name for line in lines for name in line.target.nodes))
    ranks = tuple(rank for line in lines for rank in line.target.ranks)
    name = f"  ranks {fold_ranks(ranks)}" if ranks else name_hosts(nodes)
    if not ranks:
        name = f"{len(nodes)} nodes: {name}"
    cells = {}
    for key in first.cells:
        texts = [line.cells.get(key, "") for line in lines]
        cells[key] = texts[0] if len(set(texts)) == 1 else _between(texts)
    longest = max((line.trend for line in lines), key=len)
    return replace(
        first, target=Target(nodes=nodes, ranks=ranks), name=name, cells=cells, trend=longest
    )


def _between(texts: Sequence[str]) -> str:
    """Return `91-99 %` of texts that begin with numbers in the same unit; else a middle one."""
    parts = [text.partition(" ") for text in texts if text]
    numbers = sorted(parts, key=lambda part: _number(part[0]))
    if not numbers or any(part[2] != parts[0][2] or "/" in part[0] for part in parts):
        return ""
    least, most = numbers[0][0], numbers[-1][0]
    return f"{least} {parts[0][2]}" if least == most else f"{least}-{most} {parts[0][2]}"


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


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


def _laid_out(lines: Sequence[_Line], look: Look, selected: int) -> list[Text]:
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
        _fit(Text(line_of(headings.__getitem__, "" if not noted else "note"), "dim"), look.width)
    ]
    for place, (line, row) in enumerate(zip(lines, rows, strict=True)):
        text = line_of(lambda key, row=row: row.get(key, ""), safe_line(line.note))  # type: ignore[misc]
        style = STYLES.get(line.state, "") if line.bad >= min(_BAD.values()) else ""
        style = style or ("yellow" if line.bad else "")
        found.append(_fit(Text(text, "reverse" if place == selected else style), look.width))
    return found


def _log(top: Top, look: Look, room: int | None) -> Iterable[Text]:
    """Return the last lines of the log that was written last."""
    lines = top.lines[-_LEAST_LINES:] if room is None else top.lines[-max(0, room - 1) :]
    if not lines or (room is not None and room < 2):  # noqa: PLR2004
        return []
    found = [Text()] if room is None or room > len(lines) else []
    where = f"[{safe_line(top.lines_of)}] "
    return [*found, *(_fit(Text(where + safe_line(line)), look.width) for line in lines)]


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


def _fit(text: Text, width: int) -> Text:
    text.truncate(width, overflow="ellipsis")
    text.no_wrap = True
    return text


def _padded(text: str, width: int, *, right: bool) -> str:
    length = cell_len(text)
    if length > width:
        return set_cell_size(text, width - 1) + "…"
    return " " * (width - length) + text if right else text + " " * (width - length)


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0f} %"


def _amount(value: float | None) -> str:
    return "" if value is None else size(int(value))


def _share(used: float | None, total: float | None) -> str:
    """Return `71/80 GiB`."""
    if used is None:
        return ""
    return f"{used / (1 << 30):.0f}/{total / (1 << 30):.0f} GiB" if total else size(int(used))


def _rate(value: float | None) -> str:
    """Return bytes a second, in three digits and a unit."""
    if value is None:
        return ""
    for unit in ("B/s", "kB/s", "MB/s"):
        if value < 1000:  # noqa: PLR2004
            return f"{value:.0f} {unit}"
        value /= 1000
    return f"{value:.1f} GB/s"
