"""Whether the limits of each node leave a run what it needs."""

from collections.abc import Iterator

from clusterctl.checks.finding import Finding, finding, passed, warn
from clusterctl.checks.others import medians_of_others
from clusterctl.checks.registry import Check, Facts
from clusterctl.checks.wording import counted
from clusterctl.facts.machine.system import UNLIMITED
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.inventory.cluster import Cluster
from clusterctl.plan.processes import planned_gpus

GIB = 1024**3
SHM_FAIL = GIB
SHM_WARN = 8 * GIB
MEMLOCK_WANTED = 16 * GIB
NOFILE_WANTED = 4096
PROCESSES_OF_A_RANK = 256
"""Threads and data loaders of a rank, those of NCCL and of the libraries included."""
FEWER = 0.75
"""A limit is a fault if it leaves less than this part of what most other nodes have."""


@Check(
    "node.shm",
    title="shared memory (/dev/shm) is large enough",
    why="NCCL between GPUs of one node and data loaders pass data through it. Containers get 64 MiB"
    " by default.",
    fix="Start containers with `--ipc=host` or a larger `--shm-size`; on a machine, remount"
    " /dev/shm with a larger size.",
    source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
    required_facts=("shm_bytes",),
    applies=lambda node, cluster: planned_gpus(cluster, node) > 0,
)
def shm(node: NodeFacts, cluster: Cluster) -> Iterator[Finding]:
    """Judge the nodes where GPUs are planned."""
    if not planned_gpus(cluster, node) or node.shm_bytes is None:
        return
    if node.shm_bytes < SHM_WARN:
        yield finding(
            "fail" if node.shm_bytes < SHM_FAIL else "warn",
            node.node,
            "shared memory (/dev/shm) is too small",
            wanted="8 GiB or more",
            found=f"{node.shm_bytes / GIB:.2f} GiB",
            remedy="sudo mount -o remount,size=64G /dev/shm (for a container: --shm-size=64g)",
        )


@Check(
    "node.memlock",
    title="RDMA can lock enough memory",
    why="InfiniBand and RoCE lock memory for the network card. If the limit is low, NCCL fails with"
    " `ibv_reg_mr failed`. Some drivers need memory that the kernel reserves (CmaTotal), too.",
    fix="Set `memlock unlimited` in /etc/security/limits.conf and log in again; for containers,"
    " `--ulimit memlock=-1`. If CmaTotal in /proc/meminfo is 0 on one node only, boot the kernel"
    " of the others.",
    source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
    blocks=False,
    required_facts=("limits",),
    applies=lambda node, _cluster: (
        any(port.active for port in node.rdma or ())
        and (node.limits is None or node.limits.memlock is not None)
    ),
)
def memlock(facts: Facts) -> Iterator[Finding]:
    """Judge the nodes with an active RDMA port: the user's limit, then the kernel's reserve."""
    active = [node for node in facts.values() if any(port.active for port in node.rdma or ())]
    reserves = {node.node: cma for node in active if (cma := node.memory_use.cma_bytes) is not None}
    usual = medians_of_others(reserves)
    for node in active:
        limit = node.session_limits.memlock
        if limit is not None and limit != UNLIMITED and limit < MEMLOCK_WANTED:
            yield warn(
                node.node,
                "it has an RDMA card, but the limit of locked memory is low",
                wanted="unlimited",
                found=f"{limit / 1024:.0f} KiB",
                remedy="add `* - memlock unlimited` to /etc/security/limits.conf and log in again"
                " (for a container: --ulimit memlock=-1)",
            )
        elif reserves.get(node.node) == 0 and usual.get(node.node):
            reserve = f"{usual[node.node] / 1024:.0f} kB"
            yield warn(
                node.node,
                "it has an RDMA card, but its kernel reserves no memory for devices",
                wanted=f"CmaTotal: {reserve}, as on most other nodes",
                found=f"CmaTotal: 0 kB, kernel {node.kernel or 'unknown'}",
                remedy="boot the kernel of the other nodes, or add"
                f" cma={usual[node.node] / 1024**2:.0f}M to its command line",
            )


