"""Makes nodes and ranks to lines of a table: equal ones become one. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import field, replace

from clusterctl.inventory.ranges import name_hosts
from clusterctl.logs.ranks import fold_ranks
from clusterctl.report.status import size
from clusterctl.report.top.look import Target
from clusterctl.values import dataclass
from clusterctl.verbs.top.snapshot import Top, TopNode
from clusterctl.verbs.top.use import NodeNow, RankNow, Trend

ALIKE = 10.0
"""Percent of use by which equal nodes differ at most."""
BAD = {
    "failed": 90, "lost": 90, "unreachable": 80, "hung": 70, "absent": 60, "stopping": 50,
    "left out": 40, "starting": 30, "stopped": 20,
}  # fmt: skip
"""How much a state needs attention."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
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


def node_line(top: Top, one: TopNode) -> Line:
    """Return the line of a node."""
    answer, now = one.answer, one.now or NodeNow(time=0.0)
    name = answer.node.name
    ranks = [each.rank for each in answer.ranks]
    slow = [each for node, each in top.status.stragglers if node == name]
    fell = [each for node, each in top.status.fell if node == name]
    awaited = [rank for rank in ranks if rank in _awaited(top)]
    notes = [f"rank {fold_ranks(awaited)}: others wait"] if awaited else []
    notes += [f"rank {each.rank} slow ({each.lost_percent} %)" for each in slow]
    notes += [f"use fell to {each.now:.0f} %" for each in fell]
    notes += [f"slowed: {now.slowed}"] if now.slowed else []
    why = answer.error or (answer.end.reason if answer.end else "")
    if answer.left_out:
        why = answer.left_out.why
    notes += [str(why)] if why else []
    use = now.percent if now.percent is not None else now.cpu_percent
    bad = float(BAD.get(one.state, 0)) + 20 * bool(slow or awaited) + 10 * bool(fell or now.slowed)
    total = now.gpu_memory_total_bytes or now.memory_total_bytes
    used = now.gpu_memory_bytes or now.memory_bytes
    return Line(
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


def _awaited(top: Top) -> Collection[int | None]:
    """Return the ranks for which the others of a hung run wait, as the verdict has it."""
    verdict = top.status.verdict if top.status.hung else None
    return verdict.ranks if verdict else ()


def rank_line(top: Top, node: TopNode, one: RankNow) -> Line:
    """Return the line of a rank, or of a GPU whose rank is unknown."""
    name = node.answer.node.name
    label = f"rank {one.rank}" if one.rank is not None else f"GPU {one.gpu}"
    notes = ["others wait"] if one.rank in _awaited(top) else []
    notes += [
        f"slow ({each.lost_percent} %): {each.reason}"
        for where, each in top.status.stragglers
        if (where, each.rank) == (name, one.rank)
    ]
    notes += [f"slowed: {one.slowed}"] if one.slowed else []
    known = next((each for each in node.answer.ranks if each.rank == one.rank), None)
    state = known.state if known else ""
    use = one.percent if one.percent is not None else one.cpu_percent
    on_gpu = one.gpu is not None
    return Line(
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


def folded(lines: Sequence[Line]) -> Iterator[Line]:
    """Yield lines in their order; equal ones as one, at the place of the first."""
    groups: dict[tuple[str, ...], list[Line]] = {}
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


def _alike(line: Line, other: Line) -> bool:
    if not line.use or not other.use:
        return line.use == other.use
    return abs(line.use[0] - other.use[0]) <= ALIKE / 2


def _as_one(lines: Sequence[Line]) -> Line:
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
