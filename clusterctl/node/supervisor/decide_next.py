"""The master's decision after a failed attempt, from what all nodes have told."""

from __future__ import annotations

import shlex
import time
from collections import Counter
from typing import Any, Collection, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from clusterctl.node.file_io import read_json
from clusterctl.node.peer_link.messages import PeerMessage
from clusterctl.node.peer_link.restart_messages import WHY_LIMIT
from clusterctl.node.restart.agreement import Checkpoint, agree, read_sight
from clusterctl.node.restart.blame import blamed
from clusterctl.node.restart.judgement import AttemptEnd, Decision, Failure, decide, unfit_nodes
from clusterctl.node.restart.lineup import NoLineupError, lineup_of
from clusterctl.node.restart.own_rules import FoundPatterns
from clusterctl.node.run.files.node_job import NodeJob, Seat, run_attempt
from clusterctl.node.run.files.run_files import write_json
from clusterctl.node.run.files.run_paths import NodePaths
from clusterctl.node.supervisor.shutdown import Cause, first_of

MOST_KEPT = 100
"""Attempts whose ends are kept."""


class Decided(NamedTuple):
    """What becomes of the run, and where the next attempt begins."""

    decision: Decision
    """Its `without` has the spares, too, that cannot stand by any longer."""
    checkpoint: Optional[Checkpoint]
    end: AttemptEnd
    lacks: bool = False
    """It ends because too few nodes are left."""
    joined: Tuple[Seat, ...] = ()
    """The nodes that have joined and are fit."""
    way_on: str = ""
    """The command for a run that only other nodes would help, as the end of `why`."""


def decide_next(
    job: NodeJob,
    paths: NodePaths,
    causes: Sequence[Cause],
    afters: Mapping[str, PeerMessage],
    patterns: FoundPatterns,
    lost: Sequence[str] = (),
    joined: Sequence[Seat] = (),
    known: Optional[AttemptEnd] = None,
) -> Decided:
    """Decide by what all nodes told, the master first; keep the ends of all attempts.

    `patterns`: which of the job's are in what failed. `lost` are the nodes that fell silent, and
    `joined` those that have come since. `known`: how the attempt ended, if that was decided before.

    Raises:
        ValueError: a node told what cannot be.
        OSError: the ends cannot be written, so the next attempt would not know of this one.
    """
    limits, spares = job["restart"], [*(job.get("spares") or ()), *(one["node"] for one in joined)]
    assert limits is not None
    end = attempt_end(job, causes, afters, lost, job.get("spares") or ())
    end = end._replace(patterns=patterns)
    if known is not None:
        end = known._replace(lost=tuple(dict.fromkeys((*known.lost, *end.lost))))
    ends = [*read_ends(paths, before=run_attempt(job)), end]
    sights = {node: read_sight(after["sight"]) for node, after in afters.items()}
    own_checks = {node: after["check"] for node, after in afters.items()}
    broken = unfit_nodes(end, limits, own_checks)
    unreached = {node: one["unreached"] for node, one in afters.items() if node not in broken}
    order = (job["node"], *job["workers"], *(one["node"] for one in joined))
    cut = cut_off(unreached, order, spares)
    all_checks = {
        node: {**check, **({"peers": cut[node]} if node in cut else {})}
        for node, check in own_checks.items()
    }
    checks = {node: check for node, check in all_checks.items() if node not in spares}
    unfit = unfit_nodes(end, limits, checks)
    idle = [one for one in spares if one not in afters or any(all_checks[one].values())]
    without = tuple(dict.fromkeys((*unfit, *idle)))
    fit = tuple(one for one in joined if one["node"] not in idle)
    lacks = False
    try:
        nodes, problem = lineup_of(job, without, fit).nodes, ""
    except NoLineupError as error:
        nodes, problem = tuple(one for one in checks if one not in unfit), str(error)
        lacks = error.lacks
    found = agree({node: sights[node] for node in nodes if node in sights}, job["run"])
    decision = decide(ends, limits, found, checks, seed=job["run"])
    bad = blamed(end, own_checks)  # a dead link may be the fault of either node
    now = {node: {"why": why[:WHY_LIMIT], "time": time.time()} for node, why in bad.items()}
    kept = {**read_json(paths.attempts).get("blamed", {}), **now}
    write_json(
        paths.attempts,
        {"schema": 1, "attempts": [_plain(one) for one in ends[-MOST_KEPT:]], "blamed": kept},
    )
    if decision.action == "end":
        return Decided(decision, found.newest, end)
    if problem:
        why = "%s; %s" % (decision.why, problem)
        decision = decision._replace(action="end", why=why, without=without)
        return Decided(decision, found.newest, end, lacks, way_on=_way_on(job, without))
    decision = decision._replace(action="again", without=without)
    return Decided(decision, found.newest, end, joined=fit)


