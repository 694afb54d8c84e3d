"""The operation `notify-test`: tells each receiver that this is a test, from the node that will."""

from __future__ import annotations

import json
import os
from functools import partial
from typing import Any, Dict, List

from clusterctl.node.agent.call_channel import CallChannel
from clusterctl.node.agent.child_tasks import run_with_timeout
from clusterctl.node.notify.deliver import LIMIT_SECONDS, deliver, receiver
from clusterctl.node.notify.message import trial_message
from clusterctl.node.run.processes.environment import job_environment
from clusterctl.wire import Message


def notify_test(args: Dict[str, Any], body: bytes, channel: CallChannel) -> Message:
    """Send a test to each receiver, once, and answer what became of it.

    Args:
        args: `cluster`, `node`; `receivers`, the items of `job.notify`; `job`, as for
            `job_environment`.
        body: JSON: `env` (secret values), `webhooks`: the URLs.
    """
    del channel
    job, secrets = args["job"], json.loads(body)
    environment = job_environment(job, secrets["env"])
    workdir = os.path.expanduser(job["workdir"])
    message = trial_message(args["cluster"], args["node"])
    told: List[Dict[str, Any]] = []
    for target in args["receivers"]:
        work = partial(deliver, target, message, secrets["webhooks"], environment, workdir)
        try:
            found = run_with_timeout(LIMIT_SECONDS, work)
        except TimeoutError as error:
            found = {"ok": False, "answer": str(error)}
        except ChildProcessError:  # its words may have the URL
            found = {"ok": False, "answer": "its process failed"}
        told.append({"receiver": receiver(target), "ok": found["ok"], "answer": found["answer"]})
    return Message({"told": told})
