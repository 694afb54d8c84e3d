"""The job that a node receives: its plan as JSON, and separately the secrets."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from clusterctl.model.node_run import Resumed
from clusterctl.node.peer_link.run_tokens import node_token, ray_token
from clusterctl.plan.certificate import Identity
from clusterctl.plan.plan import NodePlan, Plan
from clusterctl.wire import SCHEMA, plain

if TYPE_CHECKING:
    from clusterctl.node.run.files.node_job import NodeJob, NodePart


def node_job(
    plan: Plan,
    node: NodePlan,
    identity: Identity,
    *,
    state: str | None,
    link_port: int = 0,
    resumed: Resumed | None = None,
    launched: Mapping[str, str] | None = None,
    tree: str = "",
) -> NodeJob:
    """Return the argument `job` of `start`; the node stores it, so it holds no secret.

    Args:
        plan: the plan of the run.
        node: the plan of this node.
        identity: the run's credentials; every node gets the certificate.
        state: the node's `state` in the inventory.
        link_port: the port that the master's `start` returned; 0 for the master itself.
        resumed: for a resume, the run and the checkpoint that it resumes from.
        launched: the record of the launch, with its proof.
        tree: hash of the code that was synced; empty: none was.
    """
    elastic = {**plain(plan.elastic), "tree": tree} if plan.elastic else None
    job = {
        **node_part(node, state=state),
        "schema": SCHEMA,
        "run": plan.run,
        "cluster": plan.cluster,
        "name": plan.name,
        "controller": plan.controller,
        "checkpoints": plan.checkpoints,
        "resumed": plain(resumed),
        "launched": dict(launched or {}),
        "nnodes": len(plan.nodes),
        "launcher": plan.launcher,
        "launcher_decides": plan.launcher_decides,
        "min_nodes": plan.min_nodes,
        "elastic": elastic,
        "joined": False,
        "hostfile": plan.hostfile,
        "world_size": plan.world_size,
        "env_init": plan.env_init,
        "stop": plain(plan.stop),
        "master": {
            "node": plan.master.node,
            "address": plan.master_address,
            "port": plan.master_port,
        },
        "workers": [worker.node for worker in plan.workers],
        "link": {
            "address": plan.master_address,
            "port": link_port,
            "certificate": identity.certificate,
            "lost_after": plan.lost_after,
        },
        "start_timeout": plan.start_timeout,
    }
    return cast("NodeJob", job)


def node_part(node: NodePlan, *, state: str | None) -> NodePart:
    """Return what of a node's job no other node has."""
    return {
        "node": node.node,
        "state": state,
        "node_rank": node.node_rank,
        "launcher_argv": list(node.launcher_argv),
        "launcher_program": node.launcher_program,
        "ends_with_master": node.ends_with_master,
        "argv": list(node.argv),
        "wrap": list(node.wrap),
        "container": list(node.container),
        "python": node.python,
        "procs": node.procs,
        "device": node.device,
        "first_rank": node.first_rank,
        "workdir": node.workdir,
        "path_first": node.path_first,
        "env": [[v.name, v.value, v.layer] for v in node.env if v.value is not None],
        "address": node.address,
        "interface": node.interface,
        "lock": node.lock,
    }


def node_secrets(
    plan: Plan, node: NodePlan, identity: Identity, environment: Mapping[str, str]
) -> bytes:
    """Return the body of `start`, which is never written to disk.

    Only the master gets the key and the run's token; a worker gets a token of its own. Of the
    controller's `environment` only the names in `env_from` are used.
    """
    secrets = worker_secrets(plan.env_from, environment, node_token(identity.token, node.node))
    if node.node_rank == 0:
        secrets.update(token=identity.token, key=identity.key)
    if plan.launcher == "ray":
        secrets["ray_token"] = ray_token(identity.token)
    return json.dumps(secrets).encode()


def worker_secrets(
    env_from: Sequence[str], environment: Mapping[str, str], token: str
) -> dict[str, Any]:
    """Return what a worker gets that is never written to disk."""
    env = {name: environment[name] for name in env_from if name in environment}
    return {"env": env, "token": token}
