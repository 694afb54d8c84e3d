"""Which paths a push is about, and which copy of each one is its source."""

import os
import posixpath
import re
import shlex
from collections import Counter
from collections.abc import Mapping

from clusterctl.checks.storage.run_paths import job_path
from clusterctl.checks.wording import counted
from clusterctl.errors import ClusterError, NodeError, UsageError
from clusterctl.facts.storage.storage import PathFacts
from clusterctl.inventory.cluster import Cluster
from clusterctl.model.push import Manifest
from clusterctl.transport.interface import Reply, Request
from clusterctl.values import dataclass
from clusterctl.verbs.events import CopyProgress, Emit
from clusterctl.verbs.push.result import HERE, WantedPath
from clusterctl.verbs.rpc import Nodes, validated_answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a path comes from."""

    name: str
    """A node, or `this machine`."""
    path: str
    facts: PathFacts


def split_path(text: str) -> tuple[str, str]:
    """Return where a path is and where it is to be: `PATH`, or `LOCAL:REMOTE`."""
    found = re.fullmatch(r"(.+?):([/~].*)", text, flags=re.DOTALL)
    local, remote = (found[1], found[2]) if found else (text, text)
    if not text or "\0" in text:
        raise UsageError(f"PATH: expected a path, found {text!r}")
    if local.startswith("~/"):
        return local, remote
    absolute = os.path.abspath(local)  # noqa: PTH100  (a link keeps its name on the nodes)
    remote = remote if found else absolute
    for path in (absolute, remote):
        if posixpath.normpath(path) == "/" or "\0" in path:
            raise UsageError(f"PATH: expected a file or folder other than /, found {text!r}")
    return absolute, remote


def wanted_paths(
    cluster: Cluster, words: tuple[str, ...], to: str | None = None, *, source: str | None = None
) -> tuple[WantedPath, ...]:
    """Return what to push: the words of the command line, else what the job needs.

    Args:
        cluster: the nodes.
        words: paths of this machine; of `source`, if that is given.
        to: the folder on the nodes that gets them; a relative one is in workdir.
        source: the node that has them; a relative path of a node is in workdir.
    """
    nodes = (*cluster.nodes, *cluster.left_out)
    if to is not None and (not to or not words):
        raise UsageError("--to: expected a folder on the nodes, and PATH with it")
    if not words and not cluster.job.needs:
        message = f"PATH: expected one, found none, and {cluster.file or 'hosts.yaml'} has no needs"
        raise UsageError(
            message, hint="name the model or data to push, or list it under `job: needs:`"
        )
    found: list[WantedPath] = []
    for word in words:
        if source is not None and to is None and re.match(r"[^/~](?!.*:[/~])", word):
            at = {node.name: job_path(node, word) for node in nodes}
            found.append(WantedPath(shown=word, here=None, sources=at, targets=at))
            continue
        local, remote = split_path(word)
        targets = {node.name: remote for node in nodes}
        if to is not None:
            if remote != local:
                raise UsageError(f"--to: expected PATH with it, found LOCAL:REMOTE, {word}")
            name = posixpath.basename(posixpath.normpath(local))
            targets = {node.name: posixpath.join(job_path(node, to), name) for node in nodes}
            other = next((one.shown for one in found if one.targets == targets), None)
            if other is not None:
                raise UsageError(f"--to: {other} and {word} would both be {name} there")
        sources = {node.name: local for node in nodes}
        found.append(WantedPath(shown=word, here=local, sources=sources, targets=targets))
    for need in () if words else cluster.job.needs:
        at = {node.name: job_path(node, need) for node in nodes}
        everywhere = need if need.startswith(("/", "~")) else None
        found.append(WantedPath(shown=need, here=everywhere, sources=at, targets=at))
    return tuple(found)


def choose_source(
    wanted: WantedPath, seen: Mapping[str, PathFacts], *, named: str | None
) -> Source:
    """Choose the copy that the nodes get."""

    def source(name: str) -> Source:
        path = wanted.here if name == HERE else wanted.sources[name]
        return Source(name=name, path=path or "", facts=seen[name])

    if named is not None:
        facts = seen.get(named)
        if facts is None or not facts.exists:
            why = (facts.problem if facts else "") or "no such file or folder"
            raise ClusterError(f"--from {named}: {wanted.sources[named]}: {why}")
        return source(named)
    if HERE in seen and seen[HERE].exists:
        return source(HERE)
    whole = {
        name: facts
        for name, facts in seen.items()
        if facts.exists and facts.digest and not facts.faults and name != HERE
    }
    if not whole:
        broken = next((n for n, facts in seen.items() if facts.exists and n != HERE), None)
        if broken is not None:
            why = "; ".join(seen[broken].faults) or seen[broken].problem
            message = f"{wanted.shown}: no node has all of it; {broken}: {why}"
        else:
            message = f"{wanted.shown}: neither this machine nor a node has it"
        raise ClusterError(message, hint="download it on one node, then push it again")
    counts = Counter(facts.digest for facts in whole.values()).most_common(2)
    if len(counts) > 1 and counts[0][1] == counts[1][1]:
        copies = {facts.digest: name for name, facts in reversed(whole.items())}
        sizes = (f"{copies[d]} has {_size(whole[copies[d]])}" for d, _ in counts)
        raise ClusterError(
            f"{wanted.shown}: the nodes have different copies: {', '.join(sizes)}",
            hint=f"choose one: --from {next(iter(whole))}",
        )
    return source(next(n for n, facts in whole.items() if facts.digest == counts[0][0]))


def _size(facts: PathFacts) -> str:
    return f"{facts.size} bytes in {counted(facts.entries or 1, 'file')}"


MANIFEST_LIMIT = 48 * 1024 * 1024
"""Bytes of a deflated list of files with their hashes: no source makes a larger one."""


def list_source(
    source: Source, pool: Nodes, shown: str, *, leave_out: bool, emit: Emit
) -> tuple[Manifest, bytes]:
    """Have the source hash a path; return what it has, and the list as nodes are sent it."""
    args = {"path": source.path, "leave_out": leave_out}
    request = Request(op="push-list", args=args, body_limit=MANIFEST_LIMIT)
    size = source.facts.size or 0
    listed: Manifest | NodeError = NodeError("lost", "answer", "it ended early")
    body = b""
    call = pool.start(source.name, request)
    try:
        for _, item in pool.follow({source.name: call}):
            if isinstance(item, Reply):
                listed = item.error or listed
            elif "hashed" in item.head:
                done = min(_whole(item.head["hashed"]), size)
                emit(
                    CopyProgress(
                        path=shown, phase="hashing", done=done, total=size, nodes=0, total_nodes=0
                    )
                )
                continue
            else:
                reply = Reply(node=source.name, messages=(item,))
                listed, body = validated_answer(reply, Manifest), item.body
            if isinstance(listed, NodeError):
                break
    finally:
        call.close()
    if not isinstance(listed, NodeError):
        return listed, body
    raise ClusterError(f"{shown}: {source.name}: {listed}", hint=hint_of(source, listed))


def hint_of(source: Source, error: NodeError) -> str | None:
    """Say what to do about a path that the source cannot list."""
    if error.state != "too-many-files":
        return error.hint or None
    folder = shlex.quote(source.path)
    pack = f"tar -cf {folder}.tar -C {folder} ."
    if source.name != HERE:
        pack = f"clusterctl exec --nodes {source.name} -- {pack}"
    return f"push one file: {pack}"


def _whole(value: object) -> int:
    return value if isinstance(value, int) and value >= 0 else 0
