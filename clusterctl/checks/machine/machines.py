"""Whether each node is a separate machine, free, in time, and keeps a run alive."""

import math
import re
import shlex
from collections import defaultdict
from collections.abc import Iterator
from statistics import median

from clusterctl.checks.finding import Finding, fail, finding, skip, unknown, warn
from clusterctl.checks.registry import Check, Facts
from clusterctl.facts.gpu.accelerators import VISIBLE
from clusterctl.facts.machine.machine_state import RunLock
from clusterctl.facts.machine.system import Clock
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.inventory.cluster import Cluster
from clusterctl.plan.processes import chosen_by_job

_RUN = re.compile(r"[a-z0-9][A-Za-z0-9-]*")

FIRST_USER = 1000
"""The least uid that is no system user's."""
SKEW_WARN_S = 1.0
SKEW_FAIL_S = 15.0
"""torchrun's dynamic rendezvous drops peers whose heartbeat is older than 15 s."""


@Check(
    "node.same-machine",
    title="each entry is a separate machine",
    why="Ranks of two entries would share the GPUs and ports of one machine.",
    fix="Remove the second entry. For containers that share a machine on purpose, set"
    " `same_machine: allow`.",
    source="docs/reference/inventory.md",
    required_facts=("boot_id",),
)
def same_machine(facts: Facts, cluster: Cluster) -> Iterator[Finding]:
    """Compare boot ids: each boot of each machine has its own."""
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
        yield finding(
            "warn" if apart else "fail",
            tuple(node.node for node in nodes),
            "these are containers on one machine"
            if apart
            else "these entries are the same machine",
            wanted="a separate machine for each entry",
            found=f"boot id {boot_id} on all of them",
            remedy="remove all but one from the inventory, or set `same_machine: allow` in it",
        )


@Check(
    "node.python",
    title="the node's own Python has the modules that clusterctl needs",
    why="clusterctl runs a supervisor on every node. It needs ctypes, and ssl if there are several"
    " nodes. Some builds of Python lack them.",
    fix="Install the distribution's complete python3, or build it with the headers of libffi"
    " and OpenSSL.",
    source="https://docs.python.org/3/using/unix.html",
    applies=lambda node, _cluster: node.agent is not None,
    final=True,
)
def agent_python(facts: Facts, cluster: Cluster) -> Iterator[Finding]:
    """Name the missing modules; a run on one node needs no ssl."""
    needed = {"ctypes", "ssl"} if len(cluster.nodes) > 1 else {"ctypes"}
    for node in facts.values():
        missing = sorted(needed.intersection(node.agent.lacks if node.agent else ()))
        if node.agent is None or not missing:
            continue
        path = node.agent.executable or "python3"
        yield fail(
            node.node,
            f"its own Python has no module {' and '.join(missing)}",
            wanted=f"a python3 with {' and '.join(sorted(needed))}",
            found=f"{path} without {' and '.join(missing)}",
            remedy="sudo apt-get install python3 (on the node); put /usr/bin before the folder of"
            f" {shlex.quote(path)} in the PATH of SSH sessions",
        )


@Check(
    "node.busy",
    title="no other run uses a node",
    why="Two runs on one node compete for its GPUs, memory and ports.",
    fix="Wait for the other run, stop it if it is yours, or take other nodes with --exclude.",
    source="docs/explanation/a-runs-life.md",
    required_facts=("lock",),
    final=True,
)
def busy(facts: Facts, cluster: Cluster) -> Iterator[Finding]:
    """Name the runs that hold the node or the GPUs that this job wants."""
    held = [
        (node, lock)
        for node in facts.values()
        for lock in (node.lock, *node.sharing)
        if lock is not None and lock.run
    ]
    # Its nodes start one after the other: one time for all makes one finding of them.
    began: dict[str, str] = {}
    for _, lock in held:
        began[lock.run] = min(lock.since, began.get(lock.run) or lock.since)
    for node, lock in held:
        wanted = {gpu.uuid for gpu in chosen_by_job(cluster, node)}
        if not (lock.holds and wanted and wanted.isdisjoint(lock.holds)):
            yield _held(node, lock, began[lock.run], in_slurm=cluster.by_slurm)


def _held(node: NodeFacts, lock: RunLock, began: str, *, in_slurm: bool) -> Finding:
    since = f" since {began}" if began else ""
    about = f" {lock.about}" if lock.about else ""
    taken = {uuid for each in node.sharing for uuid in each.holds}
    held = ", ".join(str(gpu.index) for gpu in node.devices if gpu.uuid in lock.holds)
    free = ",".join(str(gpu.index) for gpu in node.devices if gpu.uuid not in taken)
    # Any user may hold the lock under any name: only a well-formed id may go into a command.
    remedy = "sudo ss -xlp | grep @clusterctl-run (on the node) shows the process that holds it"
    if _RUN.fullmatch(lock.run):
        remedy = f"clusterctl status {lock.run} shows that run, clusterctl stop {lock.run} ends it"
        if lock.user != node.user:
            remedy = f"wait for it, or ask its owner, who can: clusterctl stop {lock.run}"
        remedy += (
            '; or let Slurm give whole nodes: `exclusive: ""` in job.slurm, or salloc --exclusive'
            if in_slurm
            else "; or launch with --wait, or on other nodes with --nodes or --exclude"
        )
    if held and free:
        remedy += f", or on its free GPUs with --env {VISIBLE}={free}"
    return fail(
        node.node,
        f"another run uses {f'GPU {held} of ' if held else ''}the node",
        wanted="free GPUs" if held else "a free node",
        found=f"run {lock.run}{about} of {lock.user or 'an unknown user'}{since}",
        remedy=remedy,
    )


