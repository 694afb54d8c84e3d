"""Shows a run at a moment as lines of at most a width: worst first, equal nodes as one. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.text import Text

from clusterctl.report.console import safe_line
from clusterctl.report.lines import age
from clusterctl.report.status import STYLES, fall, pace_words, slow_rank
from clusterctl.report.top.columns import fit, laid_out
from clusterctl.report.top.look import Look, Target
from clusterctl.report.top.rows import Line, folded, node_line, rank_line
from clusterctl.verbs.top.snapshot import Top, TopNode
from clusterctl.verbs.top.use import RankNow

FOLDED_NODES = 8
"""Of more nodes, equal ones become one line."""
_LEAST_LINES = 3
"""Of the log."""
_MOST_PROBLEMS = 4


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
        lines.append(fit(Text(look.help, "reverse"), look.width))
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
    yield fit(text, width)
    parts = [pace_words(top.progress)]
    if top.progress:
        loss, tokens = top.progress.loss, top.progress.tokens_per_s
        parts += [f"loss {loss:.4g}"] if loss is not None else []
        parts += [f"{tokens:.0f} tok/s"] if tokens is not None else []
    if any(parts):
        yield fit(Text(", ".join(filter(None, parts))), width)
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
        yield fit(Text(safe_line(", ".join(parts))), width)
    problems = list(_problems(top))
    for style, words in problems[:_MOST_PROBLEMS]:
        yield fit(Text(safe_line(words), style), width)
    if len(problems) > _MOST_PROBLEMS:
        yield fit(Text(f"and {len(problems) - _MOST_PROBLEMS} more", "yellow"), width)


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
    nodes = [node_line(top, one) for one in top.nodes]
    order = {name: place for place, name in enumerate(one.answer.node.name for one in top.nodes)}
    nodes.sort(key=lambda one: _order(one, look.sort, order))
    of_node = {one.answer.node.name: one for one in top.nodes}
    fold = len(nodes) > FOLDED_NODES if look.fold is None else look.fold
    room = None if look.height is None else look.height - used - 2 - _LEAST_LINES
    wanted = len(nodes) + sum(len(one.now.ranks) for one in top.nodes if one.now)
    fits = len(nodes) <= FOLDED_NODES if room is None else wanted <= room
    all_open = (fits and not fold) if look.all_open is None else look.all_open
    lines: list[Line] = []
    for line in folded(nodes) if fold else nodes:
        lines.append(line)
        (name, *more) = line.target.nodes
        if not more and (all_open or name in look.open):
            ranks = [rank_line(top, of_node[name], one) for one in _ranks(of_node[name])]
            ranks.sort(key=lambda one: -one.bad)
            lines += folded(ranks) if fold else ranks
    selected = min(max(look.selected, 0), len(lines) - 1) if look.help else -1
    shown, first = lines, 0
    if room is not None and len(lines) > room:
        most = max(1, room - 1)
        first = max(0, min(selected - most // 2, len(lines) - most))
        shown = lines[first : first + most]
    found = laid_out(shown, look, selected - first)
    left = len(lines) - len(shown)
    if left:
        below = len(lines) - first - len(shown)
        where = f"{first} lines above, {below} below" if first else f"{below} more lines"
        found.append(fit(Text(where, "dim"), look.width))
    return found, [line.target for line in lines]


def _order(line: Line, sort: str, order: dict[str, int]) -> tuple[float, float]:
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


def _log(top: Top, look: Look, room: int | None) -> Iterable[Text]:
    """Return the last lines of the log that was written last."""
    lines = top.lines[-_LEAST_LINES:] if room is None else top.lines[-max(0, room - 1) :]
    if not lines or (room is not None and room < 2):  # noqa: PLR2004
        return []
    found = [Text()] if room is None or room > len(lines) else []
    where = f"[{safe_line(top.lines_of)}] "
    return [*found, *(fit(Text(where + safe_line(line)), look.width) for line in lines)]
