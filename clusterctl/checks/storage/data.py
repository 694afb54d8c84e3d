"""Whether checkpoints are written fast enough, and temporary folders and caches can be used."""

import shlex
from collections.abc import Iterator, Mapping
from statistics import median

from clusterctl.checks.finding import Finding, fail, unknown, warn
from clusterctl.checks.registry import Check, Facts
from clusterctl.checks.storage.run_paths import cache_folders, run_paths, share_of
from clusterctl.checks.storage.shares import no_answer
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.facts.storage.storage import NETWORK, PathFacts
from clusterctl.inventory.cluster import Cluster, Node
from clusterctl.plan.processes import planned_gpus


@Check(
    "storage.caches",
    title="compilers and temporary files use a folder of each node's own, and no lock is left",
    why="Triton, inductor and torch's extensions lock and rename files in their caches. Nodes that"
    " compile into one folder wait for each other's locks, or load half a file. A build that is"
    " killed leaves its lock, and every later rank waits for it silently.",
    fix="Set the variable to a folder on each node's own disk, and make the folder of TMPDIR."
    " Remove a lock that no process holds.",
    source="https://docs.pytorch.org/docs/stable/cpp_extension.html",
    explained_by=("storage.shared",),
    blocks=False,
    required_facts=("build_locks",),
    applies=lambda node, cluster: bool(cache_folders(cluster) or node.build_locks),
)
def caches(facts: Facts, cluster: Cluster) -> Iterator[Finding]:
    """Judge the folders that `job.env` names, shared ones only if there are several; and locks."""
    yield from _dead_locks(facts)
    answered = [node for node in facts.values() if node.answered]
    for name, folder in cache_folders(cluster).items():
        places = {node.node: path for node in answered if (path := node.path(folder)) is not None}
        on_network = [n for n, path in places.items() if NETWORK.fullmatch(path.filesystem)]
        sharing = [*places] if share_of(cluster, folder) else on_network
        if len(sharing) > 1:
            own = "/tmp" if name == "TMPDIR" else f"/var/tmp/{name.lower()}"  # noqa: S108  (named)
            yield warn(
                tuple(sharing),
                f"{name} is on a filesystem that these nodes share",
                wanted="a folder on each node's own disk",
                found=folder,
                remedy=f"set {name}: {own} in job.env",
            )
            continue
        for node, path in places.items():
            if name == "TMPDIR" and path.exists is None:
                yield unknown(
                    node,
                    f"the folder of TMPDIR, {folder}, {no_answer(path)}",
                    wanted="a folder",
                    found=path.problem or "no answer",
                    remedy="clusterctl check",
                )
            elif name == "TMPDIR" and not path.exists:
                yield warn(
                    node,
                    "the folder of TMPDIR does not exist: mktemp fails, and Python uses /tmp",
                    wanted="a folder",
                    found=f"no {folder}",
                    remedy=f"mkdir -p {shlex.quote(folder)} (on the node)",
                )


def _dead_locks(facts: Facts) -> Iterator[Finding]:
    """Find locks that no process has open, on any node: the path may be shared."""
    if any(node.build_locks is None for node in facts.values()):
        return  # the path may be shared, and one that did not tell may hold it
    held = {lock.path for node in facts.values() for lock in node.build_locks or () if lock.held}
    for node in facts.values():
        for lock in node.build_locks or ():
            if lock.path not in held:
                minutes = lock.age_s / 60
                yield warn(
                    node.node,
                    f"a build of torch's extensions left its lock {lock.path}, and ranks would wait"
                    " for it forever",
                    wanted="no lock without a build",
                    found=f"{minutes:.0f} min old, and no process of these nodes has it open",
                    remedy=f"rm {shlex.quote(lock.path)} (on the node)",
                )


