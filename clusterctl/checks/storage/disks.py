"""Whether the paths of the run exist: shared as set, writable, equal, with free space."""

import posixpath
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace

from clusterctl.checks.finding import Finding, fail, finding, skip, unknown, warn
from clusterctl.checks.others import most_frequent
from clusterctl.checks.registry import Check, Facts
from clusterctl.checks.storage.run_paths import DEFAULT_STATE, command_paths, in_workdir, run_paths
from clusterctl.checks.storage.shares import (
    REFUSED,
    STALE,
    MissingShares,
    no_answer,
    remount,
    skip_missing,
    tokens_of,
)
from clusterctl.checks.wording import NOT_IN_FACTS, counted
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.facts.storage.storage import PathFacts
from clusterctl.inventory.cluster import Cluster, Node

SHARED = "storage.shared"
GIB = 1024**3
FREE_FAIL = GIB
FREE_WARN = 4 * GIB
FILES_FAIL = 1000
FILES_WARN = 50_000
_LOOK = "clusterctl check"
DANGLING = " is a link to "
"""In the problem of a path that cannot be made."""
DELAY_WARN_S = 2.0
"""Beyond this, programs that wait for each other's files time out: NFS caches for up to 60 s."""


@Check(
    SHARED,
    title="the shared paths are one filesystem on all nodes",
    why="If the path is local on one node, that node's checkpoints never reach the other nodes.",
    fix="Mount the same export on every node, and put it into /etc/fstab.",
    source="https://man7.org/linux/man-pages/man5/nfs.5.html",
    applies=lambda _node, cluster: bool(cluster.shared),
)
def shared(facts: Facts, cluster: Cluster) -> Iterator[Finding]:
    """Judge by small token files that every node wrote and looked for."""
    missing = MissingShares.of(facts, cluster)
    yield from missing.findings
    for share in cluster.shared:
        yield from _not_in_facts(facts, share)
        yield from _late_tokens(facts, missing, share)


def _not_in_facts(facts: Facts, share: str) -> Iterator[Finding]:
    """Yield unknown for each node whose facts do not have the path."""
    for node in facts.values():
        if node.answered and node.path(share) is None:
            yield unknown(
                node.node,
                f"it is unknown whether {share} is shared",
                wanted=f"the folder {share}, one filesystem for all nodes",
                found=NOT_IN_FACTS,
                remedy=_LOOK,
            )


def _late_tokens(facts: Facts, missing: MissingShares, share: str) -> Iterator[Finding]:
    """Report tokens that appear late, and nodes where no token could be written."""
    for node in facts.values():
        if not node.answered or missing.explains(node.node, share):
            continue
        if node.met.problem and len(_answered(facts)) > 1:
            yield unknown(
                node.node,
                f"could not test whether {share} is shared",
                wanted="a token file that every node writes and looks for",
                found=node.met.problem,
                remedy="clusterctl check",
            )
            continue
        tokens = tokens_of(node, share)
        shown = [t for t in tokens if not missing.explains(t.writer, share)]
        late = [t for t in shown if t.seen is False or (t.delay_s or 0.0) > DELAY_WARN_S]
        if late:
            longest = max((t.delay_s or 0.0 for t in late), default=0.0)
            yield warn(
                node.node,
                f"files that other nodes write to {share} appear late",
                wanted=f"within {DELAY_WARN_S:.0f} s",
                found=f"{longest:.1f} s" if longest else "not during the check",
                remedy="mount it with lookupcache=none (NFS), or let the job wait before it reads",
            )
        elif shown and len(_answered(facts)) > 1 and not any(t.seen for t in shown):
            yield unknown(
                node.node,
                f"could not test whether {share} is shared",
                wanted="a folder on it that every node can write to",
                found=next((t.words for t in tokens if t.words), "no token could be written"),
                remedy=f"give the job's user write access to {share}, or to workdir on it",
            )


def _answered(facts: Facts) -> list[NodeFacts]:
    return [node for node in facts.values() if node.answered]