@Check(
    "node.clock",
    title="the clocks agree",
    why="A rendezvous drops a node whose clock is 15 s off. Merged logs and the first cause of a"
    " failure depend on the clocks.",
    fix="Let chrony or systemd-timesyncd keep the time on every node.",
    source="https://docs.pytorch.org/docs/stable/elastic/rendezvous.html",
    blocks=False,
    required_facts=("clock",),
)
def clock(facts: Facts) -> Iterator[Finding]:
    """Compare each clock with the median of all, the controller's included, or with that one."""
    clocks = {node.node: node.clock for node in facts.values() if node.clock is not None}
    offsets = [clock.offset_s for clock in clocks.values() if _tells_time(clock)]
    # The median of two clocks would be a time that neither shows.
    middle = median([*offsets, 0.0]) if len(offsets) > 1 else 0.0
    for name, clock in clocks.items():
        off = clock.offset_s - middle
        agrees = abs(off) - clock.error_s <= SKEW_WARN_S
        if not _tells_time(clock) or (agrees and abs(off) + clock.error_s > SKEW_FAIL_S):
            yield unknown(
                name,
                "its clock could not be measured precisely enough",
                wanted=f"a measurement within {SKEW_FAIL_S:.0f} s of the other machines",
                found=f"{off:+.3f} s, known to {clock.error_s:.3f} s",
                remedy="run the check again when the connection to the node is faster",
            )
            continue
        if agrees:
            continue
        yield finding(
            "fail" if abs(off) - clock.error_s > SKEW_FAIL_S else "warn",
            name,
            f"its clock is {abs(off):.1f} s {'ahead' if off > 0 else 'behind'}",
            wanted=f"within {SKEW_WARN_S:.0f} s of the other machines",
            found=f"{off:+.3f} s, known to {clock.error_s:.3f} s",
            remedy="sudo timedatectl set-ntp true",
        )


def _tells_time(clock: Clock) -> bool:
    """Tell whether a measurement is usable; saved facts may hold any numbers."""
    return math.isfinite(clock.offset_s) and math.isfinite(clock.error_s) and clock.error_s >= 0


@Check(
    "node.arch",
    title="all nodes have the same CPU architecture",
    why="Compiled packages for one CPU architecture do not run on another.",
    fix="Take nodes of one architecture: `--nodes` and `--exclude` choose them.",
    source="https://docs.pytorch.org/docs/stable/distributed.html",
    required_facts=("arch",),
)
def arch(facts: Facts, cluster: Cluster) -> Iterator[Finding]:
    """Compare with the master; skip if its own architecture is unknown."""
    master = facts.get(cluster.master.name)
    if master is None or master.arch is None:
        message = "the master's architecture is unknown"
        for node in facts.values():
            if node.arch is not None:
                yield skip(node.node, message)
        return
    for node in facts.values():
        if node.arch not in {None, master.arch}:
            yield fail(
                node.node,
                "its CPU architecture differs from the master's",
                wanted=master.arch,
                found=str(node.arch),
                remedy=f"exclude it: --exclude {node.node}",
            )


@Check(
    "node.session",
    title="a run keeps running when the SSH session ends",
    why="With KillUserProcesses=yes logind kills all processes of a user after the last logout.",
    fix="Run `loginctl enable-linger USER` on the node, or set KillUserProcesses=no in"
    " logind.conf.",
    source="https://www.freedesktop.org/software/systemd/man/latest/logind.conf.html",
    applies=lambda node, _cluster: node.kill_user_processes is not None,
)
def session(node: NodeFacts) -> Iterator[Finding]:
    """Judge the users that logind would log out: not root, and not with linger enabled."""
    if node.kill_user_processes and node.uid != 0 and not node.linger:
        yield fail(
            node.node,
            "logind would kill the run when the SSH session closes",
            wanted="KillUserProcesses=no, or linger enabled for this user",
            found="KillUserProcesses=yes",
            remedy="sudo loginctl enable-linger "
            + (shlex.quote(node.user) if node.user else "$USER"),
        )


@Check(
    "node.ipc",
    title="the shared memory of a run stays when its user logs out",
    why="With RemoveIPC=yes, the default, logind removes a user's files in /dev/shm after the last"
    " logout. It keeps them while a session of the user lives, but here SSH opens none.",
    fix="Run `loginctl enable-linger USER` on the node, or set `UsePAM yes` in sshd_config.",
    source="https://www.freedesktop.org/software/systemd/man/latest/logind.conf.html",
    blocks=False,
    applies=lambda node, _cluster: None not in {node.machine_state.remove_ipc, node.uid},
)
def ipc(node: NodeFacts) -> Iterator[Finding]:
    """Judge the users whose files logind removes: no system users, and none with linger."""
    removed = node.machine_state.remove_ipc
    if removed and not node.linger and node.uid is not None and node.uid >= FIRST_USER:
        yield warn(
            node.node,
            "logind would remove the run's shared memory when you log out elsewhere",
            wanted="RemoveIPC=no, or linger enabled for this user",
            found="RemoveIPC=yes, and SSH opens no session of logind",
            remedy="sudo loginctl enable-linger "
            + (shlex.quote(node.user) if node.user else "$USER"),
        )