MB = 1e6
SLOWER = 8.0
"""A node is slow if the others are so many times as fast."""
FAST_ENOUGH = 100 * MB
"""Bytes a second; a small file shows no more of a filesystem that is busy."""
SLOW_FILE_S = 0.1
"""Three requests to a file server in another building take less."""
SLOW = 5 * MB
"""Too slow for any checkpoint, for all nodes together: they write at the same time."""
_ENOUGH = f"{SLOW / MB:.0f} MB/s or more for all nodes together"


@Check(
    "storage.speed",
    title="checkpoints are written and read as fast as on the other nodes",
    why="All ranks wait for the slowest one in each checkpoint. A share that is mounted over a slow"
    " network, or a failing disk, shows in a file of a few MiB.",
    fix="Mount the share over the data network, or replace the slow disk. Compare with `fio`.",
    source="https://man7.org/linux/man-pages/man5/nfs.5.html",
    blocks=False,
    explained_by=("storage.shared", "storage.writable"),
    applies=lambda node, cluster: _checkpoints(node, cluster.node(node.node), cluster) is not None,
)
def speed(facts: Facts, cluster: Cluster) -> Iterator[Finding]:
    """Compare each node with the median, which one fast node does not change."""
    paths = {
        node.name: path
        for node in cluster.nodes
        if node.name in facts
        and (path := _checkpoints(facts[node.name], node, cluster)) is not None
    }
    for name, path in paths.items():
        for verb, rate, rates in (
            ("writes to", path.write_rate, [p.write_rate for p in paths.values()]),
            ("reads from", path.read_rate, [p.read_rate for p in paths.values()]),
        ):
            usual = _usual(rates)
            if rate is None or rate <= 0 or not (rate * len(paths) < SLOW or _lags(rate, usual)):
                continue
            wanted = f"{usual / MB:.0f} MB/s, as on the other nodes"
            yield warn(
                name,
                f"it {verb} {path.path} slowly",
                wanted=wanted if _lags(rate, usual) else _ENOUGH,
                found=f"{rate / MB:.1f} MB/s",
                remedy=f"findmnt -T {shlex.quote(path.path)} (on the node) shows its disk or file"
                " server; nfsiostat and iostat -x show what is busy",
            )

    yield from _slow_files(paths)


def _slow_files(paths: Mapping[str, PathFacts]) -> Iterator[Finding]:
    times = [path.file_s for path in paths.values() if path.file_s]
    usual = min(times, default=0.0) if len(times) < 3 else median(times)  # noqa: PLR2004
    for name, path in paths.items():
        if path.file_s is None or path.file_s < SLOW_FILE_S:
            continue
        lags = path.file_s > SLOWER * usual
        yield warn(
            name,
            f"small files in {path.path} take long",
            wanted=f"{1000 * usual:.1f} ms a file, as on the other nodes"
            if lags
            else f"less than {1000 * SLOW_FILE_S:.0f} ms to make, look up and remove a file",
            found=f"{1000 * path.file_s:.0f} ms a file",
            remedy=f"findmnt -T {shlex.quote(path.path)} (on the node) shows its disk or file"
            " server; save few large files instead of many small ones, or to another folder",
        )


def _usual(rates: list[float | None]) -> float:
    """Return the median; of two nodes the faster one's rate."""
    known = [rate for rate in rates if rate is not None and rate > 0]
    if len(known) < 3:  # noqa: PLR2004
        return max(known, default=0.0)
    return median(known)


def _lags(rate: float, usual: float) -> bool:
    return rate < FAST_ENOUGH and rate * SLOWER < usual


def _checkpoints(known: NodeFacts, node: Node, cluster: Cluster) -> PathFacts | None:
    """Return the path of the checkpoints if its speed was measured."""
    for place in run_paths(cluster, node):
        path = known.path(place.path) if place.role == "checkpoints" else None
        if path is not None and path.write_rate is not None:
            return path
    return None


