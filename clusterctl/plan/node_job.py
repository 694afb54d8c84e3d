"""The job that a node receives: its plan as JSON, and separately the secrets."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from clusterctl.inventory.cluster import Job
from clusterctl.inventory.settings import settings_of
from clusterctl.model.node_run import Resumed
from clusterctl.node.peer_link.run_tokens import node_token, ray_token
from clusterctl.node.run.files.node_job import NodeJob, NodePart, has_checkpoint
from clusterctl.plan.certificate import Identity
from clusterctl.plan.plan import NodePlan, Plan
from clusterctl.plan.run_names import fill_text
from clusterctl.wire import SCHEMA, plain

ON_NODES = tuple(name for name, one in settings_of(Job).items() if one.on_nodes)
"""The settings of a job that every node gets."""
_AS_PLANNED = (
    "run", "cluster", "name", "controller", "checkpoints", "launcher", "launcher_decides",
    "min_nodes", "hostfile", "world_size",
)  # fmt: skip
"""What a node's job has as the plan has it."""


def node_job(
    plan: Plan,
    node: NodePlan,
    identity: Identity,
    *,
    job: Job,
    state: str | None,
    link_port: int = 0,
    resumed: Resumed | None = None,
    launched: Mapping[str, str] | None = None,
) -> NodeJob:
    """Return the argument `job` of `start`; the node stores it, so it holds no secret.

    Args:
        plan: the plan of the run.
        node: the plan of this node.
        identity: the run's credentials; every node gets the certificate.
        job: as it is planned.
        state: the node's `state` in the inventory.
        link_port: the port that the master's `start` returned; 0 for the master itself.
        resumed: for a resume, the run and the checkpoint that it resumes from.
        launched: the record of the launch, with its proof.
    """
    grows = plan.elastic is not None and plan.elastic.max_nodes > 0
    made = {
        **node_part(node, state=state),
        **{name: getattr(plan, name) for name in _AS_PLANNED},
        **{name: plain(getattr(job, name)) for name in ON_NODES},
        "schema": SCHEMA,
        "restart": _restart(plan, node, job, resumed),
        "lineup": _lineup(plan, node),
        "spares": [spare.node for spare in plan.spares],
        "standby": node in plan.spares,
        "resumed": plain(resumed),
        "launched": dict(launched or {}),
        "nnodes": len(plan.nodes),
        "elastic": plain(plan.elastic) if grows else None,
        "joined": False,
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
    }
    if node in plan.spares:
        made |= {"procs": 0, "launcher_argv": [], "ends_with_master": True}
    return cast("NodeJob", made)


def _lineup(plan: Plan, node: NodePlan) -> dict[str, Any] | None:
    """Return what the run is planned again by, if it may continue on other nodes."""
    if node.launch is None:
        return None
    seats = [
        {"node": one.node, "address": one.address, "procs": one.procs}
        for one in (plan.master, *plan.workers)
    ]
    return {"seats": seats, "launch": plain(node.launch)}


def _restart(
    plan: Plan, node: NodePlan, job: Job, resumed: Resumed | None
) -> dict[str, Any] | None:
    """Return when a failed run is started again, and each rank's command from a checkpoint."""
    if not job.restart.max:
        return None
    template = (resumed.command if resumed else ()) or job.command
    if not has_checkpoint(template):
        template += job.resume_args
    words = [fill_text(word, plan.run, plan.name) for word in template]
    if not has_checkpoint(words) and not job.resume_args:
        words = []  # the program finds its checkpoint by itself, or has none
    python = node.argv[: len(node.argv) - len(job.command)]
    return {**plain(job.restart), "resumed_argv": [*python, *words] if words else []}


def node_part(node: NodePlan, *, state: str | None) -> NodePart:
    """Return what of a node's job no other node has."""
    part = {name: plain(getattr(node, name)) for name in NodePart.__annotations__}
    env = [[one.name, one.value, one.layer] for one in node.env if one.value is not None]
    return cast("NodePart", {**part, "state": state, "env": env})


def node_secrets(
    plan: Plan,
    node: NodePlan,
    identity: Identity,
    environment: Mapping[str, str],
    webhooks: Sequence[str] = (),
) -> bytes:
    """Return the body of `start`, which is never written to disk.

    Only the master gets the key, the run's token and the URLs that `webhooks` name; a worker gets a
    token of its own. Of the controller's `environment` only these and `env_from` are used.
    """
    secrets = worker_secrets(plan.env_from, environment, node_token(identity.token, node.node))
    if node.node_rank == 0:
        secrets.update(token=identity.token, key=identity.key)
        secrets["webhooks"] = named_values(webhooks, environment)
    if plan.launcher == "ray":
        secrets["ray_token"] = ray_token(identity.token)
    return json.dumps(secrets).encode()


def worker_secrets(
    env_from: Sequence[str], environment: Mapping[str, str], token: str
) -> dict[str, Any]:
    """Return what a worker gets that is never written to disk."""
    return {"env": named_values(env_from, environment), "token": token}


def named_values(names: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are set."""
    return {name: environment[name] for name in names if name in environment}
