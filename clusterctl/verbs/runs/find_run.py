"""Finds the run to use: the one named, else the only live one, else the newest."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from clusterctl.errors import ClusterError, CouldNotTell, NodeError, UsageError
from clusterctl.inventory.cluster import Cluster, Node
from clusterctl.model.answers import RunsAnswer
from clusterctl.model.node_run import Launched, NodeRun
from clusterctl.transport.interface import Request
from clusterctl.values import dataclass
from clusterctl.verbs.rpc import ANSWER_SECONDS, Nodes, call_validated, node_args
from clusterctl.verbs.runs import run_id
from clusterctl.verbs.runs.records import Records, RunRecord
from clusterctl.verbs.runs.run_id import pick_run, refuse_part
from clusterctl.verbs.runs.run_status import RunStatus, view_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovered:
    """The runs that a cluster's nodes know."""

    runs: tuple[RunStatus, ...]
    """The newest first."""
    errors: tuple[NodeError, ...]
    """Nodes that did not answer."""


def discover(nodes: Nodes) -> Discovered:
    """Ask every node for its parts of runs."""
    cluster = nodes.cluster
    requests = {
        node.name: Request(op="runs", args=node_args(cluster, node)) for node in cluster.nodes
    }
    node_runs: dict[str, dict[str, NodeRun]] = {}
    answers, errors = call_validated(nodes, requests, RunsAnswer, timeout=ANSWER_SECONDS)
    for node, answer in answers.items():
        for node_run in answer.runs:
            # A run's id becomes the name of a folder here: other names are skipped.
            if run_id.cluster_of(node_run.run) == cluster.name:
                node_runs.setdefault(node_run.run, {})[node] = node_run
    views = [_view(cluster, run, found, errors) for run, found in node_runs.items()]
    views.sort(key=lambda view: view.began or 0.0, reverse=True)
    return Discovered(runs=tuple(views), errors=errors)


def launches(
    nodes: Nodes, some: Iterable[Node], runs: Sequence[str]
) -> Iterator[tuple[str, Launched]]:
    """Ask some nodes what they keep of the launches of runs; yield each answer with its run."""
    requests = {
        node.name: Request(op="runs", args={**node_args(nodes.cluster, node), "launched": runs})
        for node in some
    }
    answers, _ = call_validated(nodes, requests, RunsAnswer, timeout=ANSWER_SECONDS)
    for answer in answers.values():
        for one in answer.runs:
            if one.launched is not None:
                yield one.run, one.launched


class SeveralLive(UsageError):  # noqa: N818  (a state of the cluster, not a fault)
    """No run was named, and several are live."""

    def __init__(self, views: Sequence[RunStatus]) -> None:
        """List them, with a hint that names one."""
        titles = ", ".join(view.title for view in views)
        hint = f"clusterctl status {views[0].run}"
        super().__init__(f"several runs are live: {titles}", hint=hint)
        self.runs = tuple(view.run for view in views)


def find_named(found: Discovered, word: str, recorded: Mapping[str, str], *, part: bool) -> str:
    """Return the id of the run that a word means, as `pick_run` has it; else the word itself.

    Args:
        found: the runs that the nodes know.
        word: as `pick_run` has it.
        recorded: runs of this machine that have it as a part, and their names.
        part: as `pick_run` has it.

    Raises:
        SeveralRuns: it is a part of several, or a mere part.
    """
    known = {view.run: view.name for view in found.runs}
    run = pick_run(word, known, part=part)
    if run is None and not part:
        refuse_part(word, {**recorded, **known})
    return run or word


def choose_run(found: Discovered, records: Iterable[RunRecord]) -> str:
    """Return the only live run, else the newest known one."""
    live = [view for view in found.runs if view.live]
    if len(live) > 1:
        raise SeveralLive(live)
    if live:
        return live[0].run
    # A run with a part on a node comes before one whose launch was refused.
    ages = {view.run: view.began or 0.0 for view in found.runs}
    if ages:
        return max(ages, key=lambda run: (ages[run], run))
    for newest in records:
        return newest.run
    if found.errors:
        silent = "; ".join(f"{one.node}: {one}" for one in found.errors)
        raise CouldNotTell(
            f"no run is known, and not every node answered: {silent}",
            hint="clusterctl check --only ssh",
        )
    raise ClusterError(
        "no run is known here",
        hint="start one: clusterctl launch -- train.py\n"
        "runs belong to the `cluster:` of their inventory: -i FILE names another",
    )


def require_newest(nodes: Nodes, newest_here: RunRecord, records: Records) -> None:
    """Refuse to take this machine's newest run for the newest: another machine began a later one.

    Raises:
        UsageError: the nodes know a later run, without a record here.
    """
    began = {view.run: view.began or 0.0 for view in discover(nodes).runs}
    since = began.get(newest_here.run, newest_here.began)
    later = [run for run in began if began[run] > since and records.with_id(run) is None]
    if later:
        raise UsageError(
            f"the newest run is {later[0]}, which another machine began; it has no record here",
            hint="clusterctl runs --discover, which makes one, then the same command\n"
            f"this machine's newest: clusterctl resume {newest_here.run} --checkpoint latest",
        )


def nodes_to_stop(view: RunStatus, cluster: Cluster, record: RunRecord | None) -> Cluster:
    """Return the cluster with the run's job, and the nodes that have or may get a part of it."""
    silent = {answer.node.name for answer in view.nodes if answer.error}
    planned = {node.name for node in record.cluster.nodes} if record else set()
    wanted = view.node_runs.keys() | (planned - silent)
    nodes = tuple(node for node in cluster.nodes if node.name in wanted)
    job = record.cluster.job if record else cluster.job
    return replace(cluster.with_nodes(nodes), job=job)


def nodes_of(found: Discovered, run: str, cluster: Cluster) -> Cluster:
    """Return the cluster with the nodes that have a part of a run, or may, without its command."""
    view = next((view for view in found.runs if view.run == run), None)
    if view is not None:
        return _without_command(cluster, [answer.node for answer in view.nodes])
    message = f"run {run} is known neither here nor on the nodes of {cluster.name}"
    if found.errors:
        silent = ", ".join(one.node for one in found.errors)
        raise CouldNotTell(
            f"{message}; {silent} did not answer", hint="clusterctl check --only ssh"
        )
    hint = "clusterctl runs"
    if any(run == node.name for node in cluster.nodes):
        lines = f"its lines: clusterctl logs --node {run}"
        hint = f"{run} is a node\n{lines}\nits runs: {hint} --node {run}"
    raise ClusterError(f"{message}; runs of other users are not shown", hint=hint)


def _view(
    cluster: Cluster,
    run: str,
    node_runs: Mapping[str, NodeRun],
    errors: Iterable[NodeError],
) -> RunStatus:
    silent = {error.node: error for error in errors}
    # A run may use only some nodes: one that answers without a part did not take part.
    nodes = [node for node in cluster.nodes if node.name in node_runs or node.name in silent]
    return view_of(run, _without_command(cluster, nodes), node_runs, silent)


def _without_command(cluster: Cluster, nodes: Sequence[Node]) -> Cluster:
    """Return the cluster with these nodes; the inventory's command need not be the run's."""
    return replace(cluster.with_nodes(tuple(nodes)), job=replace(cluster.job, command=()))
