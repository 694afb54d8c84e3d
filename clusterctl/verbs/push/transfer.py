"""One path on its way: from its source through a chain of nodes, each of which passes it on.

A node that dies or cannot be reached leaves the chain, and the one before it serves the next.
"""

import itertools
import secrets
import shlex
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from clusterctl.checks.wording import size_of
from clusterctl.errors import ClusterError, NodeError
from clusterctl.model.push import Compared, Manifest, PushMessage
from clusterctl.plan.certificate import Identity, make_identity
from clusterctl.transport.interface import Call, Reply, Request
from clusterctl.verbs.events import CopyProgress, Emit
from clusterctl.verbs.push.result import HERE, NodePush, PathPush, WantedPath
from clusterctl.verbs.push.wanted import Source
from clusterctl.verbs.rpc import Nodes, validated_answer
from clusterctl.verbs.sync.shared_folders import NodeView, mutually_seen, shared_folders
from clusterctl.wire import Message

MANIFEST_LIMIT = 48 * 1024 * 1024
"""Bytes of a deflated list of files with their hashes: no source makes a larger one."""
ALIVE_SECONDS = 10.0
"""How often nodes hear that the controller is still there."""
RETRY_SECONDS = 1.0
STALL_SECONDS = 60.0
"""Without blocks for so long, the link to a node is made again: TCP would wait for a quarter of an
hour where packets are lost on the way."""
STALL_BYTES = 1 << 20
"""Less than this in that time, unless it is the rest, counts as nothing: else a node that takes a
byte now and then would keep a push open."""
RETRIES = 2
"""How often a link that broke is made again before the node after it is given up."""
SOURCE = "<source>"
"""The source's call among those of the nodes; no node has this name."""


@dataclass(slots=True)
class _Member:
    """One node that is to have the path."""

    name: str
    token: str
    """By which nodes find that they share a folder."""
    identity: Identity | None = None
    """By which the node before knows this one, and this one it."""
    step: str = "start"
    """The last step that it answered."""
    missing: int = 0
    received: int = 0
    counted: int = 0
    """How much of it had come when enough last came."""
    received_at: float = 0.0
    """When that was."""
    compared: int = 0
    port: int = 0
    lost: int = 0
    """How often the node before it lost it."""
    seen: tuple[str, ...] = ()
    """The tokens of nodes that write to the same folder."""
    complete: bool = False
    extra: str = ""
    """Names that the source does not have."""
    leader: str = ""
    """The node that is given the blocks, if it shares this one's filesystem."""
    fed: bool = False
    """It was asked what it has since it was last linked: the blocks come through this machine."""
    suspect: bool = False
    """The node after it complained of it, or it of that one."""
    rechecked: bool = False
    """The source was asked whether a block is wrong that this node says was."""
    error: NodeError | None = None

    @property
    def open(self) -> bool:
        """It takes part, and does not have all yet."""
        return self.error is None and not self.complete and not self.leader