def known_paths(
    facts: Facts, cluster: Cluster, *roles: str
) -> Iterator[tuple[Node, NodeFacts, PathFacts]]:
    """Yield the paths of these roles on every node that answered."""
    for node in cluster.nodes:
        known = facts.get(node.name)
        if known is None or not known.answered:
            continue
        for path in dict.fromkeys(p.path for p in run_paths(cluster, node) if p.role in roles):
            found = known.path(path) or PathFacts(path=path, problem=NOT_IN_FACTS)
            if path == DEFAULT_STATE and known.uid is not None:
                found = replace(found, path=path.replace("UID", str(known.uid)))
            yield node, known, found


def _not_checked(path: PathFacts) -> bool:
    return path.problem == NOT_IN_FACTS


def _why_silent(path: PathFacts) -> str:
    return "was not checked" if _not_checked(path) else no_answer(path)


def _has_folder(node: NodeFacts, cluster: Cluster) -> bool:
    """Tell whether there is a path that must be writable; logs have one that may be unknown."""
    places = run_paths(cluster, cluster.node(node.node))
    return any(
        p.role in {"workdir", "checkpoints"} or (p.role == "state" and _tried(node, p.path))
        for p in places
    )


def _tried(node: NodeFacts, path: str) -> bool:
    known = node.path(path)
    return known is not None and known.writable is not None


@Check(
    "storage.writable",
    title="workdir, checkpoints and the folder of the runs' logs are writable",
    why="`sync` writes the code to workdir, and a run that cannot save checkpoints loses its work.",
    source="https://man7.org/linux/man-pages/man1/chown.1p.html",
    fix="Create the folder and make the run's user its owner.",
    applies=_has_folder,
)
def writable(facts: Facts, cluster: Cluster) -> Iterator[Finding]:
    """Judge by a file that was created and removed there."""
    missing = MissingShares.of(facts, cluster)
    for node, known, path in known_paths(facts, cluster, "workdir", "checkpoints", "state"):
        is_state = _is_state_only(node, path, cluster)
        if is_state and (path.writable is None or known.machine_state.state_problem):
            continue  # `storage.state` reports the second
        if path.writable and (path.folder or path.exists is False):
            continue
        if path.writable and path.exists:
            named = shlex.quote(path.path)
            yield finding(
                "unknown" if path.folder is None else "fail",
                node.name,
                f"{path.path} {'may be a file' if path.folder is None else 'is not a folder'}",
                wanted=f"a folder that {known.user or 'the user'} can write to",
                found="unknown" if path.folder is None else "a file",
                remedy=f"mv {named} {named}.old (on the node), or choose another path in the"
                " inventory",
            )
            continue
        if missing.explains(node.name, path.path):
            yield skip_missing(node.name, path.path)
            continue
        room = _room(node.name, path, path.path)
        if path.problem in _FULL and any(found.status == "fail" for found in room):
            yield skip(node.name, f"{path.path}: {path.problem}; see storage.room")
            continue
        silent = (
            path.writable is None and path.exists is None and path.problem not in {*STALE, *REFUSED}
        )
        yield finding(
            "unknown" if silent else "fail",
            node.name,
            f"{path.path} {'is not writable' if path.exists is not None else _why_silent(path)}",
            wanted=f"a folder that {known.user or 'the user'} can write to",
            found="mounted read-only" if path.read_only else path.problem or "no answer",
            remedy=_make_writable(path, shlex.quote(known.user) if known.user else "$USER"),
        )


def _is_state_only(node: Node, path: PathFacts, cluster: Cluster) -> bool:
    places = run_paths(cluster, node)
    return {p.role for p in places if p.path == path.path} <= {"state", "shared", "needs"}


_FULL = ("No space left on device", "Disk quota exceeded")


def _make_writable(path: PathFacts, user: str) -> str:
    named = shlex.quote(path.path)
    if path.exists is None:
        return _make_reachable(path, user)
    if path.problem in _FULL:
        return _list_largest(path.mount or path.path)
    if path.read_only:
        return f"sudo mount -o remount,rw {shlex.quote(path.mount)}"
    if DANGLING in path.problem:
        named = f'"$(readlink -m {named})"'
    return f"sudo mkdir -p {named} && sudo chown {user} {named}"