@Check(
    "node.open-files",
    title="a run may open enough files",
    why="Data loaders, checkpoints and the connections of NCCL hold a file each. A run raises its"
    " soft limit to the hard one.",
    fix="Raise the hard limit `nofile` in /etc/security/limits.conf and log in again.",
    source="https://man7.org/linux/man-pages/man5/limits.conf.5.html",
    blocks=False,
    applies=lambda node, _cluster: node.session_limits.nofile_hard is not None,
)
def open_files(node: NodeFacts) -> Iterator[Finding]:
    """Judge the hard limit."""
    hard = node.session_limits.nofile_hard
    if hard is not None and hard != UNLIMITED and hard < NOFILE_WANTED:
        yield warn(
            node.node,
            "the hard limit of open files is low",
            wanted=f"{NOFILE_WANTED} or more",
            found=str(hard),
            remedy="add `* - nofile 1048576` to /etc/security/limits.conf and log in again"
            " (for a container: --ulimit nofile=1048576)",
        )


@Check(
    "node.processes",
    title="a run may start enough processes and threads, and give them time and memory",
    why="Each rank starts hundreds of threads. At the limit, `fork` and `pthread_create` fail with"
    " `Resource temporarily unavailable`. At a limit of CPU time, the kernel kills the rank. One"
    " of address space fails CUDA, which reserves far more memory than it uses.",
    fix="Raise `nproc`, `cpu` and `as` in /etc/security/limits.conf, or the limit of pids of the"
    " container.",
    source="https://man7.org/linux/man-pages/man5/limits.conf.5.html",
    blocks=False,
    applies=lambda node, _cluster: (
        None not in {node.session_limits.processes_hard, node.cgroup.processes_left}
    ),
)
def processes(node: NodeFacts, cluster: Cluster) -> Iterator[Finding]:
    """Judge the user's limits, of which root has not the first, and that of the cgroup."""
    ranks = max(planned_gpus(cluster, node), 1)
    wanted = PROCESSES_OF_A_RANK * (1 + ranks)
    hard = node.session_limits.processes_hard
    if hard is not None and 0 <= hard < wanted and node.uid != 0:
        yield warn(
            node.node,
            "the hard limit of the user's processes is low",
            wanted=f"{wanted} or more for {counted(ranks, 'rank')}",
            found=str(hard),
            remedy="add `* - nproc unlimited` to /etc/security/limits.conf and log in again",
        )
    limits = node.session_limits
    space = limits.address_space_hard or 0
    for limit, key, message, found in (
        (limits.cpu_hard, "cpu", "the kernel kills a process of this user after some CPU time",
         f"{limits.cpu_hard} s"),
        (limits.address_space_hard, "as", "a process of this user may reserve little memory",
         f"{space / 1024**3:.1f} GiB of address space"),
    ):  # fmt: skip
        if limit is not None and limit != UNLIMITED:
            remedy = f"add `* - {key} unlimited` to /etc/security/limits.conf and log in again"
            yield warn(node.node, message, wanted="unlimited", found=found, remedy=remedy)
    left = node.cgroup.processes_left
    if left is not None and 0 <= left < wanted:
        yield warn(
            node.node,
            "its cgroup leaves room for few more processes",
            wanted=f"{wanted} or more for {counted(ranks, 'rank')}",
            found=f"{left} until pids.max",
            remedy="sudo systemctl set-property user.slice TasksMax=infinity"
            " (for a container: --pids-limit=-1)",
        )


