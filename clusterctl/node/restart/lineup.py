"""The nodes of the next attempt if some are left out or join, and this node's job there. Pure.

Every supervisor plans this itself, from what the launch sent it. Of the master's words only the
names of the nodes to leave out count, and of nodes that joined their names, addresses and ranks.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, Sequence, Tuple

from clusterctl.node.launchers.context import LaunchContext
from clusterctl.node.launchers.known import launcher_argv, launcher_variables
from clusterctl.node.run.files.node_job import LeftOut, NodeJob, Seat


class NoLineupError(ValueError):
    """The run cannot continue without these nodes: why."""

    lacks = False
    """Other nodes would help."""


class LackingError(NoLineupError):
    """Too few nodes are left."""

    lacks = True


class Lineup(NamedTuple):
    """Who takes part in an attempt."""

    nodes: Tuple[str, ...]
    """The nodes that run ranks, the master first: the index is the node rank."""
    spares: Tuple[str, ...]
    """Those that stand by."""
    taken: Mapping[str, str]
    """Node that is left out → the spare that has its place."""
    empty: Tuple[int, ...] = ()
    """The ranks of each place that no node has."""

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
    joined: Sequence[str] = (),
    empty: Sequence[int] = (),
) -> Lineup:
    """Return who takes part without some nodes: a spare of as many ranks takes a node's place.

    A node that joins stands by at first, also one that was lost before and is back.

    Args:
        nodes: who runs ranks now, the master first.
        spares: who stands by now.
        procs: how many ranks each of them has, or would have.
        without: the nodes to leave out, spares too.
        least: with so many nodes the run continues if it lacks spares; 0: it needs all.
        joined: the nodes that have joined since.
        empty: the ranks of each place that an earlier attempt left empty.

    Raises:
        NoLineupError: the master is left out, or too few nodes are left.
    """
    left = {*without, *joined}
    standing = [*(one for one in spares if one not in left), *joined]
    places: List[str] = []
    taken: Dict[str, str] = {}
    lacks: List[str] = []
    still: List[int] = []

    def fill(count: int) -> str:
        spare = next((one for one in standing if procs[one] == count), "")
        if spare:
            standing.remove(spare)
            places.append(spare)
        else:
            still.append(count)
        return spare

    for node in nodes:
        if node not in left:
            places.append(node)
        elif node == nodes[0]:
            raise NoLineupError("%s is the master, which no spare node replaces" % node)
        elif spare := fill(procs[node]):
            taken[node] = spare
        else:
            lacks.append(node)
    for count in empty:
        fill(count)
    if lacks and not least:
        raise LackingError("no spare node is left for %s" % ", ".join(lacks))
    if lacks and len(places) < least:
        words = "no spare node is left for %s; left: %d, min_nodes: %d"
        raise LackingError(words % (", ".join(lacks), len(places), least))
    return Lineup(tuple(places), tuple(standing), taken, tuple(still))


def lineup_of(job: NodeJob, without: Sequence[str], joined: Sequence[Seat] = ()) -> Lineup:
    """Return who takes part in the attempt after a job's if some nodes are left out, or join."""
    spares = job.get("spares") or []
    nodes = [one for one in (job["master"]["node"], *job["workers"]) if one not in spares]
    lineup = job.get("lineup")
    if lineup is None:
        if without:
            raise NoLineupError("no other node can take a place in this run")
        return Lineup(tuple(nodes), (), {})
    restart = job["restart"]
    return next_lineup(
        nodes,
        spares,
        {seat["node"]: seat["procs"] for seat in (*lineup["seats"], *joined)},
        without=without,
        least=(restart.get("min_nodes") or 0) if restart else 0,
        joined=[seat["node"] for seat in joined],
        empty=job.get("empty", ()),
    )


def replanned(
    job: NodeJob, without: Sequence[str], why: str, joined: Sequence[Seat] = ()
) -> NodeJob:
    """Return the job of a node that stays, without some others; `why`: they are left out.

    The launch planned its command by the same functions.

    Raises:
        NoLineupError: as `lineup_of`, or this node is left out.
    """
    found, lineup = lineup_of(job, without, joined), job.get("lineup")
    if lineup is None or not (without or joined):
        return job
    node, attempt = job["node"], job.get("attempt", 1)
    if node not in found.supervisors:
        raise NoLineupError("%s is left out" % node)
    own = [seat for seat in lineup["seats"] if seat["node"] == node]  # no other node changes that
    seats = {seat["node"]: seat for seat in (*lineup["seats"], *joined, *own)}
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
    left = [
        one for one in (*job.get("left_out", ()), *left) if one["node"] not in found.supervisors
    ]
    changed: Any = {
        "node_rank": number,
        "nnodes": len(found.nodes),
        "workers": list(found.supervisors[1:]),
        "spares": list(found.spares),
        "lineup": {**lineup, "seats": list(seats.values())},
        "left_out": left,
        "empty": list(found.empty),
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
