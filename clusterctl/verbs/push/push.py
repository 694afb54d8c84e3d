"""The use case `push`: bring models and data to nodes without shared storage, and verify them."""

import time
from dataclasses import dataclass, field, replace

from clusterctl.errors import CouldNotTell, NodeError
from clusterctl.facts.storage.storage import PathFacts
from clusterctl.inventory.cluster import Cluster
from clusterctl.inventory.ranges import fold_hosts
from clusterctl.network.choice import choose_network
from clusterctl.verbs.events import Emit, Notice, Progress
from clusterctl.verbs.preflight.look_at_paths import Look, look
from clusterctl.verbs.push.result import (
    ELSEWHERE,
    HERE,
    NodePush,
    PathPush,
    PushOptions,
    PushResult,
    WantedPath,
    failure,
)
from clusterctl.verbs.push.transfer import Transfer
from clusterctl.verbs.push.wanted import Source, choose_source, wanted_paths
from clusterctl.verbs.rpc import Nodes

LOOK_SECONDS = 300.0
"""Longest a node may take to list its paths; a slow file server has many files to tell of."""


def push(
    cluster: Cluster, pool: Nodes, here: Nodes, options: PushOptions, *, emit: Emit
) -> PushResult:
    """Bring paths to every node of a cluster.

    Args:
        cluster: the nodes that are to have them; one that is left out may be the source.
        here: this machine, as a node named `this machine`.
        options: what, and from where.

    Raises:
        UsageError: there is nothing to push, or a path is none.
        ClusterError: no node has a path, or its source cannot be read.
    """
    began = time.monotonic()
    paths = wanted_paths(cluster, options.paths, options.to, source=options.source)
    work = _Push(cluster=cluster, pool=pool, here=here, options=options, emit=emit)
    work.look(paths)
    sources = [choose_source(path, work.seen(path), named=options.source) for path in paths]
    work.require_space(paths, sources)
    done = []
    for path, source in zip(paths, sources, strict=True):
        _destination(cluster, path, emit=emit)
        done.append(work.push_one(path, source))
    return PushResult(
        cluster=cluster.name,
        paths=tuple(done),
        dry_run=options.dry_run,
        seconds=time.monotonic() - began,
    )


def _destination(cluster: Cluster, path: WantedPath, *, emit: Emit) -> None:
    """Emit where a path will be on the nodes, unless that is what was typed."""
    alike: dict[str, list[str]] = {}
    for node in cluster.nodes:
        alike.setdefault(path.targets[node.name], []).append(node.name)
    for target, names in alike.items():
        same = ", the same path as here (another: --to DIR)" if target == path.here else ""
        if path.shown != target and not path.shown.endswith(f":{target}"):
            emit(Notice(text=f"{path.shown} goes to {target} on {fold_hosts(names)}{same}"))


