"""One path on its way: from its source through a chain of nodes, each of which passes it on.

A node that dies or cannot be reached leaves the chain, and the one before it serves the next.
"""

import itertools
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from clusterctl.checks.wording import size_of
from clusterctl.errors import ClusterError, NodeError
from clusterctl.model.push import PushMessage
from clusterctl.plan.certificate import make_identity
from clusterctl.transport.interface import Call, Reply, Request
from clusterctl.verbs.events import CopyProgress, Emit
from clusterctl.verbs.push.member import Member, first_names, in_the_way, lacking_room, progress
from clusterctl.verbs.push.result import HERE, NodePush, PathPush, WantedPath
from clusterctl.verbs.push.wanted import Source, list_source
from clusterctl.verbs.rpc import Nodes, validated_answer
from clusterctl.verbs.sync.shared_folders import NodeView, mutually_seen, shared_folders
from clusterctl.wire import Message

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
    members: dict[str, Member] = field(default_factory=dict)
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
    others: str = ""
    """Of a pull, what is there besides what the source has."""
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
            manifest: what `describe` returned; empty: it is called here.

        Raises:
            ClusterError: the source cannot be read, or changed meanwhile.
        """
        manifest = manifest or self.describe()
        args = {"target": self.source.path, "source": True}
        request = Request(op="push", args=args, body=manifest)
        self.calls[SOURCE] = self.source_pool.start(self.source.name, request)
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
        member = self.members[name] = Member(name=name, token=secrets.token_hex(8), identity=own)
        secret = {"certificate": own.certificate, "key": own.key, "token": own.token}
        known = {"target": self.wanted.targets[name], "mark": member.token, "pulled": self.pulls}
        args = {**secret, **known}
        self.calls[name] = self.pool.start(name, Request(op="push", args=args, body=manifest))

    def describe(self) -> bytes:
        """Have the source hash the path; return its manifest, or raise ClusterError."""
        listed, manifest = list_source(
            self.source, self.source_pool, self.wanted.shown, leave_out=self.pulls, emit=self.emit
        )
        self.totals = listed.bytes, listed.files
        self.content, self.left_out = listed.content, listed.left_out
        return manifest

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

    def _note(self, member: Member, told: PushMessage, body: bytes) -> None:
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
            path = self.wanted.targets[member.name]
            member.replaced = first_names(told.found.replaced_paths, told.found.replaced)
            error = lacking_room(path, told.found)
            if self.pulls and not self.replaces:
                error = in_the_way(path, told.found) or error
            if error is not None:
                self._drop(member, error)
        elif told.listening is not None and member.step == "begin":
            member.step, member.port = "listening", told.listening
        elif told.complete is not None and member.step == "listening":
            member.complete = True
            extra = first_names(told.extra, told.extras)
            if self.pulls:
                self.others = extra
            else:
                member.extra = extra
        else:
            self._note_trouble(member, told, body)

    def _note_trouble(self, member: Member, told: PushMessage, body: bytes) -> None:
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
        if told.failed is not None:
            raise self._changed(f": {told.failed}")
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

    def _share(self, live: list[Member]) -> None:
        """Let one node of each filesystem be given the blocks."""
        views = [NodeView(node=m.name, tokens=m.seen, run=None) for m in live]
        believed = mutually_seen(views, {m.name: m.token for m in live})
        for group in shared_folders(believed):
            first, *others = group.nodes
            for name in others:
                self.members[name].leader = first
                self._send(name, {"step": "end"})

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

    def _chained(self) -> list[Member]:
        return [self.members[name] for name in self.chain]

    def _before(self, name: str) -> str:
        place = self.chain.index(name)
        return self.chain[place - 1] if place else SOURCE

    def _found_bad(self, member: Member, block: int) -> None:
        """Deal with a block that a node says is not what it should be."""
        if member.name not in self.chain or not member.open:
            return
        if self._before(member.name) != SOURCE:
            self._set_apart(member)
        elif not member.rechecked:
            member.rechecked = True
            self._send(SOURCE, {"step": "recheck", "block": block, "peer": member.name})

    def _judge(self, member: Member, *, source_is_right: bool) -> None:
        """Decide between the source and a node that it serves."""
        if not source_is_right:
            raise self._changed()
        if member.open:
            words = f"it found blocks wrong that {self.source.name} sent and has right"
            hint = f"clusterctl check --nodes {member.name}"
            self._drop(member, NodeError("bad-output", "operation", words, hint))

    def _changed(self, what: str = "") -> ClusterError:
        words = f"{self.source.name}: {self.source.path} changed while it was sent{what}"
        again = "try again when nothing writes to it, or take a folder in it that stays as it is"
        return ClusterError(words, hint=f"{again}; what was sent is kept")

    def _set_apart(self, member: Member) -> None:
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

    def _drop(self, member: Member, error: NodeError) -> None:
        """Continue without a node: the one before it serves the one after it."""
        member.error = error
        self._send(member.name, {"step": "end"})
        for other in self.members.values():
            if other.leader == member.name:
                words = f"shares its filesystem with {member.name}, where the push failed"
                other.error = NodeError("shared", "operation", words)
        if member.name in self.chain:
            self._leave(member.name)

    def _step(self, members: list[Member], head: Mapping[str, Any]) -> None:
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

    def _is_over(self, member: Member) -> bool:
        return member.complete or bool(member.leader)

    def _over(self) -> bool:
        return not any(member.open for member in self.members.values())

    def _end(self) -> None:
        for name, member in self.members.items():
            if member.error is None and not member.leader:
                self._send(name, {"step": "end"})
        self._send(SOURCE, {"step": "end"})

    def _progress(self) -> CopyProgress:
        seconds = time.monotonic() - self.sending_since if self.sending_since else None
        return progress(self.wanted.shown, self.members.values(), self.totals[0], seconds)

    def _outcome(self, member: Member) -> NodePush:
        return member.outcome(self.wanted.targets[member.name])
