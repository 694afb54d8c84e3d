"""Mirror the current folder into each node's workdir, and prove that it is there."""

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from clusterctl.errors import LargeCopy, NodeError, SyncRefused, UsageError
from clusterctl.inventory.cluster import Cluster, Node
from clusterctl.model.answers import AbortAnswer, PlaceAnswer, SeenAnswer, TreeAnswer
from clusterctl.plan.lock import lock_name
from clusterctl.sync.mirror import stays_and_needs
from clusterctl.sync.source import SourceTree, read_source, token_in
from clusterctl.sync.two_phase import TwoPhaseCommit
from clusterctl.transport.interface import Reply, Request
from clusterctl.transport.pool import Pool
from clusterctl.verbs.events import Emit, Notice, Progress
from clusterctl.verbs.rpc import T, node_error, validated_answer
from clusterctl.verbs.sync.copying import (
    Copying,
    announce_reading,
    checkpoints_in,
    reported,
    warn_of_copies,
)
from clusterctl.verbs.sync.deletions import deletions_of, refusal, remarks, warn_of_other_folder
from clusterctl.verbs.sync.result import HINTS, NodeSync, SyncOptions, SyncResult, SyncState
from clusterctl.verbs.sync.shared_folders import (
    NodeView,
    describe_user,
    mutually_seen,
    origin_of,
    placements,
    shared_folders,
    why_different,
)
from clusterctl.wire import Message

SYNC_SECONDS = 600.0
"""Longest a node may take to compare its folder."""
SEEN_SECONDS = 20.0
"""Longest a node may take to look for tokens; a node that was left out may be a broken one."""
CLEAR_SECONDS = 5.0
"""Longest that taking tokens away may hold up the end; a later sync removes what stays."""


def sync(
    cluster: Cluster,
    pool: Pool,
    source: Path,
    options: SyncOptions | None = None,
    *,
    emit: Emit,
) -> SyncResult:
    """Mirror `source` into every node's workdir.

    Raises:
        UsageError: a node has no workdir, the folder is not one to mirror, or any may be a run's.
        SyncRefused: it would delete too much, or the folder has other code than `options` ask for;
            nothing was changed.
    """
    began = time.monotonic()
    homeless = [node.name for node in cluster.nodes if not node.workdir]
    if homeless:
        message = (
            f"{', '.join(homeless)}: workdir: expected the folder that gets the code, found none"
        )
        raise UsageError(message, hint=f"add `workdir: /a/path` to {cluster.file or 'hosts.yaml'}")
    pool.begin()  # while the folder is read here
    found = read_source(
        source,
        leave_out=checkpoints_in(cluster, source),
        before=lambda unread: announce_reading(unread, emit),
    )
    wanted = options.tree if options else ""
    if wanted and found.tree != wanted:
        raise SyncRefused(
            f"the code in {source} differs from that of the run",
            hint="run the command in a folder with the run's code; --force takes this one",
        )
    work = _Sync(cluster, pool, found, options or SyncOptions(), emit)
    try:
        work.run()
    except LargeCopy as large:
        if not work.options.may_copy(large):
            raise
        work = replace(work, large=True, done={}, may_hold_token=[], refused=None, kept={})
        work.run()
    nodes = tuple(work.done[node.name] for node in cluster.nodes)
    remarks(work.kept, nodes, emit=emit)
    warn_of_copies(found, nodes, emit=emit)
    return SyncResult(
        cluster=cluster.name,
        source=str(source),
        tree=found.tree,
        files=len(found.listing),
        bytes=found.size,
        commit=found.commit,
        dirty=found.dirty,
        diff=found.diff,
        nodes=nodes,
        seconds=time.monotonic() - began,
    )


