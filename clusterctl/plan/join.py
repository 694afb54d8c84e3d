"""Plans the part of a node that joins a run, from what was launched.

Of what the run's master says counts only where its supervisor listens, who is there, and which
attempt it is.
"""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, cast

from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.inventory.cluster import Cluster, Job, Node, Stop
from clusterctl.inventory.settings import settings_of
from clusterctl.model.bounds import Count, Rank, Seconds
from clusterctl.model.from_json import Bounds, from_json
from clusterctl.model.node_run import Resumed
from clusterctl.network.choice import Network
from clusterctl.plan.certificate import Identity
from clusterctl.plan.make import plan_node
from clusterctl.plan.node_job import ON_NODES, node_job, worker_secrets
from clusterctl.plan.plan import ElasticPlan, NodePlan, Plan
from clusterctl.plan.processes import count_processes
from clusterctl.values import dataclass
from clusterctl.wire import plain

if TYPE_CHECKING:
    from clusterctl.node.run.files.node_job import NodeJob


_ADDRESS = "[0-9A-Za-z.:%_-]+"
_HOSTFILE = re.compile(rf"({_ADDRESS} slots=[0-9]+\n)*")
_EQUAL = (
    "run", "cluster", "name", "launcher", "launcher_decides", "min_nodes", *ON_NODES, "master",
    "resumed",
)  # fmt: skip
"""What the master's job and the launch must agree on."""
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seat:
    """A node that may have ranks: a `Seat` of `node_job`."""

    node: str
    address: str
    procs: Rank


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lineup:
    seats: Annotated[tuple[_Seat, ...], Bounds(0, 1 << 14)] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    """Who takes part in the attempt of a run that restarts itself, as its master says."""

    attempt: Count = 1
    began: Seconds = 0.0
    nnodes: Rank = 0
    world_size: Rank = 0
    workers: tuple[str, ...] = ()
    spares: tuple[str, ...] = ()
    empty: tuple[Rank, ...] = ()
    shrunk: bool = False
    lineup: _Lineup


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJob:
    """A run that nodes can join, as it was launched."""

    plan: Plan
    """Of its nodes the master counts."""
    job: Job
    """As it was planned."""
    options: Mapping[str, Any]
    """Of the launch."""
    elastic: ElasticPlan
    attempt: _Attempt | None
    """None: the number of nodes may change."""
    certificate: str
    """Of the master's supervisor."""
    hostfile: str
    """The run's nodes now."""
    resumed: Resumed | None = None
    launched: Mapping[str, str] | None = None
    """The record of the launch, with its proof."""

    @classmethod
    def read(
        cls,
        job: Mapping[str, Any],
        plan: Mapping[str, Any],
        own: Job,
        options: Mapping[str, Any],
        *,
        resumed: Resumed | None = None,
    ) -> RunningJob:
        """Read what was launched, and compare the job that the master keeps with it.

        Args:
            job: the master's `job.json`.
            plan: of the launch, as the record of the run has it.
            own: the job, and the options of the launch, as the record has them.
            options: as above.
            resumed: of a resume, the run and the checkpoint that it resumes from.

        Raises:
            ValueError: it is damaged or of an earlier version, or the two differ.
        """
        known = from_json(Plan, plan, "plan")
        if known.elastic is None or not known.nodes:
            raise ValueError("expected the plan of a run that nodes can join, found none")
        link, hosts = job.get("link"), job.get("hostfile")
        certificate = link.get("certificate") if isinstance(link, dict) else None
        hostfile = hosts if isinstance(hosts, str) and _HOSTFILE.fullmatch(hosts) else None
        if not isinstance(certificate, str) or hostfile is None:
            raise ValueError("expected the job of a run, found none: link, hostfile")
        fixed = known.elastic.max_nodes == 0
        attempt = from_json(_Attempt, job, "job") if fixed else None
        for seat in attempt.lineup.seats if attempt else ():
            if not re.fullmatch(_ADDRESS, seat.address):
                raise ValueError(f"address: found {_SHORT.repr(seat.address)}")
        running = cls(
            plan=known,
            job=own,
            options=options,
            attempt=attempt,
            elastic=known.elastic,
            certificate=certificate,
            hostfile=hostfile,
            resumed=resumed,
        )
        mine: Mapping[str, Any] = running._job(known.master, state=None)
        absent = {name: plain(settings_of(Job)[name].default) for name in ON_NODES}
        theirs = {**absent, **job, "stop": plain(from_json(Stop, job.get("stop"), "stop"))}
        theirs["resumed"] = plain(from_json(Resumed | None, job.get("resumed"), "resumed"))
        different = next(filter(None, (_difference(mine[n], theirs.get(n), n) for n in _EQUAL)), "")
        if different:
            raise ValueError(f"it is not the job that was launched: {different}")
        return running

    @property
    def run(self) -> str:
        """Its id."""
        return self.plan.run

    @property
    def master(self) -> str:
        """The name of the node that has the rendezvous."""
        return self.plan.master.node

    def cluster(self, inventory: Cluster, node: Node) -> Cluster:
        """Return the master and the node, with the job and the options of the launch.

        Both must use the run's data network.
        """
        workdir, gpus = self.options.get("workdir"), self.options.get("gpus")
        nodes = tuple(
            replace(one, workdir=workdir or one.workdir, gpus_limit=gpus)
            for one in (inventory.node(self.master), node)
        )
        master = replace(nodes[0], address=self.plan.master_address)
        cluster = inventory.with_nodes(nodes)
        return replace(
            cluster,
            nodes=(master, nodes[1]),
            job=self.job,
            subnet=self.elastic.subnet or None,
            master_port=None,  # the run has it: the probe tries another
        )

    def plan_node(
        self,
        cluster: Cluster,
        facts: NodeFacts,
        network: Network,
        *,
        node_rank: int,
        nnodes: int,
        first_rank: int,
    ) -> NodePlan:
        """Return what is started on the node.

        Args:
            cluster: the master and the node, as `cluster` returned them.
            facts: of the node.
            network: that the two share.
            node_rank: the number that the master's supervisor gave the node.
            nnodes: the nodes that are or were part of the run.
            first_rank: the rank that its first one is shown as, until the launcher gives another.

        Raises:
            LaunchRefused: it has no address on the data network.
        """
        node = cluster.nodes[1]
        count = count_processes(cluster, node, facts)
        return plan_node(
            node,
            cluster=cluster,
            facts=facts,
            network=replace(
                network,
                master_address=self.plan.master_address,
                master_port=self.plan.master_port,
            ),
            run=self.run,
            name=self.plan.name,
            node_rank=node_rank,
            nnodes=nnodes,
            count=count,
            first_rank=first_rank,
            world_size=first_rank + count.procs,
        )

    def misfit(self, plan: NodePlan) -> str:
        """Return why a node could take no other's place; empty: it could, or needs none."""
        seats = self.attempt.lineup.seats if self.attempt else ()
        sizes = sorted({seat.procs for seat in seats if seat.node != self.master})
        if not self.attempt or plan.procs in sizes:
            return ""
        found = " or ".join(map(str, sizes)) or "no worker"
        return f"expected a node for as many ranks as a worker has ({found}), found {plan.procs}"

    def node_job(
        self,
        plan: NodePlan,
        *,
        state: str | None,
        nodes: Sequence[str],
        link_port: int,
        world_size: int,
    ) -> NodeJob:
        """Return the argument `job` of `start`.

        Args:
            plan: what is started on the node.
            state: the node's `state` in the inventory.
            nodes: all nodes of the run, the master first.
            link_port: where the master's supervisor listens.
            world_size: the ranks of the run, with those of the node.
        """
        job = {**self._job(plan, state=state, link_port=link_port), "joined": True}
        if self.attempt:
            own = {"node": plan.node, "address": plan.address, "procs": plan.procs}
            others = plain([one for one in self.attempt.lineup.seats if one.node != plan.node])
            lineup = {"seats": [*others, own], "launch": plain(plan.launch)}
            job |= {**plain(self.attempt), "hostfile": self.hostfile, "lineup": lineup}
            return cast("NodeJob", job)
        line = f"{plan.address} slots={plan.procs}\n"
        job |= {
            "nnodes": len(nodes),
            "world_size": world_size,
            "workers": list(nodes[1:]),
            "hostfile": self.hostfile if line in self.hostfile else self.hostfile + line,
        }
        return cast("NodeJob", job)

    def _job(self, node: NodePlan, *, state: str | None, link_port: int = 0) -> dict[str, Any]:
        stands_by = self.attempt is not None and node is not self.plan.master
        made = node_job(
            replace(self.plan, spares=(node,)) if stands_by else self.plan,
            node,
            Identity(certificate=self.certificate, key="", token=""),
            job=self.job,
            state=state,
            link_port=link_port,
            resumed=self.resumed,
            launched=self.launched,
        )
        return dict(made)

    def secrets(self, token: str, environment: Mapping[str, str]) -> bytes:
        """Return the body of `start`, which is never written to disk."""
        secrets = worker_secrets(self.job.env_from, environment, token)
        return json.dumps(secrets).encode()


def _difference(mine: object, theirs: object, where: str) -> str:
    """Return the first place where what the master says is not what was launched; empty: none."""
    if isinstance(mine, Mapping) and isinstance(theirs, Mapping):
        found = (
            _difference(mine.get(k), theirs.get(k), f"{where}.{k}") for k in {**mine, **theirs}
        )
        return next(filter(None, found), "")
    if mine == theirs:
        return ""
    return f"{where}: expected {_SHORT.repr(mine)}, found {_SHORT.repr(theirs)}"
