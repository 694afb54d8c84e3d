"""The use case `pull`: bring what nodes have written to this machine, and verify it."""

import os
import shlex
import time
from dataclasses import dataclass, field, replace

from clusterctl.checks.storage.run_paths import job_path, share_of
from clusterctl.checks.wording import counted, size_of
from clusterctl.errors import ClusterError, NodeError
from clusterctl.facts.storage.storage import PathFacts
from clusterctl.inventory.cluster import Cluster
from clusterctl.model.push import LookAnswer
from clusterctl.transport.interface import Request
from clusterctl.verbs.events import Emit, Notice
from clusterctl.verbs.pull.result import (
    NodePull,
    PathPull,
    PullOptions,
    PullResult,
    PullState,
    local_names,
    make_folder,
    require_inside,
    require_room,
)
from clusterctl.verbs.push.result import HERE, WantedPath, failure
from clusterctl.verbs.push.transfer import Transfer
from clusterctl.verbs.push.wanted import Source
from clusterctl.verbs.rpc import Nodes, bad_output, call_all, validated_answer

LOOK_SECONDS = 300.0
"""Longest a node may take to list its paths."""
LOOPBACK = "127.0.0.1"
"""Where this machine listens: nothing but the node's own connection brings blocks."""


def pull(
    cluster: Cluster, pool: Nodes, here: Nodes, options: PullOptions, *, emit: Emit
) -> PullResult:
    """Bring paths of the nodes here; what several nodes have alike is brought once.

    Args:
        cluster: the nodes to ask.
        here: this machine, as a node named `this machine`.
        options: what, and to where.

    Raises:
        UsageError: a path is none.
        ClusterError: the folder cannot be written.
    """
    began = time.monotonic()
    names = local_names(cluster, options.paths)
    work = _Pull(cluster=cluster, pool=pool, here=here, options=options, emit=emit)
    work.look()
    make_folder(options.to)
    done = []
    for number, (word, name) in enumerate(names.items()):
        done.append(work.pull_one(number, word, name))
    return PullResult(
        cluster=cluster.name,
        to=str(options.to),
        paths=tuple(done),
        seconds=time.monotonic() - began,
    )


@dataclass(frozen=True, slots=True)
class _Copy:
    """The contents of one path that one or several nodes have."""

    transfer: Transfer
    nodes: list[str]
    """The one that is asked first, then those that are if it fails."""
    number: int
    """Of the path."""
    manifest: bytes = b""


