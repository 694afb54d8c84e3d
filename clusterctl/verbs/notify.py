"""Send a test to all that `job.notify` names, from the master: it is who tells them of a run."""

import json
import posixpath
from collections.abc import Mapping
from typing import Any

from clusterctl.errors import ClusterError, CouldNotTell, UsageError
from clusterctl.inventory.cluster import Cluster
from clusterctl.model.answers import NotifyAnswer, Told
from clusterctl.plan.node_job import named_values
from clusterctl.transport.interface import Request
from clusterctl.values import dataclass
from clusterctl.verbs.events import Emit
from clusterctl.verbs.launch.validate_job import require_variables
from clusterctl.verbs.rpc import Nodes, call_all, validated_answer
from clusterctl.wire import SCHEMA, plain

SECONDS = 60.0
"""For each receiver."""
_EXAMPLE = "job: {notify: [{on: [failed, ended], webhook_from: WEBHOOK_URL}]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyResult:
    """What became of a test."""

    node: str
    """That sent it."""
    told: tuple[Told, ...]

    @property
    def ok(self) -> bool:
        """All receivers took it."""
        return all(one.ok for one in self.told)

    def document(self) -> dict[str, Any]:
        """Return it as JSON shows it."""
        return {"schema": SCHEMA, "node": self.node, "receivers": plain(self.told)}


def notify_test(
    cluster: Cluster, nodes: Nodes, environment: Mapping[str, str], *, emit: Emit
) -> NotifyResult:
    """Let the master tell each receiver that this is a test.

    Raises:
        UsageError: there is no receiver, or a variable that is needed is not set here.
        ClusterError: the master does not answer, or `env_init` failed there.
    """
    job, master = cluster.job, cluster.master
    if not job.notify:
        where = cluster.file or "the inventory"
        raise UsageError(f"job.notify: expected receivers in {where}, found none", hint=_EXAMPLE)
    require_variables(cluster)
    python = posixpath.dirname(master.python or "")
    composed = {
        "env": [[name, value, "asked"] for name, value in job.env],
        "env_init": job.env_init,
        "workdir": master.workdir or "/",
        "path_first": python or None,
    }
    args = {
        "cluster": cluster.name,
        "node": master.name,
        "receivers": plain(job.notify),
        "job": composed,
    }
    secrets = {
        "env": named_values(job.env_from, environment),
        "webhooks": named_values(job.webhooks, environment),
    }
    request = Request(op="notify-test", args=args, body=json.dumps(secrets).encode())
    seconds = SECONDS * len(job.notify) + 120.0  # of env_init
    asked = {master.name: request}
    replies = call_all(nodes, asked, phase="sending", timeout=seconds, emit=emit)
    answer = validated_answer(replies[master.name], NotifyAnswer)
    if not isinstance(answer, NotifyAnswer):
        kind = ClusterError if answer.answered else CouldNotTell
        raise kind(f"{master.name}: {answer}", hint=answer.hint)
    return NotifyResult(node=master.name, told=answer.told)