@Check(
    "storage.noexec",
    title="programs can be started from TMPDIR and home",
    why="torch.compile and Triton write libraries below TMPDIR and home, and load them there. With"
    " `noexec` this fails with `failed to map segment from shared object`.",
    fix="Set TMPDIR and TRITON_CACHE_DIR in `job.env`, or mount the folder without `noexec`.",
    source="https://man7.org/linux/man-pages/man8/mount.8.html",
    blocks=False,
    applies=lambda node, cluster: (
        node.machine_state.noexec is not None and planned_gpus(cluster, node) > 0
    ),
)
def noexec(facts: Facts, cluster: Cluster) -> Iterator[Finding]:
    """Judge the folders of the session, unless the job sets others."""
    moved = {"TMPDIR", "TRITON_CACHE_DIR"} & dict(cluster.job.env).keys()
    for node in facts.values():
        folders = node.machine_state.noexec
        if folders and planned_gpus(cluster, node) and not moved:
            yield warn(
                node.node,
                f"no program can be started from {' and '.join(folders)}",
                wanted="a filesystem without `noexec`",
                found="mounted with `noexec`",
                remedy="set TMPDIR and TRITON_CACHE_DIR under `job: env:` to a folder on a local"
                " disk",
            )


@Check(
    "storage.state",
    title="the folder of the runs' logs and state is the user's own",
    why="A run refuses to start in a folder that another user made or may write to.",
    fix="Remove that folder as its owner, or set `state:` of the node to another one.",
    source="docs/reference/inventory.md",
    applies=lambda node, cluster: (
        node.machine_state.state_problem is not None and not cluster.node(node.node).state
    ),
)
def state(node: NodeFacts, cluster: Cluster) -> Iterator[Finding]:
    """Judge the usual folder: of another one `storage.writable` tells."""
    problem = node.machine_state.state_problem
    if problem and not cluster.node(node.node).state:
        folder, _, owner = problem.partition(" is a folder of user ")
        remedy = (
            "set `state:` of this node to another folder, on a local disk; or remove that one, as"
            " its owner"
        )
        if owner and owner.partition(",")[0] == node.user:
            remedy = f"chmod 700 {shlex.quote(folder)} (on the node)"
        yield fail(
            node.node,
            "the folder of the runs' state is not this user's alone",
            wanted="a folder of this user, mode 700",
            found=problem,
            remedy=remedy,
        )


@Check(
    "storage.locks",
    title="locks of files on the shared paths hold on all nodes",
    why="datasets and huggingface_hub lock the files of their cache. Where that fails, they stop;"
    " where a lock holds on one node only, two nodes write the same file.",
    fix="Mount Lustre with `flock`, and NFS without `nolock` and `local_lock`; or set HF_HOME to a"
    " folder on a local disk.",
    source="https://man7.org/linux/man-pages/man5/nfs.5.html",
    blocks=False,
    explained_by=("storage.shared", "storage.writable"),
    applies=lambda node, cluster: any(_locks(node, share) is not None for share in cluster.shared),
)
def locks(facts: Facts, cluster: Cluster) -> Iterator[Finding]:
    """Judge the mount options of each share."""
    moved = "HF_HOME" in dict(cluster.job.env)
    for node in facts.values():
        for share in () if moved else cluster.shared:
            option = _locks(node, share)
            if option:
                refused = option == "noflock"
                yield warn(
                    node.node,
                    f"files on {share} cannot be locked"
                    if refused
                    else f"a lock of a file on {share} holds on this node only",
                    wanted="locks that hold on all nodes",
                    found="mounted without flock" if refused else f"mounted with {option}",
                    remedy=f"add flock to the options of {shlex.quote(share)} in /etc/fstab"
                    if refused or option == "localflock"
                    else f"remove that option of {shlex.quote(share)} in /etc/fstab,"
                    " or set HF_HOME in `job.env` to a folder on a local disk",
                )


def _locks(node: NodeFacts, share: str) -> str | None:
    path = node.path(share)
    return path.lock_option if path is not None else None
