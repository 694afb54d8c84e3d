"""What a node is sent to start its part: the plan of it as JSON, and apart from it the secrets."""

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
    """Return the argument `job` of `start`; it is kept on the node, so it holds no secret.

    Args:
        plan: of the run.
        node: its part.
        identity: of the run; its certificate goes to every node.
        state: the inventory's `state` of the node.
        link_port: what the master's `start` answered; 0 for the master itself.
        resumed: of a resume, the run and the checkpoint that it resumes from.
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
        "launcher_decides": plan.launcher_decides,
        "argv": list(node.argv),
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
    """Return the body of `start`: what is never written to a disk.

    Args:
        plan: of the run.
        node: its part.
        identity: of the run; its key goes to the master alone.
        environment: the controller's own; only what `env_from` names is taken.
    """
    env = {name: environment[name] for name in plan.env_from if name in environment}
    secrets: dict[str, Any] = {"env": env, "token": identity.token}
    if node.node_rank == 0:
        secrets["key"] = identity.key
    return json.dumps(secrets).encode()
