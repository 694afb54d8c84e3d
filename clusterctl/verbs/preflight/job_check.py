"""The job's own check, run on every node in the job's folder and environment."""

import json
import os
import posixpath
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from clusterctl.facts.answers import Answer, Answers
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.facts.software.programs import CommandResult
from clusterctl.inventory.cluster import Cluster, Node
from clusterctl.plan.container import trial_words
from clusterctl.plan.make import command_with_python
from clusterctl.transport.interface import Reply, Request
from clusterctl.verbs.events import Emit
from clusterctl.verbs.preflight.source_folder import other_code
from clusterctl.verbs.rpc import Nodes, call_all

LIMIT_S = 300.0
"""It may import torch from a cold network filesystem, and read a model's index."""
LAST_LINES = 20


def run_job_check(
    cluster: Cluster,
    pool: Nodes,
    facts: Mapping[str, NodeFacts],
    *,
    synced: bool = False,
    source: Path | None = None,
    emit: Emit,
) -> dict[str, NodeFacts]:
    """Run it where there is one and its folder is; nothing is there before the first `sync`.

    Args:
        cluster: the nodes, and the job.
        synced: the folder was made since, if it was not there.
        source: the folder that a sync would bring; None: the nodes have it.

    Returns:
        The facts, with `job_check` where it was run.
    """
    requests = {
        node.name: _request(cluster, node, facts[node.name])
        for node in cluster.nodes
        if cluster.job.check and _is_ready(node, facts[node.name], synced=synced)
    }
    phase = "the job's own check"
    asked = [node for node in cluster.nodes if node.name in requests]
    other = other_code(pool, cluster, asked, source) if source is not None and asked else set()
    replies = call_all(pool, requests, phase=phase, timeout=LIMIT_S + 30.0, emit=emit)
    tried = {
        name: replace(
            facts[name], job_check=replace(_result(replies[name]), other_code=name in other)
        )
        for name in replies
    }
    return {**facts, **tried}


def _is_ready(node: Node, facts: NodeFacts, *, synced: bool) -> bool:
    workdir = facts.path(node.workdir) if node.workdir else None
    there = synced or workdir is None or workdir.folder is True
    started = facts.python is not None and not facts.python.problem
    return facts.answered and started and there


def _request(cluster: Cluster, node: Node, facts: NodeFacts) -> Request:
    job = cluster.job
    python = facts.python.executable if facts.python else node.python or "python3"
    composed: dict[str, Any] = {
        "env": [[name, value, "asked"] for name, value in job.env],
        "env_init": job.env_init,
        "workdir": node.workdir or "/",
        "path_first": posixpath.dirname(python),
    }
    command = {
        "key": "job.check",
        "container": trial_words(cluster, facts, [*dict(job.env), *job.env_from]),
        "argv": list(command_with_python(job.check, python)),
        "limit_s": LIMIT_S,
        "cwd": node.workdir,
        "job": composed,
    }
    secrets = {name: os.environ[name] for name in job.env_from if name in os.environ}
    body = json.dumps(secrets).encode()
    return Request(op="read", args={"commands": [command]}, body=body, stay=True)


def command_answer(reply: Reply, key: str) -> Answer | str:
    """Return the result of a command on a node, or why nothing is known of it."""
    if reply.error is not None:
        return f"{reply.state}: {reply.error.message}"
    try:
        return Answers.of(reply.last).command(key)
    except ValueError as error:
        return str(error)


def _result(reply: Reply) -> CommandResult:
    answer = command_answer(reply, "job.check")
    if isinstance(answer, str):
        return CommandResult(exit_code=None, words=answer)
    lines = (answer.text + "\n" + answer.words).strip().splitlines()[-LAST_LINES:]
    if answer.state != "ok":
        return CommandResult(exit_code=None, words=answer.why())
    return CommandResult(exit_code=answer.exit_code, output="\n".join(lines))
