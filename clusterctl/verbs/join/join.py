"""Let nodes join a run: check them, verify the code, ask the master, start their part.

What they run comes from this machine's record of the launch, or from one that its nodes kept with
this machine's proof. What the run's master says becomes no command.
"""

import contextlib
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from clusterctl.errors import ClusterError, CouldNotTell, LaunchRefused, NodeError, SyncRefused
from clusterctl.inventory.cluster import Cluster, Node
from clusterctl.model.answers import Admission, JoinTerms, StartAnswer, TreeAnswer
from clusterctl.model.from_json import from_json, invalid
from clusterctl.model.node_run import Launched
from clusterctl.plan.join import RunningJob
from clusterctl.plan.plan import NodePlan
from clusterctl.transport.interface import Request
from clusterctl.transport.pool import Pool
from clusterctl.values import dataclass
from clusterctl.verbs.events import Emit, Notice, Progress
from clusterctl.verbs.join.result import JoinResult, JoinState, NodeJoin
from clusterctl.verbs.launch.notice_job import notice_job
from clusterctl.verbs.launch.start_run import START_SECONDS
from clusterctl.verbs.launch.validate_job import require_secrets
from clusterctl.verbs.preflight.check import CheckOptions, CheckResult, check, check_code
from clusterctl.verbs.quarantine.quarantine import known_or_warned
from clusterctl.verbs.rpc import ANSWER_SECONDS, run_args, validated_answer
from clusterctl.verbs.runs.node_answers import node_answers
from clusterctl.verbs.runs.proof import prove, proven_record
from clusterctl.verbs.runs.records import Records, RunRecord
from clusterctl.verbs.runs.run_status import RunStatus
from clusterctl.verbs.runs.way_on import relaunch
from clusterctl.verbs.sync.result import SyncOptions
from clusterctl.verbs.sync.sync import SYNC_SECONDS, sync
from clusterctl.wire import Message, plain

COME_SECONDS, COME_POLL = 15.0, 0.3
"""How long a node's supervisor may take until the master has heard it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinOptions:
    """How nodes join."""

    source: Path
    """The folder that is synced to a node without the run's code."""
    environment: Mapping[str, str]
    """The controller's own; only what `env_from` names is taken."""
    force: bool = False
    """Join in spite of checks that failed, and with other code."""


class _Refused(Exception):  # noqa: N818  (one node's outcome, not a fault)
    """The node does not join."""

    def __init__(
        self, message: str, hint: str = "", state: JoinState = "refused", kind: str = ""
    ) -> None:
        super().__init__(message)
        self.hint, self.state, self.kind = hint, state, kind

    def of(self, node: Node) -> NodeJoin:
        """Return it as the node's outcome."""
        return NodeJoin(node=node.name, state=self.state, message=str(self), hint=self.hint)


def join(
    inventory: Cluster,
    pool_of: Callable[[Cluster], Pool],
    run: str,
    run_cluster: Cluster,
    nodes: Sequence[Node],
    options: JoinOptions,
    records: Records,
    *,
    emit: Emit,
) -> JoinResult:
    """Let nodes join a run, one after the other.

    Raises:
        CouldNotTell: the run's master does not answer, and no node has joined.
        ClusterError: the run is over, or no node knows it, and no node has joined.
        UsageError: a variable that `env_from` names is not set, and no node has joined.
    """
    outcomes: list[NodeJoin] = []
    for node in nodes:
        try:
            view = node_answers(pool_of(run_cluster), run, run_cluster, emit=emit)
            master = _master(view, inventory, run_cluster.file)
            newcomer = _Newcomer(
                inventory, pool_of, master, node, options, records, run_cluster, emit
            )
            joined = newcomer.join(run, view)
        except _Refused as error:
            outcomes.append(error.of(node))
            continue
        except ClusterError as error:
            if not any(one.state == "joined" for one in outcomes):
                raise
            state: JoinState = "unreachable" if isinstance(error, CouldNotTell) else "refused"
            outcomes.append(_Refused(str(error), error.hint or "", state).of(node))
            continue
        remember(records, *joined)
        standby = joined[-1].launch is not None
        outcomes.append(NodeJoin(node=node.name, state="joined", standby=standby))
        known = tuple(one for one in run_cluster.nodes if one.name != node.name)
        run_cluster = run_cluster.with_nodes((*known, node))
    return JoinResult(run=run, nodes=tuple(outcomes))


def _master(view: RunStatus, inventory: Cluster, file: str) -> Node:
    """Return the run's master; `file` is the inventory of the launch."""
    names = {one.master.node for one in view.node_runs.values() if one.master} - {""}
    if len(names) > 1:
        raise ClusterError(
            f"{view.run}: expected one master, found {', '.join(sorted(names))}",
            hint=f"clusterctl status {view.run}",
        )
    name = next(iter(names), "")
    silent = {answer.node.name: answer.error for answer in view.silent}
    if name in silent or (not view.known and silent):
        errors = "; ".join(f"{node}: {error}" for node, error in silent.items())
        raise CouldNotTell(f"{view.run}: its master does not answer: {errors}")
    if not view.live:
        own = view.node_runs.get(name)  # a node that is silent now does not make it unknown
        state = own.state if own else view.state
        again = f"clusterctl resume {view.run} --checkpoint latest"
        hint = None if state == "finished" else again
        raise ClusterError(f"{view.run}: the run is over: {state}", hint=hint)
    try:
        return inventory.node(name)
    except KeyError:
        raise ClusterError(
            f"{view.run}: its master {name} is not in {inventory.file or 'the inventory'}",
            hint=f"-i {shlex.quote(file)}" if file else None,
        ) from None


