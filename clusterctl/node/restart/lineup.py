"""The nodes of the next attempt if some are left out, and this node's job among them. Pure.

Every supervisor plans this itself, from what the launch sent it: of another node's words only the
names of the nodes to leave out count.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, Sequence, Tuple

from clusterctl.node.launchers.context import LaunchContext
from clusterctl.node.launchers.known import launcher_argv, launcher_variables
from clusterctl.node.run.files.node_job import LeftOut, NodeJob


class NoLineupError(ValueError):
    """The run cannot continue without these nodes: why."""


class Lineup(NamedTuple):
    """Who takes part in an attempt."""

    nodes: Tuple[str, ...]
    """The nodes that run ranks, the master first: the index is the node rank."""
    spares: Tuple[str, ...]
    """Those that stand by."""
    taken: Mapping[str, str]
    """Node that is left out → the spare that has its place."""

    @property
    def supervisors(self) -> Tuple[str, ...]:
        """All nodes with a supervisor of the run."""
        return (*self.nodes, *self.spares)


def next_lineup(
    nodes: Sequence[str],
    spares: Sequence[str],
    procs: Mapping[str, int],
    *,
    without: Sequence[str],
    least: int,
) -> Lineup:
    """Return who takes part without some nodes: a spare of as many ranks takes a node's place.

    Args:
        nodes: who runs ranks now, the master first.
        spares: who stands by now.
        procs: how many ranks each of them has, or would have.
        without: the nodes to leave out, spares too.
        least: with so many nodes the run continues if it lacks spares; 0: it needs all.

    Raises:
        NoLineupError: the master is left out, or too few nodes are left.
    """
    standing = [one for one in spares if one not in without]
    places: List[str] = []
    taken: Dict[str, str] = {}
    lacks: List[str] = []
    for node in nodes:
        spare = next((one for one in standing if procs[one] == procs[node]), None)
        if node not in without:
            places.append(node)
        elif node == nodes[0]:
            raise NoLineupError("%s is the master, which no spare node replaces" % node)
        elif spare is not None:
            standing.remove(spare)
            places.append(spare)
            taken[node] = spare
        else:
            lacks.append(node)
    if lacks and not least:
        raise NoLineupError("no spare node is left for %s" % ", ".join(lacks))
    if lacks and len(places) < least:
        words = "no spare node is left for %s, and %d nodes are fewer than min_nodes (%d)"
        raise NoLineupError(words % (", ".join(lacks), len(places), least))
    return Lineup(tuple(places), tuple(standing), taken)


def lineup_of(job: NodeJob, without: Sequence[str]) -> Lineup:
    """Return who takes part in the attempt after a job's if some nodes are left out.

    Raises:
        NoLineupError: as `next_lineup`, or the nodes of this run are fixed.
    """
    spares = job.get("spares") or []
    nodes = [one for one in (job["master"]["node"], *job["workers"]) if one not in spares]
    lineup = job.get("lineup")
    if lineup is None:
        if without:
            raise NoLineupError("the run has neither spare nodes nor min_nodes")
        return Lineup(tuple(nodes), (), {})
    procs = {seat["node"]: seat["procs"] for seat in lineup["seats"]}
    restart = job["restart"]
    least = (restart.get("min_nodes") or 0) if restart else 0
    return next_lineup(nodes, spares, procs, without=without, least=least)


def replanned(job: NodeJob, without: Sequence[str], why: str) -> NodeJob:
    """Return the job of a node that stays, without some others; `why`: they are left out.

    The launch planned its command by the same functions.

    Raises:
        NoLineupError: as `lineup_of`, or this node is left out.
    """
    found, lineup = lineup_of(job, without), job.get("lineup")
    if lineup is None or not without:
        return job
    node, attempt = job["node"], job.get("attempt", 1)
    if node not in found.supervisors:
        raise NoLineupError("%s is left out" % node)
    seats = {seat["node"]: seat for seat in lineup["seats"]}
    ranks = [seats[name]["procs"] for name in found.nodes]
    number, procs = found.supervisors.index(node), seats[node]["procs"]
    standby = node in found.spares
    context = LaunchContext(**lineup["launch"])._replace(
        node_rank=number, nnodes=len(found.nodes), world_size=sum(ranks)
    )
    left: List[LeftOut] = [
        {"node": name, "attempt": attempt, "why": why, "spare": found.taken.get(name, "")}
        for name in without
        if name in seats
    ]
    changed: Any = {
        "node_rank": number,
        "nnodes": len(found.nodes),
        "workers": list(found.supervisors[1:]),
        "spares": list(found.spares),
        "left_out": [*job.get("left_out", ()), *left],
        "world_size": sum(ranks),
        "shrunk": bool(job.get("shrunk")) or sum(ranks) != job["world_size"],
        "first_rank": sum(ranks[:number]),
        "procs": 0 if standby else procs,
        "standby": standby,
        "ends_with_master": standby,
        "launcher_argv": [] if standby else list(launcher_argv(job["launcher"], context)),
        "env": [
            *(one for one in job["env"] if one[2] != "launcher"),
            *(
                [name, value, "launcher"]
                for name, value in launcher_variables(job["launcher"], context).items()
            ),
        ],
        "hostfile": "".join(
            "%s slots=%d\n" % (seats[name]["address"], seats[name]["procs"]) for name in found.nodes
        ),
    }
    return {**job, **changed}


def replanned_environment(
    env: Mapping[str, str], before: NodeJob, after: NodeJob
) -> Dict[str, str]:
    """Return a node's whole environment with the launcher's variables of another job."""
    old = {name for name, _, layer in before["env"] if layer == "launcher"}
    new = {name: value for name, value, layer in after["env"] if layer == "launcher"}
    return {**{name: value for name, value in env.items() if name not in old}, **new}
