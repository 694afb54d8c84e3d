"""Asks the nodes of a run what they and their ranks used over time."""

from clusterctl.errors import NodeError
from clusterctl.inventory.cluster import Cluster
from clusterctl.model.answers import SamplesAnswer
from clusterctl.model.samples import Samples
from clusterctl.transport.interface import Request
from clusterctl.verbs.rpc import ANSWER_SECONDS, Nodes, call_validated, run_args


def read_samples(
    nodes: Nodes, run: str, cluster: Cluster, *, since: float = 0.0, most: int = 500
) -> tuple[dict[str, Samples], tuple[NodeError, ...]]:
    """Return the samples of each node, and the nodes that did not answer.

    A run of an earlier version has none: its nodes answer with an error.

    Args:
        nodes: where to ask.
        run: its id.
        cluster: the nodes that ran it.
        since: only what ended after this time, by each node's clock.
        most: so many samples at most; each is then the mean of several.
    """
    requests = {
        node.name: Request(
            op="samples", args={**run_args(run, cluster, node), "since": since, "most": most}
        )
        for node in cluster.nodes
    }
    found, errors = call_validated(nodes, requests, SamplesAnswer, timeout=ANSWER_SECONDS)
    return {name: answer.samples for name, answer in found.items()}, errors
