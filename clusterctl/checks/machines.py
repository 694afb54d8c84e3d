"""Whether each node is a machine of its own, free, on time, and lets a run live."""

from __future__ import annotations

import math
import re
import shlex
from collections import defaultdict
from collections.abc import Iterator
from ipaddress import ip_address
from statistics import median

from clusterctl.checks.finding import Finding
from clusterctl.checks.planned import chosen_by_job, planned_gpus
from clusterctl.checks.registry import Facts, check
from clusterctl.facts.gpuset import VISIBLE
from clusterctl.facts.nodefacts import UNLIMITED, Clock, NodeFacts, RunLock
from clusterctl.inventory.cluster import Cluster
from clusterctl.network.choice import Network

_RUN = re.compile(r"[a-z0-9][A-Za-z0-9-]*")

SKEW_WARN_S = 1.0
SKEW_FAIL_S = 15.0
"""torchrun's dynamic rendezvous drops peers whose heartbeat is older than 3 x 5 s by its clock."""

GIB = 1024**3
SHM_FAIL = GIB
SHM_WARN = 8 * GIB
MEMLOCK_WANTED = 16 * GIB


@check(
    "node.same-machine",
    title="no two entries are one machine",
    why="Two ranks would share the GPUs of one machine, or wait for each other's ports.",
    needs=("boot_id",),
)
def same_machine(facts: Facts, _network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Compare boot ids, which every boot of every machine makes anew."""
    if cluster.same_machine:
        return
    machines: dict[str, list[NodeFacts]] = defaultdict(list)
    for node in facts.values():
        if node.boot_id:
            machines[node.boot_id].append(node)
    for boot_id, nodes in machines.items():
        if len(nodes) < 2:  # noqa: PLR2004  (one is as it should be)
            continue
        apart = len({node.netns for node in nodes}) == len(nodes)
        yield Finding(
            check="node.same-machine",
            status="warn" if apart else "fail",
            nodes=tuple(node.node for node in nodes),
            message="these are containers of one machine"
            if apart
            else "these are one and the same machine",
            wanted="a machine each",
            found=f"boot id {boot_id} on all of them",
            remedy="take all but one out of the inventory, or write `same_machine: allow` in it",
        )


@check(
    "node.hostname",
    title="host names tell the nodes apart",
    why="NCCL takes nodes with equal name and boot id for one machine; Gloo binds to what the"
    " node's own name resolves to unless GLOO_SOCKET_IFNAME is set, as clusterctl does.",
    after=("node.same-machine",),
)
def hostname(facts: Facts, _network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Find equal names on one machine, and names that lead Gloo to loopback."""
    named: dict[tuple[str, str], list[str]] = defaultdict(list)
    for node in facts.values():
        if node.hostname and node.boot_id and not cluster.same_machine:
            named[node.hostname, node.boot_id].append(node.node)
    for (name, _), nodes in named.items():
        if len(nodes) > 1:
            yield Finding(
                check="node.hostname",
                status="fail",
                nodes=tuple(nodes),
                message="containers of one machine have the same host name",
                wanted="names that differ",
                found=name,
                remedy="give each container its own --hostname, or set NCCL_HOSTID per node",
            )
    env = dict(cluster.job.env)
    if env.get("GLOO_SOCKET_IFNAME", "set by us"):
        return
    for node in facts.values():
        bad = [a for a in node.hostname_addresses or () if ip_address(a.split("%")[0]).is_loopback]
        if bad and len(bad) == len(node.hostname_addresses or ()):
            yield Finding(
                check="node.hostname",
                status="fail",
                nodes=(node.node,),
                message="its own name resolves to loopback, and the job empties GLOO_SOCKET_IFNAME",
                wanted="an address that the others can reach",
                found=f"{node.hostname} is {', '.join(bad)}",
                remedy="take GLOO_SOCKET_IFNAME out of job.env, or correct the node's /etc/hosts",
            )


@check(
    "node.python",
    title="the node's own Python has the modules that a supervisor needs",
    why="Some builds of Python lack ctypes, which every supervisor needs, or ssl, which encrypts"
    " the link between the supervisors of several nodes.",
    applies=lambda node, _cluster: node.agent is not None,
)
def agent_python(facts: Facts, _network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Name the modules that are missing; one node needs no ssl."""
    needed = {"ctypes", "ssl"} if len(cluster.nodes) > 1 else {"ctypes"}
    for node in facts.values():
        missing = sorted(needed.intersection(node.agent.lacks if node.agent else ()))
        if node.agent is None or not missing:
            continue
        path = node.agent.executable or "python3"
        yield Finding(
            check="node.python",
            status="fail",
            nodes=(node.node,),
            message=f"the Python that runs clusterctl there lacks {' and '.join(missing)}",
            wanted=f"a python3 with {' and '.join(sorted(needed))}",
            found=f"{path} without {' and '.join(missing)}",
            remedy="sudo apt-get install python3 (there), and put /usr/bin before the folder of"
            f" {shlex.quote(path)} on the PATH of SSH sessions",
        )


@check(
    "node.busy",
    title="no other run holds a node",
    why="Two runs on one node fight for its GPUs, memory and ports.",
    needs=("lock",),
)
def busy(facts: Facts, _network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Name the runs that hold the node, or GPUs of it that this job wants."""
    for node in facts.values():
        wanted = {gpu.uuid for gpu in chosen_by_job(cluster, node)}
        for lock in (node.lock, *node.sharing):
            if lock is None or not lock.run:
                continue
            if not (lock.holds and wanted and wanted.isdisjoint(lock.holds)):
                yield _held(node, lock)


def _held(node: NodeFacts, lock: RunLock) -> Finding:
    since = f" since {lock.since}" if lock.since else ""
    about = f" {lock.about}" if lock.about else ""
    devices = node.gpus.devices if node.gpus else ()
    taken = {uuid for each in node.sharing for uuid in each.holds}
    held = ", ".join(str(gpu.index) for gpu in devices if gpu.uuid in lock.holds)
    free = ",".join(str(gpu.index) for gpu in devices if gpu.uuid not in taken)
    # Anybody may hold the lock, and use any name: no such word is for a shell.
    remedy = "see who holds it: sudo ss -xlp (on the node), and look for @clusterctl-run"
    if _RUN.fullmatch(lock.run):
        remedy = f"clusterctl status {lock.run} shows it to its owner; --nodes or --exclude"
        remedy += " launches on other nodes"
    if held and free:
        remedy += f", --env {VISIBLE}={free} on its free GPUs"
    return Finding(
        check="node.busy",
        status="fail",
        nodes=(node.node,),
        message=f"another run holds {f'GPU {held} of ' if held else ''}the node",
        wanted="free GPUs" if held else "a free node",
        found=f"run {lock.run}{about} of {lock.user or 'somebody'}{since}",
        remedy=remedy,
    )


@check(
    "node.clock",
    title="the clocks agree",
    why="Rendezvous by heartbeat drops a peer whose clock is 15 s off; logs of several nodes and"
    " the first cause of a failure are put in order by time.",
    blocks=False,
    needs=("clock",),
)
def clock(facts: Facts, _network: Network, _cluster: Cluster) -> Iterator[Finding]:
    """Compare each clock with the middle of all, the controller's among them, or with that."""
    clocks = {node.node: node.clock for node in facts.values() if node.clock is not None}
    offsets = [clock.offset_s for clock in clocks.values() if _tells_time(clock)]
    # The middle of two would be a time that neither has.
    middle = median([*offsets, 0.0]) if len(offsets) > 1 else 0.0
    for name, clock in clocks.items():
        off = clock.offset_s - middle
        agrees = abs(off) - clock.error_s <= SKEW_WARN_S
        if not _tells_time(clock) or (agrees and abs(off) + clock.error_s > SKEW_FAIL_S):
            yield Finding(
                check="node.clock",
                status="unknown",
                nodes=(name,),
                message="its clock was measured too coarsely to be compared",
                wanted=f"an error that leaves it within {SKEW_FAIL_S:.0f} s of the other machines",
                found=f"{off:+.3f} s, known to {clock.error_s:.3f} s",
                remedy="run the check again, when the connection to the node is faster",
            )
            continue
        if agrees:
            continue
        yield Finding(
            check="node.clock",
            status="fail" if abs(off) - clock.error_s > SKEW_FAIL_S else "warn",
            nodes=(name,),
            message=f"its clock is {abs(off):.1f} s {'ahead' if off > 0 else 'behind'}",
            wanted=f"within {SKEW_WARN_S:.0f} s of the other machines",
            found=f"{off:+.3f} s, known to {clock.error_s:.3f} s",
            remedy="sudo timedatectl set-ntp true",
        )


def _tells_time(clock: Clock) -> bool:
    """Tell whether a measurement says anything; facts of a file may hold any numbers."""
    return math.isfinite(clock.offset_s) and math.isfinite(clock.error_s) and clock.error_s >= 0


@check(
    "node.arch",
    title="all nodes have one processor architecture",
    why="Code and packages that were built for one do not run on the other.",
    needs=("arch",),
)
def arch(facts: Facts, _network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Compare with the master; while its own is unknown, that alone keeps a run from starting."""
    master = facts.get(cluster.master.name)
    if master is None or master.arch is None:
        message = "the master's architecture is unknown"
        for node in facts.values():
            if node.arch is not None:
                yield Finding(check="node.arch", status="skip", nodes=(node.node,), message=message)
        return
    for node in facts.values():
        if node.arch not in {None, master.arch}:
            yield Finding(
                check="node.arch",
                status="fail",
                nodes=(node.node,),
                message="its processor is of another architecture than the master's",
                wanted=master.arch,
                found=str(node.arch),
                remedy=f"leave it out: --exclude {node.node}",
            )


@check(
    "node.shm",
    title="shared memory (/dev/shm) is large enough",
    why="NCCL between GPUs of one node, and data loaders, pass data through it; containers get"
    " 64 MiB by default.",
    needs=("shm_bytes",),
    applies=lambda node, cluster: planned_gpus(cluster, node) > 0,
)
def shm(facts: Facts, _network: Network, cluster: Cluster) -> Iterator[Finding]:
    """Look where GPUs are planned."""
    for node in facts.values():
        if not planned_gpus(cluster, node) or node.shm_bytes is None:
            continue
        if node.shm_bytes < SHM_WARN:
            yield Finding(
                check="node.shm",
                status="fail" if node.shm_bytes < SHM_FAIL else "warn",
                nodes=(node.node,),
                message="shared memory (/dev/shm) is small",
                wanted="8 GiB or more",
                found=f"{node.shm_bytes / GIB:.2f} GiB",
                remedy="sudo mount -o remount,size=64G /dev/shm (a container: --shm-size=64g)",
            )


@check(
    "node.memlock",
    title="RDMA may lock memory",
    why="InfiniBand and RoCE register memory with the card; under a small limit NCCL ends with"
    " `ibv_reg_mr failed`.",
    blocks=False,
    needs=("limits",),
    applies=lambda node, _cluster: any(port.active for port in node.rdma or ()),
)
def memlock(facts: Facts, _network: Network, _cluster: Cluster) -> Iterator[Finding]:
    """Look where an RDMA port is active."""
    for node in facts.values():
        limit = node.limits.memlock if node.limits else None
        if limit is None or not any(port.active for port in node.rdma or ()):
            continue
        if limit != UNLIMITED and limit < MEMLOCK_WANTED:
            yield Finding(
                check="node.memlock",
                status="warn",
                nodes=(node.node,),
                message="little memory may be locked, and there is an RDMA card",
                wanted="unlimited",
                found=f"{limit / 1024:.0f} KiB",
                remedy="write `* - memlock unlimited` into /etc/security/limits.conf and log in"
                " anew (a container: --ulimit memlock=-1)",
            )


@check(
    "node.session",
    title="a run outlives the SSH session",
    why="With KillUserProcesses=yes logind ends everything of a user whose last session closes.",
)
def session(facts: Facts, _network: Network, _cluster: Cluster) -> Iterator[Finding]:
    """Root is never touched, nor who lingers."""
    for node in facts.values():
        if node.kill_user_processes and node.uid != 0 and not node.linger:
            yield Finding(
                check="node.session",
                status="fail",
                nodes=(node.node,),
                message="logind would end the run when the SSH session closes",
                wanted="KillUserProcesses=no, or linger for this user",
                found="KillUserProcesses=yes",
                remedy="sudo loginctl enable-linger "
                + (shlex.quote(node.user) if node.user else "$USER"),
            )