@dataclass(slots=True)
class _Push:
    """One push under way."""

    cluster: Cluster
    pool: Nodes
    here: Nodes
    options: PushOptions
    emit: Emit
    found: Look = field(default_factory=Look)
    full: dict[str, str] = field(default_factory=dict)
    """By node, why its disks cannot take all paths."""

    def look(self, paths: tuple[WantedPath, ...]) -> None:
        """See what there is, on the nodes that may be the source too."""
        nodes = [node.name for node in (*self.cluster.nodes, *self.cluster.left_out)]
        self.emit(Progress(phase="looking", done=0, total=len(self.cluster.nodes)))
        asked = {
            name: [q for path in paths for q in (path.sources[name], path.targets[name])]
            for name in nodes
        }
        self.found = look(self.pool, asked, limit_s=LOOK_SECONDS)
        here = {HERE: [path.here for path in paths if path.here]}
        own = look(self.here, here, limit_s=LOOK_SECONDS)
        self.found.facts.update(own.facts)

    def seen(self, path: WantedPath) -> dict[str, PathFacts]:
        """Return what each possible source has; this machine first."""
        places = {HERE: path.here, **path.sources}
        return {
            name: facts
            for name, place in places.items()
            if place and name in self.found.facts
            if (facts := self.found.facts[name].path(place)) is not None
        }

    def require_space(self, paths: tuple[WantedPath, ...], sources: list[Source]) -> None:
        """Find nodes whose disks cannot take the paths that they lack."""
        for node in self.cluster.nodes:
            needed: dict[str, tuple[int, int, PathFacts]] = {}
            for path, source in zip(paths, sources, strict=True):
                facts = self._target(path, node.name)
                if facts is None or facts.exists is not False:
                    continue  # what exists is compared by its blocks, and judged then
                size, files, _ = needed.get(facts.mount, (0, 0, facts))
                size += source.facts.size or 0
                needed[facts.mount] = size, files + (source.facts.entries or 1), facts
            for mount, (size, files, facts) in needed.items():
                words = _lacking(facts, size, files)
                if words:
                    self.full[node.name] = f"{mount or facts.path}: {words}"

    def push_one(self, path: WantedPath, source: Source) -> PathPush:
        """Bring one path to the nodes that answered and have room."""
        done: dict[str, NodePush] = {}
        for node in self.cluster.nodes:
            target = path.targets[node.name]
            error = self.found.errors.get(node.name)
            if error is not None:
                done[node.name] = _failed(node.name, target, error)
            elif node.name == source.name and target == source.path:
                done[node.name] = NodePush(node=node.name, state="source", path=target)
            elif node.name in self.full:
                error = NodeError("full", "operation", self.full[node.name], "make room there")
                done[node.name] = _failed(node.name, target, error)
        if self.options.dry_run:
            for node in self.cluster.nodes:
                done.setdefault(node.name, self._would(path, source, node.name))
        names = tuple(node.name for node in self.cluster.nodes if node.name not in done)
        result = PathPush(
            path=path.shown,
            source=source.name,
            source_path=source.path,
            bytes=source.facts.size or 0,
            files=source.facts.entries or 1,
            nodes=(),
        )
        if names:
            transfer = Transfer(
                wanted=path,
                source=source,
                pool=self.pool,
                source_pool=self.here if source.name == HERE else self.pool,
                addresses=self._addresses((*names, source.name)),
                emit=self.emit,
            )
            result = transfer.run(names)
            done.update({one.node: one for one in result.nodes})
            self.emit(Progress(phase="verifying", done=0, total=len(names)))
            self._verify(path, source, done)
        nodes = tuple(done[node.name] for node in self.cluster.nodes)
        return replace(result, nodes=nodes)

    def _addresses(self, names: tuple[str, ...]) -> dict[str, str]:
        """Return the addresses of the data network."""
        nodes = (*self.cluster.nodes, *self.cluster.left_out)
        cluster = self.cluster.with_nodes(tuple(node for node in nodes if node.name in names))
        network = choose_network(cluster, self.found.facts)
        found = {name: place.address for name, place in network.nodes.items()}
        lacking = [name for name in names if name not in found and name != HERE]
        if lacking:
            message = f"{', '.join(lacking)}: no address on a network that all nodes share"
            raise CouldNotTell(message, hint="clusterctl check --only network")
        return found

    def _verify(self, path: WantedPath, source: Source, done: dict[str, NodePush]) -> None:
        """Judge each node by the digest that the check `storage.needs` compares."""
        names = [name for name, one in done.items() if one.ok and one.state != "source"]
        written = {name: [path.targets[name]] for name in names}
        again = look(self.pool, written, limit_s=LOOK_SECONDS)
        for name in names:
            facts = again.facts[name].path(path.targets[name]) if name in again.facts else None
            if facts is None:
                error = again.errors.get(name) or NodeError("timeout", "answer", "no answer")
                done[name] = _failed(name, path.targets[name], error)
            elif not facts.digest or facts.digest != source.facts.digest:
                words = facts.problem or "it differs from the source after the push"
                error = NodeError("file", "operation", words, "did anything else write to it?")
                done[name] = _failed(name, path.targets[name], error)

    def _would(self, path: WantedPath, source: Source, name: str) -> NodePush:
        facts = self._target(path, name)
        equal = facts is not None and facts.digest == source.facts.digest
        return NodePush(
            node=name, state="unchanged" if equal else "would-update", path=path.targets[name]
        )

    def _target(self, path: WantedPath, name: str) -> PathFacts | None:
        facts = self.found.facts.get(name)
        return facts.path(path.targets[name]) if facts else None


def _failed(name: str, path: str, error: NodeError) -> NodePush:
    return NodePush(node=name, path=path, **failure(error, ELSEWHERE))


def _lacking(facts: PathFacts, size: int, files: int) -> str:
    """Say what a filesystem lacks; empty: it has room."""
    if facts.free_bytes is not None and facts.total_bytes and facts.free_bytes < size:
        return f"{size} bytes to write, {facts.free_bytes} free"
    if facts.total_files and (facts.free_files or 0) < files:
        return f"{files} files to write, {facts.free_files} inodes free"
    return ""
