"""Ask the nodes about checkpoints, and have the one that is chosen read to its last byte."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import PurePosixPath

from clusterctl.checks.storage.run_paths import job_path, share_of
from clusterctl.errors import LaunchRefused, NodeError
from clusterctl.inventory.cluster import Cluster, Node
from clusterctl.inventory.ranges import fold_hosts
from clusterctl.model.answers import ReadAnswer
from clusterctl.model.checkpoint import (
    CheckpointsAnswer,
    NodeCheckpoint,
    OneCheckpointAnswer,
    absent,
)
from clusterctl.node.checkpoints.copies import require_complete, require_own_ranks
from clusterctl.transport.interface import Reply, Request
from clusterctl.values import dataclass
from clusterctl.verbs.checkpoints.candidates import (
    Candidates,
    Copies,
    as_copies,
    is_shared,
    one_of_each,
    path_for_job,
    require_fit,
)
from clusterctl.verbs.events import Emit, Notice, Progress
from clusterctl.verbs.rpc import ANSWER_SECONDS, Nodes, call_validated, validated_answer
from clusterctl.verbs.runs.history import History

LATEST = "latest"
_MIB, _GIB = 1 << 20, 1 << 30
_TICK = 1.0
_LEFT_OUT_SECONDS = 4.0
"""Most nodes that are left out are down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenCheckpoint:
    """A checkpoint that is complete and the same on every node: every byte was read."""

    path: str
    """As the job is given it."""
    step: int | None
    format: str
    verified_on: tuple[str, ...]
    """The nodes that read it to its last byte; none for one in an object store, which each node
    downloads and verifies before a rank loads it."""
    skipped: tuple[str, ...] = ()
    """Newer ones, each with why it was not taken."""
    doubts: tuple[str, ...] = ()
    """What speaks against it, though it proves nothing."""
    others: tuple[str, ...] = ()
    """Some of other histories, each with why it was not taken and the command that takes it."""
    more_others: int = 0
    """How many there are besides the first of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointQuery:
    """Asks the nodes about checkpoints."""

    nodes: Nodes
    cluster: Cluster
    history: History
    ranks: Mapping[str, Sequence[int]]
    emit: Emit
    silence: float | None = None
    knows: dict[str, bool] = field(default_factory=dict)
    """Node → whether the run was on it."""

    @property
    def folders(self) -> tuple[str, ...]:
        """Where the runs of the history write their checkpoints, the newest run's first."""
        return self.history.folders(self.cluster.job)

    def ask(
        self,
        *,
        path: str | None = None,
        which: str = LATEST,
        among: Sequence[Node] | None = None,
        total: int = 0,
    ) -> Candidates:
        """Return each node's candidates, the master first.

        With `among` read to the last byte, by these nodes.
        """
        requests = {
            node.name: self._request(node, path, which, among)
            for node in among or self.cluster.nodes
        }
        found: dict[str, Sequence[NodeCheckpoint]] = {}
        failed: list[NodeError] = []
        for reply in self._replies(requests, which, total):
            wanted = CheckpointsAnswer if which == LATEST else OneCheckpointAnswer
            answer = validated_answer(reply, wanted)
            if not isinstance(answer, NodeError):
                found[reply.node] = answer.candidates
                self.knows[reply.node] = answer.knows
            elif answer.answered and answer.state == "missing":
                found[reply.node] = (absent(str(answer)),)
            else:
                failed.append(answer)
        if failed:
            raise self._not_verified(failed)
        # Replies come in any order; the first node, where the run began, is to be the judge.
        return {node: found[node] for node in requests}

    def left_out(self, path: str) -> Candidates:
        """Return what the nodes that are left out have on disks of their own, if they answer."""
        requests = {
            node.name: self._request(node, path, LATEST, None)
            for node in self.cluster.left_out
            if not share_of(self.cluster, job_path(node, path))
        }
        answers, _ = call_validated(
            self.nodes, requests, CheckpointsAnswer, timeout=_LEFT_OUT_SECONDS
        )
        return {name: answer.candidates for name, answer in answers.items()}

    def _request(
        self, node: Node, path: str | None, which: str, among: Sequence[Node] | None
    ) -> Request:
        return Request(
            op="checkpoints",
            args={
                "workdir": node.workdir,
                "path": path or next(iter(self.folders), None),
                "which": which,
                "verify": among is not None,
                "compare": among is not None and len(among) > 1,
                "world_size": self.history.runs[0].world_size,
                "silence": self.silence,
                **self.history.args(self.cluster, node),
            },
        )

    def _not_verified(self, failed: Sequence[NodeError]) -> LaunchRefused:
        """Return why, and the command for the nodes that answer, if some do not."""
        lines = [f"{each.node}: {each}: cannot verify the checkpoint there" for each in failed]
        hints = [each.hint for each in failed if each.hint]
        silent = {each.node for each in failed if not each.answered}
        left = [node.name for node in self.cluster.nodes if node.name not in silent]
        if silent and left:
            hints.append(f"to resume without it: --exclude {shlex.quote(fold_hosts(silent))}")
        hint = "\n".join(dict.fromkeys(hints)) or None
        return LaunchRefused("\n".join(lines), hint=hint, by="checkpoint")

    def _replies(self, requests: Mapping[str, Request], which: str, total: int) -> list[Reply]:
        """Follow the nodes to their answers; say how much the slowest has read."""
        read = dict.fromkeys(requests, 0)
        replies: list[Reply] = []
        strange: dict[str, Reply] = {}
        with self.nodes.following(requests, tick=_TICK, answer_timeout=ANSWER_SECONDS) as items:
            for item in items:
                if item is None:
                    continue
                node, message = item
                if isinstance(message, Reply):
                    replies.append(strange.get(node, message))
                    read.pop(node, None)
                elif "end" not in message.head:
                    told = validated_answer(Reply(node=node, messages=(message,)), ReadAnswer)
                    if isinstance(told, NodeError):
                        strange[node] = Reply.failed(node, told)
                        items.drop(node)
                    else:
                        read[node] = told.read
                        done = min(read.values()) // _MIB
                        phase = f"reading {PurePosixPath(which).name}, MiB"
                        limit, slow = max(total // _MIB, done), tuple(read)
                        self.emit(Progress(phase=phase, done=done, total=limit, waiting_for=slow))
        return replies

    def prove(self, seen: Copies) -> ChosenCheckpoint:
        """Return the checkpoint; raise Unfit unless it is whole and the same to its last byte."""
        doubts = require_fit(seen, self.cluster)
        first = next(iter(seen.values()))
        path = path_for_job(seen, self.cluster)
        shared = is_shared(seen, self.cluster)
        if not shared:
            doubts += require_own_ranks(as_copies(seen), self.ranks)
        readers = self.cluster.nodes[:1] if shared else self.cluster.nodes
        size = max(one.bytes for one in seen.values())
        # Without a manifest what several nodes have is also summed up, to be compared.
        total = size if shared or first.format == "clusterctl" else 2 * size
        names = ", ".join(node.name for node in readers)
        if size >= _GIB:
            self.emit(Notice(text=f"reading {path} ({size / _GIB:.1f} GiB) on {names}"))
        read = one_of_each(self.ask(which=path, among=readers, total=total))
        if shared:
            require_complete(as_copies(read))
        else:
            require_fit(read, self.cluster)
        first = next(iter(read.values()))
        answers = [*seen.values(), *read.values()]
        doubts += [doubt for one in answers for doubt in one.doubts]
        doubts += [one.mixed for one in answers if one.mixed]
        return ChosenCheckpoint(
            path=path,
            step=first.step,
            format=first.format,
            verified_on=tuple(node.name for node in readers),
            doubts=tuple(dict.fromkeys(doubts)),
        )
