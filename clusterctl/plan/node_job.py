"""The job that a node receives: its plan as JSON, and separately the secrets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from clusterctl.plan.certificate import Identity
from clusterctl.plan.plan import NodePlan, Plan
from clusterctl.wire import SCHEMA, plain

if TYPE_CHECKING:
    from clusterctl.node.run.node_job import NodeJob


def node_job(
    plan: Plan,
    node: NodePlan,
    identity: Identity,
    *,
    state: str | None,
    link_port: int = 0,
    resumed: Mapping[str, Any] | None = None,
) -> NodeJob:
    """Return the argument `job` of `start`; the node stores it, so it holds no secret.

    Args:
        plan: the plan of the run.
        node: the plan of this node.
        identity: the run's credentials; every node gets the certificate.
        state: the node's `state` in the inventory.
        link_port: the port that the master's `start` returned; 0 for the master itself.
        resumed: for a resume, the run and the checkpoint that it resumes from.
    """
    return {
        "schema": SCHEMA,
        "run": plan.run,
        "cluster": plan.cluster,
        "name": plan.name,
        "controller": plan.controller,
        "resumed": plain(resumed),
        "node": node.node,
        "state": state,
        "node_rank": node.node_rank,
        "nnodes": len(plan.nodes),
        "launcher": plan.launcher,
        "launcher_argv": list(node.launcher_argv),
        "launcher_program": node.launcher_program,
        "launcher_decides": plan.launcher_decides,
        "ends_with_master": node.ends_with_master,
        "min_nodes": plan.min_nodes,
        "hostfile": plan.hostfile,
        "argv": list(node.argv),
        "wrap": list(node.wrap),
        "container": list(node.container),
        "python": node.python,
        "procs": node.procs,
        "device": node.device,
        "first_rank": node.first_rank,
        "world_size": plan.world_size,
        "workdir": node.workdir,
        "path_first": node.path_first,
        "env": [[v.name, v.value, v.layer] for v in node.env if v.value is not None],
        "env_init": plan.env_init,
        "stop": plain(plan.stop),
        "master": {
            "node": plan.master.node,
            "address": plan.master_address,
            "port": plan.master_port,
        },
        "address": node.address,
        "interface": node.interface,
        "workers": [worker.node for worker in plan.workers],
        "link": {
            "address": plan.master_address,
            "port": link_port,
            "certificate": identity.certificate,
            "lost_after": plan.lost_after,
        },
        "start_timeout": plan.start_timeout,
        "lock": node.lock,
    }


def node_secrets(
    plan: Plan, node: NodePlan, identity: Identity, environment: Mapping[str, str]
) -> bytes:
    """Return the body of `start`, which is never written to disk; only the master gets the key.

    Of the controller's `environment` only the names in `env_from` are used.
    """
    env = {name: environment[name] for name in plan.env_from if name in environment}
    secrets: dict[str, Any] = {"env": env, "token": identity.token}
    if node.node_rank == 0:
        secrets["key"] = identity.key
    return json.dumps(secrets).encode()
