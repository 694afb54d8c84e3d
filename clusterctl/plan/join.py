"""Plans the part of a node that joins an elastic run, from the job that the master keeps."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from clusterctl.facts.from_json import from_json
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.inventory.cluster import Cluster, Node
from clusterctl.network.choice import Network
from clusterctl.plan.make import plan_node
from clusterctl.plan.node_job import node_part, worker_secrets
from clusterctl.plan.plan import ElasticPlan, NodePlan
from clusterctl.plan.processes import count_processes

if TYPE_CHECKING:
    from clusterctl.node.run.node_job import NodeJob


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJob:
    """An elastic run, as its master's `job.json` describes it."""

    job: Mapping[str, Any]
    elastic: ElasticPlan
    tree: str
    """Hash of the code; empty: the launch did not sync."""

    @classmethod
    def read(cls, job: Mapping[str, Any]) -> RunningJob:
        """Read a `job.json`.

        Raises:
            ValueError: it is damaged, or of an earlier version.
        """
        kinds = {"run": str, "elastic": dict, "master": dict, "link": dict, "hostfile": str}
        wrong = [name for name, kind in kinds.items() if not isinstance(job.get(name), kind)]
        if wrong:
            raise ValueError(f"expected the plan of an elastic run, found none: {', '.join(wrong)}")
        elastic = from_json(ElasticPlan, job["elastic"], "elastic")
        return cls(job=job, elastic=elastic, tree=str(job["elastic"].get("tree") or ""))

    @property
    def run(self) -> str:
        """Its id."""
        return str(self.job["run"])

    @property
    def master(self) -> str:
        """The name of the node that has the rendezvous."""
        return str(self.job["master"].get("node"))

    def cluster(self, inventory: Cluster, node: Node) -> Cluster:
        """Return the master and the node, with the job and the options of the launch.

        Both must use the run's data network.
        """
        elastic = self.elastic
        nodes = tuple(
            replace(one, workdir=elastic.workdir or one.workdir, gpus_limit=elastic.gpus)
            for one in (inventory.node(self.master), node)
        )
        master = replace(nodes[0], address=str(self.job["master"]["address"]))
        cluster = inventory.with_nodes(nodes)
        return replace(
            cluster,
            nodes=(master, nodes[1]),
            job=elastic.job,
            subnet=elastic.subnet or None,
            master_port=None,  # the run has it: the probe tries another
        )

    def plan(
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
        node, master = cluster.nodes[1], self.job["master"]
        count = count_processes(cluster, node, facts)
        return plan_node(
            node,
            cluster=cluster,
            facts=facts,
            network=replace(
                network, master_address=str(master["address"]), master_port=int(master["port"])
            ),
            run=self.run,
            node_rank=node_rank,
            nnodes=nnodes,
            count=count,
            first_rank=first_rank,
            world_size=first_rank + count.procs,
        )

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
        line = f"{plan.address} slots={plan.procs}\n"
        hostfile = str(self.job["hostfile"])
        job = {
            **self.job,
            **node_part(plan, state=state),
            "joined": True,
            "nnodes": len(nodes),
            "world_size": world_size,
            "workers": list(nodes[1:]),
            "hostfile": hostfile if line in hostfile else hostfile + line,
            "link": {**self.job["link"], "port": link_port},
        }
        return cast("NodeJob", job)

    def secrets(self, token: str, environment: Mapping[str, str]) -> bytes:
        """Return the body of `start`, which is never written to disk."""
        secrets = worker_secrets(self.elastic.job.env_from, environment, token)
        return json.dumps(secrets).encode()