def _make_reachable(path: PathFacts, user: str) -> str:
    named = shlex.quote(path.path)
    if _not_checked(path):
        return _LOOK
    if path.problem in STALE:
        return remount(path.mount or path.path)
    if path.problem in REFUSED:
        return f"namei -l {named} (on the node) shows where; correct that folder for {user}"
    return f"findmnt -T {named} (on the node) names its file server; check that it answers"


@Check(
    "storage.room",
    title="workdir, checkpoints and the runs' logs have free space",
    why="On a full disk a run fails while it writes a checkpoint or a log line.",
    fix="Delete old checkpoints, and old runs with `clusterctl runs --prune`, or choose another"
    " filesystem.",
    source="https://man7.org/linux/man-pages/man3/statvfs.3.html",
)
def free_space(facts: Facts, cluster: Cluster) -> Iterator[Finding]:
    """Judge the space that an unprivileged user can still use."""
    missing = MissingShares.of(facts, cluster)
    by_node: dict[str, list[PathFacts]] = defaultdict(list)
    for node, _known, path in known_paths(facts, cluster, "workdir", "checkpoints", "state"):
        by_node[node.name].append(path)
    for name, paths in by_node.items():
        lost = [path for path in paths if missing.explains(name, path.path)]
        looked_at = [path for path in paths if path.exists is not None and path not in lost]
        # A folder with a quota of its own reports another size than its filesystem.
        disks = {(path.mount or path.path, path.total_bytes): path for path in looked_at[::-1]}
        mounts = Counter(mount for mount, _ in disks)
        for (mount, _), path in reversed(disks.items()):
            yield from _room(name, path, path.path if mounts[mount] > 1 else mount)
        # A path that could be read shows its whole disk; else `storage.writable` reports it.
        unseen = [path for path in paths if (path.mount or path.path) not in mounts]
        alone = {path.mount or path.path: path for path in unseen[::-1]}
        for path in reversed(alone.values()):
            if path in lost:
                yield skip_missing(name, path.path)
            elif path is not paths[-1] or len(paths) == 1:  # the last is the state folder
                yield skip(name, f"{path.path} {_why_silent(path)}")


def _room(node: str, path: PathFacts, where: str) -> Iterator[Finding]:
    if not path.total_bytes:  # some FUSE filesystems report 0 bytes of 0
        yield skip(node, f"{where} does not report its free space")
    elif path.free_bytes is not None and path.free_bytes < FREE_WARN:
        yield finding(
            "fail" if path.free_bytes < FREE_FAIL else "warn",
            node,
            f"low free space on {where}",
            wanted=f"{FREE_WARN // GIB} GiB or more for {path.path}",
            found=f"{path.free_bytes / GIB:.2f} GiB",
            remedy=_list_largest(where),
        )
    elif path.total_files and path.free_files is not None and path.free_files < FILES_WARN:
        yield finding(
            "fail" if path.free_files < FILES_FAIL else "warn",
            node,
            f"few free inodes on {where}",
            wanted=f"room for {FILES_WARN} files or more for {path.path}",
            found=f"{path.free_files} of {path.total_files} inodes free",
            remedy=f"du -x --inodes --max-depth=2 {shlex.quote(where)} | sort -n | tail",
        )


def _list_largest(where: str) -> str:
    return f"du -xh --max-depth=2 {shlex.quote(where)} | sort -h | tail"


