"""The operation `join`: asks the run's master to let a node join, or to expect it no longer."""

from __future__ import annotations

from typing import Any, Dict

from clusterctl.node import run_lock
from clusterctl.node.agent.call_channel import CallChannel, OperationError
from clusterctl.node.file_io import read_json
from clusterctl.node.run.files.own_agent import hand_over
from clusterctl.node.run.operations.status import LIVE, find_run, node_status
from clusterctl.wire import Message

ANSWER_SECONDS = 20.0
"""How long the supervisor may take: on a busy machine longer than for the questions of `status`."""

HINTS = {
    "full": "clusterctl status {run} shows its nodes",
    "joined": "clusterctl status {run}; a node that was lost can join once the run continues"
    " without it",
    "over": "clusterctl resume {run} --checkpoint latest",
}


def join(args: Dict[str, Any], body: bytes, channel: CallChannel) -> Message:
    """Let a node join the run, whose master this node is.

    Args:
        args: `cluster`, `run`, `node`, perhaps `state`; `joins`: the node; `asks`: only tell
            whether it may; `withdraws`: expect it no longer.

    Returns:
        `job`: of the master; unless it only asks `node_rank`, `nodes`, `link_port`, and in the
        body the node's token, which is shown nowhere.
    """
    del body
    paths = find_run(args)
    job = read_json(paths.job)
    if "elastic" not in job:  # its own agent has no such operation
        message = "an earlier version launched it, whose runs no node can join"
        raise refusal(str(job.get("run")), "not-elastic", message)
    hand_over("join", args, channel, paths)
    saved = read_json(paths.supervisor)
    options = {name: bool(args.get(name)) for name in ("asks", "withdraws")}
    request = {"ask": "join", "run": job["run"], "node": job["node"], "joins": args["joins"]}
    answer = run_lock.query(job["lock"], {**request, **options}, seconds=ANSWER_SECONDS) or {}
    if "error" in answer or answer.get("pid") != saved.get("pid"):
        state = node_status(paths)["state"]
        if state not in LIVE:
            raise refusal(job["run"], "over", "the run is over: %s" % state)
        message = "the run's supervisor does not answer"
        raise OperationError("silent", message, hint="clusterctl status %s" % job["run"])
    if "refused" in answer:
        raise refusal(job["run"], str(answer["refused"]), str(answer["message"]))
    token = str(answer.get("token") or "")
    known = ("node_rank", "nodes", "link_port")
    return Message(
        {"job": job, **{name: answer[name] for name in known if name in answer}}, token.encode()
    )


def refusal(run: str, kind: str, message: str) -> OperationError:
    """Return the error of a node that may not join."""
    return OperationError(kind, message, hint=HINTS.get(kind, "").format(run=run))
