"""Plans the part of a node that joins a run, from what was launched.

Of what the run's master says counts only where its supervisor listens, who is there, and which
attempt it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.inventory.cluster import Cluster, Job, Node
from clusterctl.model.from_json import Bounds, Count, Rank, Seconds, from_json
from clusterctl.model.node_run import Resumed
from clusterctl.network.choice import Network
from clusterctl.plan.certificate import Identity
from clusterctl.plan.make import plan_node
from clusterctl.plan.node_job import node_job, worker_secrets
from clusterctl.plan.plan import NodePlan, Plan
from clusterctl.plan.processes import count_processes
from clusterctl.values import dataclass
from clusterctl.wire import plain

if TYPE_CHECKING:
    from clusterctl.node.run.files.node_job import NodeJob


_ADDRESS = "[0-9A-Za-z.:%_-]+"
_HOSTFILE = re.compile(rf"({_ADDRESS} slots=[0-9]+\n)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seat:
    """A node that may have ranks: a `Seat` of `node_job`."""

    node: str
    address: str
    procs: Rank


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lineup:
    seats: Annotated[tuple[_Seat, ...], Bounds(0, 1 << 14)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Link:
    certificate: str
    """Of the master's supervisor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    """Who takes part in the attempt, as its master says in its `job.json`."""

    link: _Link
    hostfile: str
    attempt: Count = 1
    began: Seconds = 0.0
    nnodes: Rank = 0
    world_size: Rank = 0
    workers: tuple[str, ...] = ()
    spares: tuple[str, ...] = ()
    empty: tuple[Rank, ...] = ()
    shrunk: bool = False
    lineup: _Lineup | None = None
    """None: the number of nodes may change."""

    @property
    def seats(self) -> tuple[_Seat, ...]:
        return self.lineup.seats if self.lineup else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJob:
    """A run that nodes can join, as it was launched."""

    plan: Plan
    """Of its nodes the master counts."""
    job: Job
    """As it was planned."""
    options: Mapping[str, Any]
    """Of the launch."""
    attempt: _Attempt
    resumed: Resumed | None = None
    launched: Mapping[str, str] | None = None
    """The record of the launch, with its proof."""

    @classmethod
    def read(
        cls, said: Mapping[str, Any], plan: Mapping[str, Any], job: Job, options: Mapping[str, Any]
    ) -> RunningJob:
        """Read what was launched, and what the master says of the attempt.

        Args:
            said: the master's `job.json`.
            plan: of the launch, as the record of the run has it.
            job: as the record has it.
            options: of the launch, as the record has them.
        """
        known, attempt = from_json(Plan, plan, "plan"), from_json(_Attempt, said, "job")
        if known.elastic is None or not known.nodes:
            raise ValueError("expected the plan of a run that nodes can join, found none")
        if known.elastic.max_nodes:
            attempt = replace(attempt, lineup=None)
        strange = [s.address for s in attempt.seats if not re.fullmatch(_ADDRESS, s.address)]
        if strange or not _HOSTFILE.fullmatch(attempt.hostfile):
            raise ValueError("expected addresses of nodes, found something else")
        return cls(plan=known, job=job, options=options, attempt=attempt)

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
            subnet=(self.plan.elastic.subnet if self.plan.elastic else "") or None,
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
        sizes = sorted({seat.procs for seat in self.attempt.seats if seat.node != self.master})
        if not self.attempt.lineup or plan.procs in sizes:
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
        stands_by = self.attempt.lineup is not None
        made = node_job(
            replace(self.plan, spares=(plan,)) if stands_by else self.plan,
            plan,
            Identity(certificate=self.attempt.link.certificate, key="", token=""),
            job=self.job,
            state=state,
            link_port=link_port,
            resumed=self.resumed,
            launched=self.launched,
        )
        said = plain(self.attempt)
        del said["link"]
        if stands_by:
            own = {"node": plan.node, "address": plan.address, "procs": plan.procs}
            others = [one for one in said["lineup"]["seats"] if one["node"] != plan.node]
            said["lineup"] = {"seats": [*others, own], "launch": plain(plan.launch)}
        else:
            line = f"{plan.address} slots={plan.procs}\n"
            hosts = self.attempt.hostfile
            said = {
                "nnodes": len(nodes),
                "world_size": world_size,
                "workers": list(nodes[1:]),
                "hostfile": hosts if line in hosts else hosts + line,
            }
        return {**made, **said, "joined": True}

    def secrets(self, token: str, environment: Mapping[str, str]) -> bytes:
        """Return the body of `start`, which is never written to disk."""
        secrets = worker_secrets(self.job.env_from, environment, token)
        return json.dumps(secrets).encode()