@Check(
    "storage.needs",
    title="the paths in `needs:` exist and are equal on every node",
    why="If a model or dataset is missing or differs on one node, the job fails or trains wrong. A"
    " path that the command names and only some nodes have is a warning: it may be an output of one"
    " node.",
    fix="Copy the files with `clusterctl push`, or put them onto a shared path.",
    source="docs/reference/inventory.md",
    explained_by=("storage.model",),
    applies=lambda node, cluster: bool(
        cluster.job.needs or command_paths(cluster, cluster.node(node.node))
    ),
)
def needs(facts: Facts, cluster: Cluster) -> Iterator[Finding]:
    """Compare sizes, names and the ends of the largest files with most other nodes."""
    missing = MissingShares.of(facts, cluster)
    by_need: dict[str, list[tuple[Node, PathFacts]]] = defaultdict(list)
    for node, _known, path in known_paths(facts, cluster, "needs"):
        if missing.explains(node.name, path.path):
            yield skip_missing(node.name, path.path)
        else:
            by_need[path.path].append((node, path))
    for found in by_need.values():
        usual = most_frequent(path.digest for _, path in found if path.digest)
        owner, model = next(((n, p) for n, p in found if usual and p.digest == usual), (None, None))
        for node, path in found:
            remedy = "copy it to every node, or correct `needs:` in the inventory"
            local = in_workdir(node, path.path)
            if owner is not None:
                remedy = _push(path, owner, cluster)
            elif path.here == "ignored":
                words = ["clusterctl", "push", local, "--to", posixpath.dirname(path.path)]
                remedy = f"{shlex.join(words)} (a sync leaves it out)"
            elif local and path.here != "absent":
                remedy = (
                    f"clusterctl sync (in the folder with {local}) brings it; otherwise {remedy}"
                )
            for one in _need(node.name, path, model, remedy):
                brought = path.here == "synced" and one.status == "fail"
                yield skip(node.name, f"the next sync brings {local}") if brought else one
    yield from _of_command(facts, cluster, missing)


def _of_command(facts: Facts, cluster: Cluster, missing: MissingShares) -> Iterator[Finding]:
    """Warn of a path in the command that some nodes have and others do not."""
    by_path: dict[str, list[tuple[Node, PathFacts]]] = defaultdict(list)
    for node, _known, path in known_paths(facts, cluster, "command"):
        by_path[path.path].append((node, path))
    for name, found in by_path.items():
        owner = next((node for node, path in found if path.exists), None)
        for node, path in found:
            if path.exists or missing.explains(node.name, name):
                continue
            if path.exists is None:
                yield _unread(node.name, path)
            elif owner is not None:
                yield warn(
                    node.name,
                    f"{name} is missing, and the command names it",
                    wanted=f"an existing path, as on {owner.name}, if every node reads it",
                    found="no such file or folder",
                    remedy=f"clusterctl push {shlex.quote(name)} (copies it from {owner.name})",
                )


def _push(path: PathFacts, owner: Node, cluster: Cluster) -> str:
    # A path in workdir differs between nodes with different ones: then all needs are pushed.
    needs = map(posixpath.normpath, cluster.job.needs)
    words = [path.path] if path.path in needs else []
    # Two copies: say which one is right, as the finding does.
    source = ["--from", owner.name] if path.exists else []
    return shlex.join(["clusterctl", "push", *words, *source])


def _need(node: str, path: PathFacts, model: PathFacts | None, remedy: str) -> Iterator[Finding]:
    need = path.path
    if path.exists is False:
        yield fail(
            node,
            f"{need} is missing",
            wanted=_size(model) if model is not None else "an existing path",
            found="no such file or folder",
            remedy=remedy,
        )
    elif path.exists is None or not path.digest:
        yield _unread(node, path)
    elif model is not None and path.digest != model.digest:
        yield fail(
            node,
            f"{need} differs from the other nodes",
            wanted=_size(model),
            found=_size(path) + (", different content" if _size(path) == _size(model) else ""),
            remedy=remedy,
        )


def _unread(node: str, path: PathFacts) -> Finding:
    return unknown(
        node,
        f"{path.path} {'was not checked' if _not_checked(path) else 'could not be read'}",
        wanted="a readable path",
        found=path.problem or "no answer",
        remedy=_LOOK if _not_checked(path) else f"ls -l {shlex.quote(path.path)} (on the node)",
    )


def _size(path: PathFacts) -> str:
    size = f"{path.size} bytes"
    if not path.folder or path.entries is None:
        return size
    return f"{size} in {counted(path.entries, 'file')}"
