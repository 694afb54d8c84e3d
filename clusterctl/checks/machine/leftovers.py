"""Whether processes of earlier jobs are left on each node."""

import re
from collections.abc import Iterator

from clusterctl.checks.finding import Finding, warn
from clusterctl.checks.registry import Check
from clusterctl.facts.machine.machine_state import LeftoverProcess, Leftovers
from clusterctl.facts.nodefacts import NodeFacts

_RUN = re.compile(r"[a-z0-9][A-Za-z0-9-]*")
_MINUTE = 60.0
_HOUR = 60 * _MINUTE
_DAY = 24 * _HOUR
_SHOWN = 3


@Check(
    "node.leftovers",
    title="no rank of an earlier job, and no daemon of Ray, is left",
    why="A rank that outlives its launcher holds memory, ports and files. It may also join the next"
    " rendezvous. It reads your own processes only.",
    fix="End the processes that the finding names. `clusterctl stop` ends runs of clusterctl"
    " completely.",
    source="docs/how-to/follow-and-stop.md",
    blocks=False,
    applies=lambda node, _cluster: node.machine_state.leftovers is not None,
)
def leftovers(node: NodeFacts) -> Iterator[Finding]:
    """Name the ranks, and the command that ends them; those of a live run do not count."""
    live = {lock.run for lock in (node.lock, *node.sharing) if lock is not None and lock.run}
    left = [one for one in _of(node).ranks if one.run not in live]
    ranks = [one for one in left if one.rank]
    daemons = [one for one in left if not one.rank]
    if daemons:
        yield warn(
            node.node,
            "daemons of Ray run: they hold memory and ports, and may be left from a job",
            wanted="no process of another job",
            found="\n".join(_described(one) for one in daemons[:_SHOWN]) + _more(daemons),
            remedy="ray stop (on the node), unless a job of yours uses them",
        )
    runs = sorted({one.run for one in ranks if _RUN.fullmatch(one.run)})
    others = [one for one in ranks if not _RUN.fullmatch(one.run)]
    if ranks:
        commands = [f"clusterctl stop {run}" for run in runs]
        if others:
            pids = " ".join(str(one.pid) for one in others)
            commands.append(f"kill {pids} (on the node)")
        yield warn(
            node.node,
            "ranks of an earlier job are left: their launcher has exited",
            wanted="no process of an earlier job",
            found="\n".join(_described(one) for one in ranks[:_SHOWN]) + _more(ranks),
            remedy="; ".join(commands),
        )


@Check(
    "node.stuck",
    title="no process is stuck in the kernel",
    why="Not even SIGKILL ends such a process. It waits for a disk, a file server or a driver that"
    " does not answer, and a run would wait too.",
    fix="Find what it waits for with `cat /proc/PID/wchan`. Often only a restart of the node"
    " helps.",
    source="https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html",
    blocks=False,
    explained_by=("storage.shared", "storage.writable", "storage.room"),
    applies=lambda node, _cluster: node.machine_state.leftovers is not None,
)
def stuck(node: NodeFacts) -> Iterator[Finding]:
    """Name the processes, and what each waits for."""
    found = _of(node).stuck
    if found:
        yield warn(
            node.node,
            "processes are stuck in the kernel and cannot be ended",
            wanted="no process in state D",
            found="\n".join(_described(one) for one in found[:_SHOWN]) + _more(found),
            remedy="sudo dmesg -T | tail (on the node) shows errors of disks, NFS and drivers;"
            " if the cause cannot be removed: sudo reboot",
        )


def _of(node: NodeFacts) -> Leftovers:
    return node.machine_state.leftovers or Leftovers()


def _described(one: LeftoverProcess) -> str:
    parts = [f"pid {one.pid}"]
    parts += [f"rank {one.rank}"] if one.rank else []
    parts += [f"of run {one.run}"] if one.run else []
    parts += [f"for {_age(one.age_s)}"] if one.age_s is not None else []
    parts += [f"in {one.waits_in}"] if one.waits_in.strip("0") else []
    return f"{', '.join(parts)}: {one.command or 'without a name'}"


def _age(seconds: float) -> str:
    if seconds >= _DAY:
        return f"{seconds / _DAY:.0f} d"
    if seconds >= _HOUR:
        return f"{seconds / _HOUR:.0f} h"
    return f"{seconds / 60:.0f} min" if seconds >= _MINUTE else f"{seconds:.0f} s"


def _more(listed: list[LeftoverProcess] | tuple[LeftoverProcess, ...]) -> str:
    return f"\nand {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