@dataclass(slots=True)
class Transfer:
    """The transfer of one path."""

    wanted: WantedPath
    source: Source
    pool: Nodes
    source_pool: Nodes
    """Where the source's call goes: the nodes', or that of this machine."""
    addresses: Mapping[str, str]
    """By node, its address on the data network."""
    emit: Emit
    members: dict[str, _Member] = field(default_factory=dict)
    calls: dict[str, Call] = field(default_factory=dict)
    chain: list[str] = field(default_factory=list)
    """The nodes that are given blocks, in the order in which these pass."""
    apart: list[str] = field(default_factory=list)
    """The nodes that the source itself serves after the chain, one by one."""
    totals: tuple[int, int] = (0, 0)
    """Bytes and files."""
    content: str = ""
    """A hash that copies with equal contents share."""
    left_out: tuple[str, ...] = ()
    """The first paths that cannot be copied, such as links to folders elsewhere."""
    pulls: bool = False
    """Results for a user: no file there is replaced unasked, and there may be others."""
    replaces: bool = False
    """A pull may replace files."""
    relaying: bool = False
    """This machine reaches the nodes by SSH only: the blocks go through it."""
    began: float = field(default_factory=time.monotonic)
    sending_since: float = 0.0
    alive_at: float = field(default_factory=time.monotonic)
    links: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    """The numbers of the links: a receiver takes the newest."""

    def run(self, names: tuple[str, ...], manifest: bytes = b"") -> PathPush:
        """Bring the path to these nodes.

        Args:
            names: the nodes.
            manifest: what `describe` returned; empty: it is called here.

        Raises:
            ClusterError: the source cannot be read, or changed meanwhile.
        """
        manifest = manifest or self.describe()
        self.calls[SOURCE] = self.source_pool.start(
            self.source.name,
            Request(
                op="push",
                args={"target": self.source.path, "source": True},
                body=manifest,
            ),
        )
        try:
            for name in names:
                self._start(name, manifest)
            for name, item in self.pool.follow(self.calls):
                self._take(name, item)
                self._advance()
                self._find_stalled()
                self._keep_alive()
                self.emit(self._progress())
                if self._over():
                    break
            self._end()
        finally:
            for call in self.calls.values():
                call.close()
        size, files = self.totals
        return PathPush(
            path=self.wanted.shown,
            source=self.source.name,
            source_path=self.source.path,
            bytes=size,
            files=files,
            nodes=tuple(self._outcome(self.members[name]) for name in names),
            seconds=time.monotonic() - self.began,
        )

    def _start(self, name: str, manifest: bytes) -> None:
        """Let a node take part."""
        own = make_identity("push")
        member = self.members[name] = _Member(name=name, token=secrets.token_hex(8), identity=own)
        secret = {"certificate": own.certificate, "key": own.key, "token": own.token}
        args = {**secret, "target": self.wanted.targets[name], "mark": member.token}
        self.calls[name] = self.pool.start(name, Request(op="push", args=args, body=manifest))

    def describe(self) -> bytes:
        """Have the source hash the path; return its manifest.

        Raises:
            ClusterError: the source cannot be read.
        """
        args = {"path": self.source.path, "leave_out": self.pulls}
        request = Request(op="push-list", args=args, body_limit=MANIFEST_LIMIT)
        call = self.source_pool.start(self.source.name, request)
        body = b""
        try:
            for _, item in self.source_pool.follow({self.source.name: call}):
                if isinstance(item, Reply):
                    error = item.error
                elif "hashed" in item.head:
                    size = self.source.facts.size or 0
                    self.emit(
                        CopyProgress(
                            path=self.wanted.shown,
                            phase="hashing",
                            done=min(_whole(item.head["hashed"]), size),
                            total=size,
                            nodes=0,
                            total_nodes=0,
                        )
                    )
                    continue
                else:
                    reply = Reply(node=self.source.name, messages=(item,))
                    listed = validated_answer(reply, Manifest)
                    error = listed if isinstance(listed, NodeError) else None
                    if not isinstance(listed, NodeError):
                        self.totals = listed.bytes, listed.files
                        self.content, self.left_out = listed.content, listed.left_out
                        body = item.body
                if error is not None:
                    raise ClusterError(
                        f"{self.wanted.shown}: {self.source.name}: {error}",
                        hint=self._hint(error),
                    )
        finally:
            call.close()
        return body

    def _hint(self, error: NodeError) -> str | None:
        """Say what to do about a path that the source cannot list."""
        if error.state != "too-many-files":
            return error.hint or None
        folder = shlex.quote(self.source.path)
        pack = f"tar -cf {folder}.tar -C {folder} ."
        if self.source.name != HERE:
            pack = f"clusterctl exec --nodes {self.source.name} -- {pack}"
        return f"push one file: {pack}"

    def _take(self, name: str, item: Message | Reply) -> None:
        """Note what a node said, or that its connection ended."""
        if name == SOURCE:
            self._take_from_source(item)
            return
        member = self.members[name]
        if member.error is not None:
            return
        if isinstance(item, Reply):
            if not self._is_over(member):
                self._drop(member, item.error or NodeError("lost", "answer", "it ended early"))
            return
        told = validated_answer(Reply(node=name, messages=(item,)), PushMessage)
        if isinstance(told, NodeError):
            self._drop(member, told)
            return
        self._note(member, told, item.body)

    def _note(self, member: _Member, told: PushMessage, body: bytes) -> None:
        member.received = max(member.received, min(told.received, member.missing))
        if member.counted < member.received >= min(member.counted + STALL_BYTES, member.missing):
            member.counted, member.received_at = member.received, time.monotonic()
        member.compared = max(member.compared, told.compared)
        if told.ready is not None and member.step == "start":
            member.step = "ready"
        elif told.seen is not None and member.step == "see":
            member.step, member.seen = "seen", told.seen
        elif told.found is not None and member.step == "compare":
            member.step = "found"
            member.missing = min(told.found.missing, self.totals[0])
            self._judge_room(member, told.found)
            if self.pulls and not self.replaces:
                self._judge_replaced(member, told.found)
        elif told.listening is not None and member.step == "begin":
            member.step, member.port = "listening", told.listening
        elif told.complete is not None and member.step == "listening":
            member.complete, member.extra = True, _extra(told)
        else:
            self._note_trouble(member, told, body)

    def _note_trouble(self, member: _Member, told: PushMessage, body: bytes) -> None:
        """Note that a node failed, that it lost the next one, or that it is to be fed."""
        if told.failed is not None:
            self._drop(member, NodeError("file", "operation", told.failed))
        elif told.feeding is not None:
            # Of another than the first it would end the relay that the others wait for.
            if member.fed and self.chain[:1] == [member.name]:
                member.fed = False
                self._send(SOURCE, {"step": "relay", "peer": member.name}, body)
        elif told.lost is not None:
            self._link_lost(member.name, told.lost, told.why)
        elif told.bad is not None:
            self._found_bad(member, told.bad)

    def _take_from_source(self, item: Message | Reply) -> None:
        told: PushMessage | NodeError | str
        if isinstance(item, Reply):
            told = item.error or "it ended early"
        else:
            told = validated_answer(Reply(node=self.source.name, messages=(item,)), PushMessage)
        if not isinstance(told, PushMessage) or isinstance(item, Reply):
            raise ClusterError(f"{self.wanted.shown}: {self.source.name}, the source: {told}")
        member = self.members.get(told.to or "")
        if told.block is not None and member is not None:
            if member.open and self.chain[:1] == [member.name]:
                step = {"step": "block", "index": told.block, "more": told.more}
                self._send(member.name, step, item.body)
        elif told.right is not None and member is not None:
            self._judge(member, source_is_right=told.right)
        elif told.lost is not None:
            self._link_lost(SOURCE, told.lost, told.why)

    def _advance(self) -> None:
        """Continue with the next step once all nodes have done the last one."""
        live = [m for m in self.members.values() if m.error is None and not m.leader]
        steps = {member.step for member in live}
        if steps == {"ready"}:
            tokens = [member.token for member in live]
            self._step(live, {"step": "see", "tokens": tokens})
        elif steps == {"seen"}:
            self._share(live)
            self._step([m for m in live if not m.leader], {"step": "compare"})
        elif steps == {"found"}:
            for member in live:
                self._step([member], {"step": "begin", "address": self.addresses[member.name]})
        elif steps == {"listening"} and not self.sending_since:
            self.sending_since = time.monotonic()
            self.chain = [member.name for member in live if not member.complete]
            for before, after in zip([SOURCE, *self.chain], self.chain, strict=False):
                self._link(before, after)
        elif self.sending_since and not any(m.open and not m.suspect for m in self._chained()):
            self._serve_apart()

    def _serve_apart(self) -> None:
        """Let the source serve the next node apart: one that complained before its suspect."""
        waiting = [self.members[name] for name in (*self.apart, *self.chain)]
        self.apart = [member.name for member in waiting if member.open]
        self.chain, self.apart = self.apart[:1], self.apart[1:]
        for member in self._chained():
            member.suspect, member.received_at = False, time.monotonic()
            self._link(SOURCE, member.name)

    def _share(self, live: list[_Member]) -> None:
        """Let one node of each filesystem be given the blocks."""
        views = [NodeView(node=m.name, tokens=m.seen, run=None) for m in live]
        believed = mutually_seen(views, {m.name: m.token for m in live})
        for group in shared_folders(believed):
            first, *others = group.nodes
            for name in others:
                self.members[name].leader = first
                self._send(name, {"step": "end"})

    def _judge_room(self, member: _Member, found: Compared) -> None:
        """Drop a node whose disk would be full."""
        words = ""
        if found.free < found.missing:
            words = f"{size_of(found.missing)} to write, {size_of(found.free)} free"
        elif (found.free_files or found.files) < found.files:
            words = f"{found.files} files to write, {found.free_files} inodes free"
        if words:
            path = self.wanted.targets[member.name]
            hint = f"make room for {path}"
            self._drop(member, NodeError("full", "operation", f"{path}: {words}", hint))

    def _judge_replaced(self, member: _Member, found: Compared) -> None:
        """Copy nothing over files of the person's."""
        if found.replaced:
            first = found.replaced_paths
            names = ", ".join(first) + (", …" if found.replaced > len(first) else "")
            place = self.wanted.targets[member.name]
            words = f"{place} has other contents: {names}"
            hint = "replace it: --overwrite\nput it elsewhere: --to DIR"
            self._drop(member, NodeError("exists", "operation", words, hint))

    def _link(self, before: str, after: str, *, seconds: float = 0.0) -> None:
        """Let one node serve another from now on."""
        member = self.members[after]
        member.fed = before == SOURCE and self.relaying
        if member.fed:
            self._send(after, {"step": "feed"})
            return
        assert member.identity is not None
        place = {"address": self.addresses[after], "port": member.port, "after": seconds}
        shown = member.identity.ticket(next(self.links))
        known = {"certificate": member.identity.certificate, "ticket": shown}
        self._send(before, {"step": "send", "peer": after, **place, **known})

    def _link_lost(self, before: str, after: str, why: str) -> None:
        """Make a link again; after some times give the node up."""
        member = self.members.get(after)
        if member is None or not member.open or after not in self.chain:
            return  # it exited meanwhile
        if self._before(after) != before:
            return  # another serves it meanwhile
        if member.rechecked:
            return  # it ended the link itself; what the source finds decides on it
        member.lost += 1
        if before == SOURCE and self.source.name == HERE and not self.relaying:
            self.relaying = True
            self._link(before, after)
        elif member.lost <= RETRIES:
            self._link(before, after, seconds=RETRY_SECONDS)
        elif before != SOURCE:
            self._set_apart(member)
        else:
            address = f"{self.addresses[after]}:{member.port}"
            words = f"{self.source.name} cannot send to it at {address}: {why}"
            hint = "does a firewall on it refuse connections of the other nodes? clusterctl check"
            self._drop(member, NodeError("link", "operation", words, hint))

    def _find_stalled(self) -> None:
        """Make the first link again over which nothing comes; those after it wait for it."""
        now = time.monotonic()
        waiting = [member for member in self._chained() if member.open]
        if waiting and now - max(waiting[0].received_at, self.sending_since) > STALL_SECONDS:
            for member in waiting:
                member.received_at = now
            words = f"less than {size_of(STALL_BYTES)} arrived in {STALL_SECONDS:.0f} s"
            self._link_lost(self._before(waiting[0].name), waiting[0].name, words)

    def _chained(self) -> list[_Member]:
        return [self.members[name] for name in self.chain]

    def _before(self, name: str) -> str:
        place = self.chain.index(name)
        return self.chain[place - 1] if place else SOURCE

    def _found_bad(self, member: _Member, block: int) -> None:
        """Deal with a block that a node says is not what it should be."""
        if member.name not in self.chain or not member.open:
            return
        if self._before(member.name) != SOURCE:
            self._set_apart(member)
        elif not member.rechecked:
            member.rechecked = True
            self._send(SOURCE, {"step": "recheck", "block": block, "peer": member.name})

    def _judge(self, member: _Member, *, source_is_right: bool) -> None:
        """Decide between the source and a node that it serves."""
        if not source_is_right:
            raise ClusterError(
                f"{self.source.name}: {self.source.path} changed while it was sent",
                hint="try again when nothing writes to it; what was sent is kept",
            )
        if member.open:
            words = f"it found blocks wrong that {self.source.name} sent and has right"
            hint = f"clusterctl check --nodes {member.name}"
            self._drop(member, NodeError("bad-output", "operation", words, hint))

    def _set_apart(self, member: _Member) -> None:
        """Let the source itself serve a node that cannot get on with the one before it.

        Which of them is wrong only one of them knows, so neither is given up for it. The one before
        serves no other node any more: it becomes the last of the chain, for which no other waits.
        """
        before = self._before(member.name)
        self._leave(before)
        self._leave(member.name)
        member.lost = 0
        self.apart.append(member.name)
        if self.members[before].open:
            self.members[before].suspect = True
            self.chain.append(before)
            self._link(self._before(before), before)

    def _leave(self, name: str) -> None:
        """Take a node out of the chain: the one before it serves the one after it."""
        before, place = self._before(name), self.chain.index(name)
        self.chain.remove(name)
        for after in self.chain[place : place + 1]:
            if self.members[after].open:
                self._link(before, after)

    def _drop(self, member: _Member, error: NodeError) -> None:
        """Continue without a node: the one before it serves the one after it."""
        member.error = error
        self._send(member.name, {"step": "end"})
        for other in self.members.values():
            if other.leader == member.name:
                words = f"shares its filesystem with {member.name}, where the push failed"
                other.error = NodeError("shared", "operation", words)
        if member.name in self.chain:
            self._leave(member.name)

    def _step(self, members: list[_Member], head: Mapping[str, Any]) -> None:
        for member in members:
            member.step = head["step"]
            self._send(member.name, head)

    def _send(self, name: str, head: Mapping[str, Any], body: bytes = b"") -> None:
        self.calls[name].send(Message(dict(head), body))

    def _keep_alive(self) -> None:
        if time.monotonic() - self.alive_at > ALIVE_SECONDS:
            self.alive_at = time.monotonic()
            for name in self.calls:
                if name == SOURCE or self.members[name].error is None:
                    self._send(name, {"step": "alive"})

    def _is_over(self, member: _Member) -> bool:
        return member.complete or bool(member.leader)

    def _over(self) -> bool:
        return not any(member.open for member in self.members.values())

    def _end(self) -> None:
        for name, member in self.members.items():
            if member.error is None and not member.leader:
                self._send(name, {"step": "end"})
        self._send(SOURCE, {"step": "end"})

    def _progress(self) -> CopyProgress:
        members = [m for m in self.members.values() if not m.leader and m.error is None]
        if not self.sending_since:
            size = self.totals[0]
            return self._event("comparing", sum(m.compared for m in members), size * len(members))
        done, total = sum(m.received for m in members), sum(m.missing for m in members)
        seconds = time.monotonic() - self.sending_since
        rate = done / seconds if seconds else 0.0
        event = self._event("sending", min(done, total), total)
        return replace(event, rate=rate)

    def _event(self, phase: Any, done: int, total: int) -> CopyProgress:  # noqa: ANN401
        return CopyProgress(
            path=self.wanted.shown,
            phase=phase,
            done=done,
            total=total,
            nodes=sum(member.complete for member in self.members.values()),
            total_nodes=len(self.members),
        )

    def _outcome(self, member: _Member) -> NodePush:
        outcome = NodePush(
            node=member.name,
            state="updated" if member.received or member.missing else "unchanged",
            path=self.wanted.targets[member.name],
            received=member.received,
        )
        error = member.error
        if error is not None:
            return replace(
                outcome,
                state="failed" if error.answered else "unreachable",
                words=str(error),
                hint=error.hint,
            )
        if member.leader:
            return replace(outcome, state="shared", words=f"shared with {member.leader}")
        if member.extra and not self.pulls:
            words = f"it has files that the source does not have: {member.extra}"
            return replace(outcome, state="failed", words=words, hint="remove them on the node")
        return outcome


def _extra(told: PushMessage) -> str:
    """Return the first names that the source does not have."""
    more = told.extras - len(told.extra)
    return ", ".join(told.extra) + (f" and {more} more" if more > 0 else "")


def _whole(value: object) -> int:
    return value if isinstance(value, int) and value >= 0 else 0
