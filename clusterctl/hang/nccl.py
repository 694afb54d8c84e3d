"""Says by what NCCL itself knows which ranks the others wait for."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace

from clusterctl.hang.doing import Doing, spot
from clusterctl.hang.kinds import NETWORK, shown_address
from clusterctl.hang.look import Look, agree, blame, does, lasting, named, who, whole_stack
from clusterctl.logs.watchdog import BRANCHED
from clusterctl.model.dump import Communicator, Launches, NcclRank
from clusterctl.model.verdict import Verdict

_MOST_STRANGERS = 3
"""Ranks of which no node tells that are named."""


def launches(look: Look) -> Verdict | None:
    """Say which ranks have launched fewer collectives than others of their communicator."""
    for one in _steady(look):
        uneven = [each for each in one.launches if each.least < each.most]
        if not uneven:
            continue
        first = uneven[0]
        ranks, words = _ranks(look, one, first.behind)
        where = ""
        if ranks and ranks[0].own:
            where = f" {agree(does(ranks[0]), ranks)} at {spot(ranks[0].where)} and"
        text = f"{words}{where} {_launched(first)}{lasting(ranks) if ranks else ''}"
        remedy = whole_stack(ranks) if ranks else ""
        other = next((each for each in uneven if each.behind != first.behind), None)
        if other:
            _, words = _ranks(look, one, other.behind)
            text += f"; {words} {_launched(other)}: they took different branches"
            remedy = BRANCHED
        return blame("launches", ranks, f"{text}{look.others(ranks)}", remedy)
    return None


def unreached(look: Look) -> Verdict | None:
    """Say which ranks NCCL does not reach."""
    found = next((one for one in _steady(look) if one.unreached), None)
    if found is None:
        return None
    ranks, words = _ranks(look, found, found.unreached)
    verb, counts = ("is", "counts") if len(found.unreached) == 1 else ("are", "count")
    dead = f" and {counts} as dead there" if all(each.dead for each in found.unreached) else ""
    text = f"{words} {verb} not reached by NCCL's status service{dead}"
    text += lasting(ranks) if ranks else ""
    if not look.missing:
        return blame("unreached", ranks, f"{text}{look.others(ranks)}", NETWORK)
    text += f"; {named(look.missing)} told no stacks"
    remedy = f"clusterctl check --nodes {shlex.quote(','.join(look.missing))}"
    verdict = blame("unreached", ranks, f"{text}{look.others(ranks)}", remedy)
    return replace(verdict, nodes=tuple(dict.fromkeys((*verdict.nodes, *look.missing))))


def _steady(look: Look) -> Iterator[Communicator]:
    """Yield the communicators that did not change while NCCL was asked."""
    return (one for node in look.nodes for one in node.communicators if not one.moves)


def _ranks(look: Look, one: Communicator, members: Sequence[NcclRank]) -> tuple[list[Doing], str]:
    """Return those of these ranks that a node tells of, and words for all."""
    # In a container, NCCL knows a process by another number.
    processes = {(each.node, p.pid): each for each in look.ranks for p in each.dump.processes}
    # Programs of one rank share its dump: each is its own process's.
    processes |= {(each.node, each.own.pid): each for each in look.ranks if each.own}
    nodes = (look.owners.get(each.host, set()) for each in members)
    found = [
        (each, processes.get((next(iter(claims)), each.pid)) if len(claims) == 1 else None)
        for each, claims in zip(members, nodes, strict=True)
    ]
    known = {id(doing): doing for _, doing in found if doing}
    ranks = sorted(known.values(), key=lambda doing: doing.rank)
    strangers = [each for each, doing in found if doing is None]
    of = f" of {one.size}" if one.size else ""
    parts = [who(ranks)] if ranks else []
    parts += [
        f"NCCL's rank {each.rank}{of} (process {each.pid} on {shown_address(each.host)})"
        for each in strangers[:_MOST_STRANGERS]
    ]
    if len(strangers) > _MOST_STRANGERS:
        parts.append(f"{len(strangers) - _MOST_STRANGERS} more")
    return ranks, " and ".join(parts) or "one of NCCL's ranks"


def _launched(one: Launches) -> str:
    kind = f"{one.operation} collectives" if one.operation else "collectives"
    return f"launched {one.least} {kind}, others up to {one.most}"