def _way_on(job: NodeJob, without: Sequence[str]) -> str:
    """Return the command for a run that only other nodes would help; empty: it has no master."""
    if job["node"] in without:
        return ""
    left = [one["node"] for one in job.get("left_out") or ()]
    named = ",".join(map(shlex.quote, dict.fromkeys((*left, *without))))
    words = "; without it: clusterctl resume %s --checkpoint latest --exclude %s"
    return words % (job["run"], named)


def attempt_end(
    job: NodeJob,
    causes: Sequence[Cause],
    afters: Mapping[str, PeerMessage],
    lost: Sequence[str] = (),
    spares: Sequence[str] = (),
) -> AttemptEnd:
    """Return how this attempt ended, as the master knows it; a lost spare ends none."""
    first = first_of(causes)
    steps = [after["step"] for after in afters.values() if after["step"] is not None]
    again: Any = job.get("again") or {}
    start = again.get("start")
    return AttemptEnd(
        attempt=run_attempt(job),
        by=first.by if first else "launcher",
        reason=first.reason if first else "",
        failures=tuple(
            _failure({**failure, "node": node})
            for node, after in afters.items()
            for failure in after["failures"]
        ),
        lost=tuple(node for node in lost if node not in spares),
        stuck=tuple(node for node, after in afters.items() if after["stuck"]),
        blamed=_blamed({node: after for node, after in afters.items() if node not in spares}),
        step=max(steps, default=None),
        start=Checkpoint(**start) if start else None,
    )


def _blamed(afters: Mapping[str, PeerMessage]) -> Tuple[Tuple[str, str], ...]:
    """Return the nodes that may be the reason of a hang; none if all are: then no node is."""
    found = tuple((node, after["blame"]) for node, after in afters.items() if after["blame"])
    return found if len(found) < len(afters) else ()


def _failure(told: Dict[str, Any]) -> Failure:
    return Failure(**{**told, "lines": tuple(told["lines"])})


def _plain(end: AttemptEnd) -> Dict[str, Any]:
    start = end.start._asdict() if end.start else None
    failures = [failure._asdict() for failure in end.failures]
    patterns = end.patterns._asdict()
    return {**end._asdict(), "failures": failures, "start": start, "patterns": patterns}


def read_ends(paths: NodePaths, *, before: int) -> List[AttemptEnd]:
    """Return how earlier attempts ended."""
    kept = read_json(paths.attempts).get("attempts", [])
    ends = []
    for one in kept:
        failures = [_failure(each) for each in one["failures"]]
        start = Checkpoint(**one["start"]) if one["start"] else None
        told: Dict[str, Any] = {name: tuple(one[name]) for name in ("lost", "stuck")}
        told["blamed"] = tuple(map(tuple, one["blamed"]))
        told["patterns"] = FoundPatterns(
            **{name: tuple(each) for name, each in one["patterns"].items()}
        )
        ends.append(AttemptEnd(**{**one, **told, "failures": tuple(failures), "start": start}))
    return [end for end in ends if end.attempt < before]


def cut_off(
    told: Mapping[str, Collection[str]], order: Sequence[str], idle: Collection[str]
) -> Dict[str, str]:
    """Return the nodes without which all others reach each other, each with why.

    A link is dead if both of its nodes name each other: no node puts out another by its word alone.
    Each time the node with the most dead links goes, so that few do. Of equal ones a spare goes
    first, then the one of the higher place.

    Args:
        told: node → the nodes that it does not reach.
        order: the nodes by their places.
        idle: those that stand by. Between two of them no link is needed.
    """
    dead = {
        frozenset((node, other))
        for node, others in told.items()
        for other in others
        if other != node and node in told.get(other, ()) and not {node, other} <= set(idle)
    }
    out: Dict[str, str] = {}
    while dead:
        counts = Counter(node for link in dead for node in link)
        worst = max(counts, key=lambda node: (counts[node], node in idle, order.index(node)))
        others = [node for node in order if frozenset((worst, node)) in dead]
        out[worst] = "it does not reach %s" % ", ".join(others)
        dead = {link for link in dead if worst not in link}
    return out