@Check(
    "node.stack",
    title="the stack size has a limit",
    why="If it is unlimited, the C library gives each thread a stack of 2 MiB only. NCCL may crash"
    " while it searches the topology.",
    fix="Set `stack 8192` in /etc/security/limits.conf and log in again.",
    source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
    blocks=False,
    applies=lambda node, cluster: (
        node.session_limits.stack is not None and planned_gpus(cluster, node) > 0
    ),
)
def stack(node: NodeFacts, cluster: Cluster) -> Iterator[Finding]:
    """Warn of no limit where GPUs are planned."""
    if planned_gpus(cluster, node) and node.session_limits.stack == UNLIMITED:
        yield warn(
            node.node,
            "the stack size is unlimited",
            wanted="8192 KiB",
            found="unlimited",
            remedy="add `* soft stack 8192` to /etc/security/limits.conf and log in again",
        )


@Check(
    "node.cpus",
    title="a run may use the CPUs and the memory of the machine",
    why="A container or a cgroup may allow only a part of them. Programs that count the machine's"
    " CPUs then start too many threads.",
    fix="Give the container or the slice more CPUs and memory, or start fewer processes.",
    source="https://docs.kernel.org/admin-guide/cgroup-v2.html",
    blocks=False,
    applies=lambda node, _cluster: (
        None not in {node.cpus, node.memory_bytes, node.machine_state.online_cpus, node.cgroup.cpus}
    ),
)
def cpus(facts: Facts, cluster: Cluster) -> Iterator[Finding]:
    """Warn of a limit that is below the ranks or below most other nodes; note any other."""
    counts = {n.node: c for n in facts.values() if (c := _usable_cpus(n)) is not None}
    usual_cpus = medians_of_others(counts)
    sizes = {n.node: _usable_memory(n) for n in facts.values() if n.memory_bytes}
    usual_memory = medians_of_others(sizes)
    for node in facts.values():
        cpus, total = counts.get(node.node), node.machine_state.online_cpus
        memory = node.cgroup.memory_bytes
        whole = node.memory_bytes or 0
        parts = []
        if cpus is not None and total and cpus < total:
            parts.append(f"{cpus:g} of {total} CPUs")
        if memory is not None and 0 <= memory < whole:
            parts.append(f"{memory / GIB:.1f} of {whole / GIB:.1f} GiB of memory")
        if not parts:
            continue
        found = "a run may use " + " and ".join(parts)
        wanted = _too_few(
            cpus, total, max(planned_gpus(cluster, node), 1), usual_cpus.get(node.node, 0.0)
        ) or _too_small(memory, whole, usual_memory.get(node.node, 0.0))
        if wanted:
            yield warn(
                node.node,
                "a limit leaves a run a part of the machine",
                wanted=wanted,
                found=found,
                remedy="systemctl show user.slice -p CPUQuotaPerSecUSec,MemoryMax,AllowedCPUs"
                " (on the node) shows the limits (for a container: --cpus, --cpuset-cpus,"
                " --memory)",
            )
        else:
            yield passed(node.node, f"{found}, because of a limit", found=found)


def _usable_cpus(node: NodeFacts) -> float | None:
    quota = node.cgroup.cpus
    counts = [c for c in (node.cpus, quota) if c is not None and c > 0]
    return min(counts, default=None)


def _too_few(cpus: float | None, total: int | None, ranks: int, usual: float) -> str:
    """Return what is wanted if a limit leaves too few CPUs; empty: it does not."""
    if cpus is None or not total or cpus >= total:
        return ""
    if cpus < ranks <= total:
        return f"a CPU or more for each of {counted(ranks, 'rank')}"
    return f"{usual:g} CPUs, as on most other nodes" if cpus < FEWER * usual else ""


def _too_small(memory: int | None, whole: int, usual: float) -> str:
    """Return what is wanted if a limit leaves less memory than on most other nodes."""
    if memory is None or not 0 <= memory < whole or memory >= FEWER * usual:
        return ""
    return f"{usual / GIB:.1f} GiB of memory, as on most other nodes"


def _usable_memory(node: NodeFacts) -> int:
    limit, whole = node.cgroup.memory_bytes, node.memory_bytes or 0
    return min(limit, whole) if limit is not None and limit >= 0 else whole
