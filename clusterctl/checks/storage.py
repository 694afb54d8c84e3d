"""Whether the paths of the run are there: shared where they must be, writable, alike, with room."""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Iterator

from clusterctl.checks.finding import Finding
from clusterctl.checks.places import DEFAULT_STATE, places
from clusterctl.checks.registry import Facts, check
from clusterctl.checks.shares import Missing, broken_shares, explained, tokens_of
from clusterctl.checks.wording import counted
from clusterctl.facts.nodefacts import NodeFacts, PathFacts
from clusterctl.inventory.cluster import Cluster, Node
from clusterctl.network.choice import Network

SHARED = "storage.shared"
GIB = 1024**3
ROOM_FAIL = GIB
ROOM_WARN = 4 * GIB
_NOT_SAVED = "the facts, from before the inventory named it, do not have it"
_LOOK = "clusterctl check"
DELAY_WARN_S = 2.0
"""Longer, and programs that wait for each other's files give up: NFS caches for up to 60 s."""


@check(
    SHARED,
    title="the shared paths are one filesystem on all nodes",
    why="A path that is only local on one node looks right and loses that node's checkpoints.",
    applies=lambda _node, cluster: bool(cluster.shared),
)
def shared(facts: Facts, _network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Judge by tokens that every node wrote and looked for."""
    for broken in broken_shares(facts, cluster):
        yield Finding(
            check=SHARED,
            status="fail",
            nodes=(broken.node,),
            message=broken.message,
            wanted=broken.wanted,
            found=broken.found,
            remedy=broken.remedy,
        )
    missing = Missing.of(facts, cluster)
    for share in cluster.shared:
        yield from _unasked(facts, share)
        yield from _sight(facts, missing, share)


def _unasked(facts: Facts, share: str) -> Iterator[Finding]:
    """Say where nobody looked at a share."""
    for node in facts.values():
        if node.answered and node.path(share) is None:
            yield Finding(
                check=SHARED,
                status="unknown",
                nodes=(node.node,),
                message=f"whether {share} is one filesystem is not known",
                wanted=f"the folder {share}, one filesystem for all nodes",
                found=_NOT_SAVED,
                remedy=_LOOK,
            )


def _sight(facts: Facts, missing: Missing, share: str) -> Iterator[Finding]:
    """Say where tokens came late, or where nobody could write any."""
    for node in facts.values():
        if not node.answered or missing.explains(node.node, share):
            continue
        if node.between is not None and node.between.problem and len(_answered(facts)) > 1:
            yield Finding(
                check=SHARED,
                status="unknown",
                nodes=(node.node,),
                message=f"whether {share} is one filesystem could not be tried",
                wanted="a token that every node writes and looks for",
                found=node.between.problem,
                remedy="clusterctl check",
            )
            continue
        tokens = tokens_of(node, share)
        shown = [t for t in tokens if not missing.explains(t.writer, share)]
        late = [t for t in shown if t.seen is False or (t.delay_s or 0.0) > DELAY_WARN_S]
        if late:
            longest = max((t.delay_s or 0.0 for t in late), default=0.0)
            yield Finding(
                check=SHARED,
                status="warn",
                nodes=(node.node,),
                message=f"what others write to {share} shows late",
                wanted=f"within {DELAY_WARN_S:.0f} s",
                found=f"{longest:.1f} s" if longest else "not within the time of the check",
                remedy="mount it with lookupcache=none (NFS), or wait between writing and reading",
            )
        elif shown and len(_answered(facts)) > 1 and not any(t.seen for t in shown):
            yield Finding(
                check=SHARED,
                status="unknown",
                nodes=(node.node,),
                message=f"whether {share} is one filesystem could not be tried",
                wanted="a folder on it that every node may write to",
                found=next((t.words for t in tokens if t.words), "no token could be written"),
                remedy=f"let the user of the run write to {share}, or to workdir on it",
            )


def _answered(facts: Facts) -> list[NodeFacts]:
    return [node for node in facts.values() if node.answered]


def _looked_at(
    facts: Facts, cluster: Cluster, *roles: str
) -> Iterator[tuple[Node, NodeFacts, PathFacts]]:
    """Yield the paths of these roles on every node that answered."""
    for node in cluster.nodes:
        known = facts.get(node.name)
        if known is None or not known.answered:
            continue
        for path in dict.fromkeys(p.path for p in places(cluster, node) if p.role in roles):
            yield node, known, known.path(path) or PathFacts(path=path, problem=_NOT_SAVED)


def _unseen(path: PathFacts) -> bool:
    return path.problem == _NOT_SAVED


def _silence(path: PathFacts) -> str:
    return "was not looked at" if _unseen(path) else "does not answer"


def _has_place(node: NodeFacts, cluster: Cluster) -> bool:
    return any(
        p.role in {"workdir", "checkpoints"} for p in places(cluster, cluster.node(node.node))
    )


@check(
    "storage.writable",
    title="workdir and checkpoints can be written",
    why="Code is mirrored to workdir, and a run that cannot save loses its work.",
    applies=_has_place,
)
def writable(facts: Facts, _network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Judge by a file that was made and removed there."""
    missing = Missing.of(facts, cluster)
    for node, known, path in _looked_at(facts, cluster, "workdir", "checkpoints"):
        if missing.explains(node.name, path.path):
            yield explained("storage.writable", node.name, path.path)
            continue
        if path.writable:
            continue
        unknown = path.writable is None and path.exists is None
        yield Finding(
            check="storage.writable",
            status="unknown" if unknown else "fail",
            nodes=(node.name,),
            message=f"{path.path} {_silence(path) if unknown else 'is not writable'}",
            wanted=f"a folder that {known.user or 'the user'} may write to",
            found="mounted read-only" if path.read_only else path.problem or "no answer",
            remedy=_make_writable(path, shlex.quote(known.user) if known.user else "$USER"),
        )


_FULL = ("No space left on device", "Disk quota exceeded")


def _make_writable(path: PathFacts, user: str) -> str:
    named = shlex.quote(path.path)
    if _unseen(path):
        return _LOOK
    if path.exists is None:
        return f"findmnt -T {named} (on the node): does its file server answer?"
    if path.problem in _FULL:
        return _find_the_large(path)
    if path.read_only:
        return f"sudo mount -o remount,rw {shlex.quote(path.mount)}"
    return f"sudo mkdir -p {named} && sudo chown {user} {named}"


@check(
    "storage.room",
    title="workdir, checkpoints and the runs' logs have room",
    why="A disk that is full stops a run in the middle of a checkpoint, or at its next print.",
)
def room(facts: Facts, _network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Look at what an unprivileged user may still use."""
    missing = Missing.of(facts, cluster)
    seen: set[tuple[str, str]] = set()
    for node, _known, path in _looked_at(facts, cluster, "workdir", "checkpoints", "state"):
        again = (node.name, path.mount or path.path) in seen
        alone = all(name != node.name for name, _ in seen)
        seen.add((node.name, path.mount or path.path))
        silent = path.exists is None and not alone
        if path.path == (node.state or DEFAULT_STATE) and (again or silent):
            continue  # reported for workdir already, or a hung root that all else shows
        if missing.explains(node.name, path.path):
            yield explained("storage.room", node.name, path.path)
        elif path.exists is None or not path.total_bytes:
            # The first is said by `storage.writable`; some file systems in user space say 0 of 0.
            why = _silence(path) if path.exists is None else "does not tell its room"
            message = f"{path.mount or path.path} {why}"
            yield Finding(check="storage.room", status="skip", nodes=(node.name,), message=message)
        elif path.free_bytes is not None and path.free_bytes < ROOM_WARN:
            yield Finding(
                check="storage.room",
                status="fail" if path.free_bytes < ROOM_FAIL else "warn",
                nodes=(node.name,),
                message=f"little room on {path.mount or path.path}",
                wanted=f"{ROOM_WARN // GIB} GiB or more for {path.path}",
                found=f"{path.free_bytes / GIB:.2f} GiB",
                remedy=_find_the_large(path),
            )


def _find_the_large(path: PathFacts) -> str:
    return f"du -xh --max-depth=2 {shlex.quote(path.mount or path.path)} | sort -h | tail"


@check(
    "storage.needs",
    title="what the job needs is there, and equal on every node",
    why="A model or data set that is missing or older on one node fails late, or trains wrong.",
    applies=lambda _node, cluster: bool(cluster.job.needs),
)
def needs(facts: Facts, _network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Compare sizes, names and the ends of the largest files with what most nodes have."""
    missing = Missing.of(facts, cluster)
    by_need: dict[str, list[tuple[Node, PathFacts]]] = defaultdict(list)
    for node, _known, path in _looked_at(facts, cluster, "needs"):
        if missing.explains(node.name, path.path):
            yield explained("storage.needs", node.name, path.path)
        else:
            by_need[path.path].append((node, path))
    for found in by_need.values():
        digests = Counter(path.digest for _, path in found if path.digest)
        usual = digests.most_common(1)[0][0] if digests else ""
        owner, model = next(((n, p) for n, p in found if usual and p.digest == usual), (None, None))
        for node, path in found:
            remedy = "copy it to every node, or correct `needs:` in the inventory"
            if owner is not None and model is not None:
                remedy = _copy(model, owner, node)
            yield from _need(node.name, path, model, remedy)


def _copy(model: PathFacts, owner: Node, node: Node) -> str:
    # Without the slash rsync would put a folder into the one of the same name.
    path = model.path.rstrip("/") + ("/" if model.folder else "")
    if owner.local:
        return shlex.join(["rsync", "-a", path, f"{node.host}:{path}"]) + " (on this machine)"
    return shlex.join(["rsync", "-a", f"{owner.host}:{path}", path]) + " (on the node)"


def _need(node: str, path: PathFacts, model: PathFacts | None, remedy: str) -> Iterator[Finding]:
    need = path.path
    if path.exists is False:
        yield Finding(
            check="storage.needs",
            status="fail",
            nodes=(node,),
            message=f"{need} is missing",
            wanted=_size(model) if model is not None else "it to exist",
            found="nothing of that name",
            remedy=remedy,
        )
    elif path.exists is None or not path.digest:
        yield Finding(
            check="storage.needs",
            status="unknown",
            nodes=(node,),
            message=f"{need} {'was not looked at' if _unseen(path) else 'could not be read'}",
            wanted="it to be readable",
            found=path.problem or "no answer",
            remedy=_LOOK if _unseen(path) else f"ls -l {shlex.quote(need)} (on the node)",
        )
    elif model is not None and path.digest != model.digest:
        yield Finding(
            check="storage.needs",
            status="fail",
            nodes=(node,),
            message=f"{need} is not what the other nodes have",
            wanted=_size(model),
            found=_size(path) + (", other content" if _size(path) == _size(model) else ""),
            remedy=remedy,
        )


def _size(path: PathFacts) -> str:
    size = f"{path.size} bytes"
    if not path.folder or path.entries is None:
        return size
    return f"{size} in {counted(path.entries, 'file')}"