@dataclass(slots=True)
class _Sync:
    """One sync under way: each step asks only the nodes that the step before left open."""

    cluster: Cluster
    pool: Pool
    source: SourceTree
    options: SyncOptions
    emit: Emit
    done: dict[str, NodeSync] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict)
    may_hold_token: list[str] = field(default_factory=list)
    """Nodes that may have left a token which is still there."""
    refused: SyncRefused | None = None
    """Why nothing was changed."""
    large: bool = False
    """It may copy as much as there is."""
    kept: dict[str, Sequence[str]] = field(default_factory=dict)
    """By node, files that are still here but no longer synced."""
    copying: Copying | None = None
    """What is copied, once all nodes have agreed."""
    moved: dict[str, int] = field(default_factory=dict)
    """By node, the bytes that it was sent."""

    def run(self) -> None:
        """Bring all nodes to the tree, and leave none of its tokens there."""
        try:
            self._bring()
        except BaseException:
            self._clear()
            raise
        self._clear()

    def _bring(self) -> None:
        """Compare; find who shares a filesystem; give each filesystem the files; prove."""
        self.tokens = {node.name: secrets.token_hex(8) for node in self.cluster.nodes}
        own_token = secrets.token_hex(8)
        different = self._compare()
        if not different:
            return
        with token_in(self.source.folder, own_token):
            groups = self._groups(different, own_token)
        if own_token in groups:
            self._prove([n for n in groups.pop(own_token) if n.name in different], "source")
        self._place([nodes[0] for nodes in groups.values()])
        for first, *rest in groups.values():
            others = [node for node in rest if node.name in different]
            if not self.done[first.name].ok:
                words = f"shares its workdir with {first.name}, where the sync failed"
                for node in others:
                    self._note(node.name, "failed", words)
                continue
            cleared = {first.name, *(node.name for node in rest)}
            self.may_hold_token = [name for name in self.may_hold_token if name not in cleared]
            if others:
                self._prove(others, "shared")
        self._report_progress()

    def _compare(self) -> list[str]:
        """Ask all nodes; return the names of those that do not have the tree."""
        requests = {
            node.name: Request(
                op="sync-compare",
                args={
                    "workdir": node.workdir,
                    "tree": self.source.tree,
                    "token": self.tokens[node.name],
                },
                stay=True,
            )
            for node in self.cluster.nodes
        }
        different = []
        for reply in self.pool.call(requests, timeout=SYNC_SECONDS):
            answer = self._answer(reply, TreeAnswer)
            if answer is None:
                continue
            if answer.equal:
                self._note(reply.node, "unchanged")
            else:
                self.may_hold_token.append(reply.node)
                different.append(reply.node)
            total = len(self.cluster.nodes)
            self.emit(Progress(phase="compare", done=len(self.done) + len(different), total=total))
        return different

    def _groups(self, different: list[str], own_token: str) -> dict[str, list[Node]]:
        """Return the nodes by folder; `own_token` is the key of those that see the source folder.

        Nodes that have the tree already are among them: they are to keep it until all have it.
        Nodes that were left out are asked too: a run of theirs may work in a folder that one of
        ours shares.
        """
        nodes = [n for n in self.cluster.nodes if n.name in different or self._is_ok(n.name)]
        views = []
        for reply in self.pool.call(self._seen(nodes, own_token), timeout=SEEN_SECONDS):
            answer = validated_answer(reply, SeenAnswer)
            if not isinstance(answer, NodeError):
                views.append(NodeView(node=reply.node, tokens=answer.seen, run=answer.busy))
            elif reply.node in self.tokens:
                self._note_error(reply.node, answer)
            else:
                text = "cannot tell whether a run there uses a folder that this sync changes"
                self.emit(Notice(text=f"{text}: {answer}", level="warning", node=reply.node))
        groups: dict[str, list[Node]] = {}
        for found in shared_folders(mutually_seen(views, self.tokens)):
            shared = [node for node in nodes if node.name in found.nodes]
            if found.user is None or found.token == own_token:
                groups[found.token] = shared
                continue
            open_nodes = [node for node in shared if node.name in different]
            if not open_nodes:
                groups[found.token] = shared
            for node in open_nodes:
                words = describe_user(node.name, found.user)
                self._note(node.name, "failed", words, HINTS["running"])
        # Those that lack something first: one of them is given the files.
        return {
            token: sorted(shared, key=lambda node: node.name not in different)
            for token, shared in groups.items()
            if shared
        }

    def _seen(self, nodes: list[Node], own_token: str) -> dict[str, Request]:
        """Ask these nodes and those left out which tokens they see."""
        tokens = [own_token, *(self.tokens[node.name] for node in nodes)]
        others = [node for node in self.cluster.left_out if node.workdir]
        return {
            node.name: Request(
                op="share-look",
                args={
                    "workdir": node.workdir,
                    "tokens": tokens,
                    "lock": lock_name(self.cluster, node),
                },
                stay=True,
            )
            for node in (*nodes, *others)
        }

    def _place(self, firsts: list[Node]) -> None:
        """Give the files to one node of each filesystem, all at once; else raise SyncRefused."""
        if not firsts:
            return
        together = TwoPhaseCommit(sorted(node.name for node in firsts), self._agree)
        tokens = tuple(self.tokens.values())
        wanted = placements(
            self.cluster, self.source, firsts, tokens=tokens, together=together, moved=self.moved,
            kept=self.kept,
        )  # fmt: skip
        replies = self.pool.mirror(wanted)
        try:
            for reply in reported(replies, lambda: self.copying, self.moved, emit=self.emit):
                aborted = reply.ok and "aborted" in reply.last.head
                kind: type[AbortAnswer | PlaceAnswer] = AbortAnswer if aborted else PlaceAnswer
                placed = self._answer(reply, kind)
                if placed is not None:
                    self._note_placed(reply.node, placed, reply.last.head)
                elif (wrong := node_error(reply)) is not None and wrong.state == "locked":
                    together.abort()
                together.withdraw(reply.node)
                self._report_progress()
        finally:
            together.abort()
        if self.refused is not None:
            raise self.refused

    def _agree(self, plans: Mapping[str, Message]) -> bool:
        """Judge what all nodes would do; `refused` says why not."""
        stays, sizes = stays_and_needs(plans, self.source.folder, self.source.listing)
        self.kept.update(stays)
        copying = Copying(sizes=sizes)
        found = [deletions_of(name, plan, self.kept[name]) for name, plan in sorted(plans.items())]
        here = origin_of(self.source)
        warn_of_other_folder(found, here, emit=self.emit)
        if not self.options.delete:
            self.refused = refusal(
                found,
                here=here,
                workdirs={node.name: str(node.workdir) for node in self.cluster.nodes},
                options=self.options,
            )
        if self.refused is None and not self.large:
            self.refused = copying.refusal()
        if self.refused is None:
            self.copying = copying
        return self.refused is None

    def _note_placed(
        self, name: str, placed: AbortAnswer | PlaceAnswer, head: Mapping[str, Any]
    ) -> None:
        if isinstance(placed, AbortAnswer):
            self._note(name, "failed", "not changed, because not all nodes could be")
            return
        changed = placed.need or placed.deleted or placed.set_aside
        if changed or not self._is_ok(name):
            self._note(name, "updated")
        self.done[name] = replace(
            self.done[name],
            sent=placed.need,
            sent_paths=placed.sent_paths,
            deleted=placed.deleted,
            deleted_paths=placed.deleted_paths,
            set_aside=placed.set_aside,
        )
        if not placed.equal:
            workdir = self.done[name].workdir
            words, hint = why_different(self.source, workdir, head["sent"], placed.different)
            self._note(name, "failed", words, hint)

    def _prove(self, nodes: list[Node], state: SyncState) -> None:
        """Have nodes that were given nothing themselves read every file."""
        body = self.source.encoded
        requests = {
            node.name: Request(
                op="sync-compare",
                args={"workdir": node.workdir, "tree": self.source.tree, "fresh": True},
                body=body,
            )
            for node in nodes
        }
        for reply in self.pool.call(requests, timeout=SYNC_SECONDS):
            answer = self._answer(reply, TreeAnswer)
            if answer is None:
                continue
            if answer.equal:
                self._note(reply.node, state)
            else:
                different = ", ".join(answer.different)
                words = f"sees other contents in its workdir: {different}"
                self._note(
                    reply.node, "failed", words, "is the shared filesystem healthy? sync again"
                )

    def _clear(self) -> None:
        """Take the tokens away; whatever of it fails is not worth a word."""
        args = {"tokens": list(self.tokens.values())}
        requests = {
            name: Request(
                op="share-clear", args={"workdir": self.cluster.node(name).workdir, **args}
            )
            for name in self.may_hold_token
        }
        for _ in self.pool.call(requests, timeout=CLEAR_SECONDS):
            pass

    def _report_progress(self) -> None:
        self.emit(Progress(phase="sync", done=len(self.done), total=len(self.cluster.nodes)))

    def _is_ok(self, name: str) -> bool:
        return name in self.done and self.done[name].ok

    def _answer(self, reply: Reply, wanted: type[T]) -> T | None:
        """Return what a node answered; None: it is noted why there is nothing."""
        answer = validated_answer(reply, wanted)
        if not isinstance(answer, NodeError):
            return answer
        self._note_error(reply.node, answer)
        return None

    def _note_error(self, name: str, error: NodeError) -> None:
        if not error.answered:
            self._note(name, "unreachable", str(error), error.hint)
            return
        words, holder = str(error), error.details.get("holder")
        if error.state == "busy" and holder:
            words = describe_user(name, NodeView(node=name, tokens=(), run=holder))
        self._note(name, "failed", words, error.hint or HINTS.get(error.state, ""))

    def _note(self, name: str, state: SyncState, words: str = "", hint: str = "") -> None:
        workdir = str(self.cluster.node(name).workdir)
        before = self.done.get(name) or NodeSync(node=name, state=state, workdir=workdir)
        self.done[name] = replace(before, state=state, words=words, hint=hint)