@dataclass(slots=True)
class _Pull:
    """One pull under way."""

    cluster: Cluster
    pool: Nodes
    here: Nodes
    options: PullOptions
    emit: Emit
    found: dict[str, LookAnswer | NodeError] = field(default_factory=dict)
    """By node, what it has of the paths, or why that is not known."""

    def look(self) -> None:
        """See what the nodes have."""
        words = self.options.paths
        requests = {
            node.name: Request(op="push-look", args={"paths": [job_path(node, w) for w in words]})
            for node in self.cluster.nodes
        }
        replies = call_all(
            self.pool, requests, phase="looking", timeout=LOOK_SECONDS, emit=self.emit
        )
        for name, reply in replies.items():
            answer = validated_answer(reply, LookAnswer)
            if not isinstance(answer, NodeError) and len(answer.found) != len(words):
                answer = bad_output(name, "it lists other paths")
            self.found[name] = answer

    def pull_one(self, number: int, word: str, name: str) -> PathPull:
        """Bring one path of the nodes that have it."""
        done: dict[str, NodePull] = {}
        alike: dict[str, list[str]] = {}
        for node in self.cluster.nodes:
            found = self.found[node.name]
            path = job_path(node, word)
            if isinstance(found, NodeError):
                words = ("clusterctl", "pull", word, "--from", node.name)
                folder = () if share_of(self.cluster, path) else ("--to", self._apart(node.name))
                again = f"once it answers: {shlex.join((*words, *folder))}"
                error = NodeError(
                    found.state, found.phase, found.message, f"{found.hint}\n{again}".strip()
                )
                done[node.name] = _failed(node.name, path, error)
                continue
            one = found.found[number]
            if not one.exists:
                done[node.name] = NodePull(node=node.name, state="absent", path=path)
            elif one.problem is not None:
                error = NodeError("file", "operation", one.problem)
                done[node.name] = _failed(node.name, path, error)
            else:
                alike.setdefault(one.sketch or node.name, []).append(node.name)
        copies = self._copies(number, word, list(alike.values()), done)
        # What a node that did not answer has may differ.
        unknown = any(
            isinstance(self.found[node.name], NodeError)
            and not share_of(self.cluster, job_path(node, word))
            for node in self.cluster.nodes
        )
        for copy in copies:
            below = f"{copy.nodes[0]}/{name}" if len(copies) > 1 or unknown else name
            done.update(self._bring(copy, below))
            earlier = self.options.to / name
            if below != name and copy is copies[-1] and os.path.lexists(earlier):
                text = f"{earlier} is of an earlier pull: what the nodes have now is next to it"
                self.emit(Notice(text=text, level="warning"))
        return PathPull(path=word, nodes=tuple(done[node.name] for node in self.cluster.nodes))

    def _apart(self, node: str) -> str:
        """Return the folder here for what only this node has."""
        return str(self.options.to / node)

    def _copies(
        self, number: int, word: str, alike: list[list[str]], done: dict[str, NodePull]
    ) -> list[_Copy]:
        """Return the different contents that there are; nodes that see the same files are alike."""
        copies: dict[str, _Copy] = {}
        if len(alike) == 1:
            return [_Copy(self._transfer(number, word, alike[0][0]), alike[0], number)]
        for nodes in alike:
            for tried, name in enumerate(nodes):
                transfer = self._transfer(number, word, name)
                try:
                    manifest = transfer.describe()
                except ClusterError as error:
                    done[name] = _not_read(name, transfer.source.path, error)
                    continue
                new = _Copy(transfer, [], number, manifest)
                copies.setdefault(transfer.content, new).nodes.extend(nodes[tried:])
                break
        return list(copies.values())

    def _transfer(self, number: int, word: str, name: str) -> Transfer:
        """Return the transfer of a node's path to this machine."""
        found = self.found[name]
        assert not isinstance(found, NodeError)
        path = job_path(self.cluster.node(name), word)
        size = found.found[number].bytes
        return Transfer(
            wanted=WantedPath(shown=word, here=None, sources={name: path}, targets={}),
            source=Source(name=name, path=path, facts=PathFacts(path=path, size=size)),
            pool=self.here,
            source_pool=self.pool,
            emit=self.emit,
            addresses={HERE: LOOPBACK},
            relaying=True,
            pulls=True,
            replaces=self.options.overwrite,
        )

    def _bring(self, copy: _Copy, below: str) -> dict[str, NodePull]:
        """Bring a copy here; return what became of it for each node that has it."""
        transfer, name = copy.transfer, copy.nodes[0]
        path, target = transfer.source.path, self.options.to / below
        transfer.wanted = replace(transfer.wanted, targets={HERE: str(target)})
        try:
            require_inside(self.options.to, target)
            require_room(self.options.to, target, transfer.source.facts.size or 0)
            manifest = copy.manifest or transfer.describe()
            size, files = transfer.totals
            much = f"{size_of(size)} in {counted(files, 'file')}"
            self.emit(Notice(text=f"{transfer.wanted.shown}: {much} to {target}", node=name))
            brought = transfer.run((HERE,), manifest)
        except ClusterError as error:
            failed, others = {name: _not_read(name, path, error)}, copy.nodes[1:]
            if not others:
                return failed
            text = f"{error}; asking {others[0]}, which has the same"
            self.emit(Notice(text=text, node=name, level="warning"))
            again = self._transfer(copy.number, transfer.wanted.shown, others[0])
            rest = self._bring(_Copy(again, others, copy.number), below)
            return failed | rest
        (end,) = brought.nodes
        if end.ok and (more := transfer.others):
            text = f"{target} also has what {name} has not: {more}"
            hint = f"to keep what is of {name} apart: --to {shlex.quote(self._apart(name))}"
            self.emit(Notice(text=text, hint=hint, node=name, level="warning"))
        one = NodePull(
            node=name,
            state="unchanged" if end.state == "unchanged" else "pulled",
            path=path,
            to=str(target),
            bytes=size,
            files=files,
            received=end.received,
            left_out=transfer.left_out,
        )
        if not end.ok:
            one = replace(one, state="failed", to="", words=end.words, hint=end.hint)
        done = {name: one}
        for other in copy.nodes[1:]:
            state: PullState = "same" if end.ok else "failed"
            done[other] = replace(one, node=other, state=state, received=0)
        return done


def _not_read(name: str, path: str, error: ClusterError) -> NodePull:
    return _failed(name, path, NodeError("file", "operation", str(error), error.hint or ""))


def _failed(name: str, path: str, error: NodeError) -> NodePull:
    return NodePull(node=name, path=path, **failure(error))