@dataclass(frozen=True, slots=True)
class _Newcomer:
    """A node that is to join."""

    inventory: Cluster
    pool_of: Callable[[Cluster], Pool]
    master: Node
    node: Node
    options: JoinOptions
    records: Records
    run_cluster: Cluster
    emit: Emit

    def join(self, run: str, view: RunStatus) -> tuple[RunRecord, Node, NodePlan]:
        """Check the node, verify its code, and start its part.

        Returns:
            The record of the run, and the node with its plan.

        Raises:
            _Refused: it does not join.
            CouldNotTell: the master does not answer.
        """
        name = self.node.name
        job = from_json(JoinTerms, self._ask_master(run, asks=True).head, "").job or {}
        record = self._trusted(run, job)
        try:
            launched = record.cluster.job, record.options
            running = RunningJob.read(job, record.plan, *launched)
        except ValueError as error:
            raise _Refused(
                f"what its master {self.master.name} runs is refused: {error}"
            ) from error
        proof = prove(record, running.plan, self.records.root)
        running = replace(running, launched=proof, resumed=record.resumed)
        cluster = running.cluster(self.inventory, self.node)
        notice_job(cluster.job, node=name, emit=self.emit)
        require_secrets(cluster)
        bad = known_or_warned(cluster, self.records.root)
        options = CheckOptions(code=False, quarantined=bad)
        verdict = check(cluster, self.pool_of(cluster), options, emit=self.emit)
        self._judge(verdict)
        self._bring_code(cluster, record.tree)
        if cluster.job.check:
            own = cluster.with_nodes((cluster.node(name),))
            verdict_of_code = check_code(own, self.pool_of(own), verdict, emit=self.emit)
            self._judge(verdict_of_code)
        plan = self._start(run, running, cluster, verdict, view)
        self.emit(Progress(phase="join", done=1, total=1))
        return record, cluster.node(name), plan

    def _trusted(self, run: str, job: Mapping[str, Any]) -> RunRecord:
        """Return this machine's record of the run, else one that the master has a proof of."""
        record = self.records.read(self.inventory.name, run)
        if record is None or record.discovered:
            launched = job.get("launched")
            known = None if invalid(Launched, launched) else from_json(Launched, launched, "")
            record = proven_record(known, run, self.inventory, self.records.root)
        if record is None:
            raise _Refused(
                f"this machine did not launch {run}, and cannot verify what its master"
                f" {self.master.name} says that it runs",
                f"on the machine that launched it: clusterctl join {run} --nodes {self.node.name}",
            )
        return record

    def _ask_master(self, run: str, **how: bool) -> Message:
        """Ask whether the node may join, or let it join, or withdraw that."""
        pool = self.pool_of(self.inventory)
        args = {**run_args(run, self.inventory, self.master), "joins": self.node.name, **how}
        request = Request(op="join", args=args)
        (reply,) = pool.call({self.master.name: request}, timeout=ANSWER_SECONDS)
        found = validated_answer(reply, JoinTerms if how else Admission)
        if not isinstance(found, NodeError):
            return reply.last
        if found.answered and found.state == "not-elastic":
            ours = {self.node.name, *(node.name for node in self.run_cluster.nodes)}
            names = ",".join(node.name for node in self.inventory.nodes if node.name in ours)
            record = self.records.read(self.inventory.name, run)
            name = str(record.options.get("name") or "") if record else ""
            again = relaunch(run, self.run_cluster, "--nodes", names, name=name)
            raise _Refused(str(found), f"clusterctl stop {run} && {again}")
        if found.answered:
            raise _Refused(str(found), found.hint, kind=found.state)
        raise CouldNotTell(f"{run}: its master does not answer: {self.master.name}: {found}")

    def _judge(self, verdict: CheckResult) -> None:
        """Refuse a node on which a check failed that the run depends on.

        The master is judged too, but it runs the job: what is found there alone does not count.
        """
        name = self.node.name
        unreached = next(
            (f for f in verdict.findings if f.check == "ssh" and name in f.nodes), None
        )
        if unreached is not None and unreached.status in {"fail", "unknown"}:
            raise _Refused(unreached.message, unreached.remedy, "unreachable")
        blocking = [finding for finding in verdict.blocking if name in finding.nodes]
        if blocking and not self.options.force:
            lines = [f"{finding.message} ({finding.check})" for finding in blocking]
            hint = f"clusterctl check --explain {blocking[0].check}; --force joins anyway"
            raise _Refused("\n".join(lines), hint)
        for finding in verdict.findings:
            if finding.nodes == (name,) and finding.status in {"warn", "fail", "unknown"}:
                text = f"{finding.message} ({finding.check})"
                self.emit(Notice(text=text, level="warning", node=name))

    def _bring_code(self, cluster: Cluster, tree: str) -> None:
        """Verify that the node has the run's code; if not, sync it."""
        node = cluster.node(self.node.name)
        if not tree or not node.workdir:
            return
        own = cluster.with_nodes((node,))
        pool = self.pool_of(own)
        args = {"workdir": node.workdir, "tree": tree}
        request = Request(op="sync-compare", args=args)
        (reply,) = pool.call({node.name: request}, timeout=SYNC_SECONDS)
        found = validated_answer(reply, TreeAnswer)
        if not isinstance(found, NodeError) and found.equal:
            return
        options = SyncOptions(
            command=cluster.job.command,
            launching=True,
            tree="" if self.options.force else tree,
            may_copy=lambda _: True,  # the other nodes of the run were given it
        )
        try:
            synced = sync(own, pool, self.options.source, options, emit=self.emit)
        except SyncRefused as error:
            raise _Refused(str(error), error.hint or "") from error
        for result in synced.nodes:
            if not result.ok:
                state: JoinState = "unreachable" if result.state == "unreachable" else "refused"
                raise _Refused(f"the code is not there: {result.words}", result.hint, state)

    def _start(
        self,
        run: str,
        running: RunningJob,
        cluster: Cluster,
        verdict: CheckResult,
        view: RunStatus,
    ) -> NodePlan:
        """Have the master let the node in, and start its part."""
        name = self.node.name
        earlier = view.node_runs.get(name)
        total = max(one.world_size for one in view.node_runs.values())
        first = earlier.rank0 if earlier else None
        with self._admitted(run) as let_in:
            terms: Admission = from_json(Admission, let_in.head, "")
            plan = running.plan_node(
                cluster,
                verdict.facts[name],
                verdict.network,
                node_rank=terms.node_rank,
                nnodes=len(terms.nodes),
                first_rank=total if first is None else first,
            )
            if why := running.misfit(plan):
                raise _Refused(why, "set procs: or gpus: of the node in the inventory")
            job = running.node_job(
                plan,
                state=self.node.state,
                nodes=terms.nodes,
                link_port=terms.link_port,
                world_size=total if earlier else total + plan.procs,
            )
            body = running.secrets(let_in.body.decode(errors="replace"), self.options.environment)
            request = Request(
                op="start", args={"job": job, "forces": self.options.force}, body=body
            )
            own = cluster.with_nodes((cluster.node(name),))
            (reply,) = self.pool_of(own).call({name: request}, timeout=START_SECONDS)
            answer = validated_answer(reply, StartAnswer)
            if isinstance(answer, NodeError):
                busy = "the node is busy: " if answer.state == "busy" else ""
                state: JoinState = "refused" if answer.answered else "unreachable"
                raise _Refused(f"{busy}{answer}", answer.hint, state)
            if not self._has_come(run):
                why = f"its supervisor does not reach that of the master {self.master.name}"
                raise _Refused(why, f"clusterctl status {run}")
        return plan

    def _has_come(self, run: str) -> bool:
        """Tell whether the master has heard the node's supervisor; wait for that a little."""
        until = time.monotonic() + COME_SECONDS
        while time.monotonic() < until:
            try:
                self._ask_master(run, asks=True)
            except _Refused as refused:
                return refused.kind == "joined"
            time.sleep(COME_POLL)
        return False

    @contextlib.contextmanager
    def _admitted(self, run: str) -> Iterator[Message]:
        """Have the master let the node in; if the block fails, ask it to expect the node no longer.

        Unless it hears of that, it does so itself after minutes: that hides no error of the block.

        Raises:
            _Refused: it may not join, or the block has refused the launch.
            CouldNotTell: the master does not answer.
        """
        let_in = self._ask_master(run)
        try:
            yield let_in
        except BaseException as error:
            with contextlib.suppress(CouldNotTell, _Refused):
                self._ask_master(run, withdraws=True)
            if isinstance(error, LaunchRefused):
                raise _Refused(str(error), error.hint or "") from error
            raise


def remember(records: Records, record: RunRecord, node: Node, node_plan: NodePlan) -> None:
    """Add a node that joined to this machine's record of the run; as a spare, if it stands by."""
    if node_plan.launch is not None:
        if node.name in (one.name for one in record.cluster.nodes):
            return
        node = replace(node, spare=True)
    others = tuple(one for one in record.cluster.nodes if one.name != node.name)
    place = next((n for n, one in enumerate(record.cluster.nodes) if one.name == node.name), -1)
    nodes = (*others, node) if place < 0 else (*others[:place], node, *others[place:])
    kept = [one for one in record.plan["nodes"] if one.get("node") != node.name]
    plan = {**record.plan, "nodes": [*kept, plain(node_plan)]}
    records.write(replace(record, cluster=record.cluster.with_nodes(nodes), plan=plan))
