"""Whether the memory, the settings and the updates of each node are as they should be."""

import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

from clusterctl.checks.finding import Finding, skip, warn
from clusterctl.checks.machine.limits import GIB
from clusterctl.checks.registry import QUARANTINE, Check, Facts
from clusterctl.checks.wording import ago, left
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.facts.software.programs import Updates

AVAILABLE = 0.1
SWAPPED = 0.1
"""Parts of the memory."""
SMALLER = 0.97
"""A machine has less memory than its peers if it has less than this part of theirs."""
OOM_DAYS = 7
_DAY = 86400.0
_STRICT = 2
_DISTRIBUTION = re.compile(r"ubuntu0\.|~deb\d+u")
"""In the version of a driver that comes with the system's own updates, not from NVIDIA."""
_SLOW_CLOCKS = frozenset({"hpet", "acpi_pm", "pit", "jiffies", "refined-jiffies"})


@Check(
    QUARANTINE,
    title="the node is not in quarantine",
    why="A node that made a run fail will often do so again: it fell silent, its GPU had an ECC"
    " error, or its disk failed. This machine remembers it for a week, and what you put into"
    " quarantine yourself.",
    fix="Repair the node, then take it out with `quarantine remove NODE`."
    " `launch --exclude-quarantined` leaves it out.",
    source="docs/how-to/quarantine.md",
    blocks=False,
    applies=lambda node, _cluster: node.quarantine is not None,
)
def quarantine(node: NodeFacts) -> Iterator[Finding]:
    """Judge what this machine remembers; of a machine that was replaced that is only a note."""
    for known in node.quarantine or ():
        run = f"run {known.run} failed" if known.run else "put there"
        found = f"{run} {ago(known.age_s)}; {left(known.left_s)} left"
        take_out = f"clusterctl quarantine remove {shlex.quote(known.node)}"
        if known.replaced:
            yield skip(
                node.node,
                f"was in quarantine ({known.reason}), but has another host key now: it counts as"
                f" replaced; {take_out}",
                found=found,
            )
            continue
        yield warn(
            node.node,
            f"in quarantine: {known.reason}",
            wanted="a node that made no run fail of late",
            found=found,
            remedy=f"{take_out} if it is repaired; to launch without it: --exclude-quarantined",
        )


@Check(
    "node.memory",
    title="the node's memory is free and complete",
    why="Without free memory, loading a model or data ends ranks or makes them slow. A machine with"
    " less memory than its peers has often lost a module.",
    fix="End what uses the memory. If the machine has less than the others, look for a failed"
    " DIMM.",
    source="https://man7.org/linux/man-pages/man5/proc_meminfo.5.html",
    blocks=False,
    applies=lambda node, _cluster: (
        None not in {node.memory_bytes, node.memory_use.available_bytes}
        and node.machine_state.online_cpus is not None
    ),
)
def memory(facts: Facts) -> Iterator[Finding]:
    """Judge what is available, what is swapped out, and the total against equal machines."""
    equal: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for node in facts.values():
        equal[_model(node)] += [node.memory_bytes] if node.memory_bytes else []
    usual_memory = {model: _usual_memory(sizes) for model, sizes in equal.items() if model}
    for node in facts.values():
        total = node.memory_bytes
        use = node.memory_use
        if not total:
            continue
        if use.available_bytes is not None and use.available_bytes < AVAILABLE * total:
            yield warn(
                node.node,
                "little memory is available",
                wanted=f"{AVAILABLE:.0%} or more of {total / GIB:.1f} GiB",
                found=f"{use.available_bytes / GIB:.1f} GiB",
                remedy="ps -eo pid,user,rss,args --sort=-rss | head (on the node)",
            )
        if use.swap_bytes is not None and use.swap_bytes > SWAPPED * total:
            yield warn(
                node.node,
                "a large part of the memory is swapped out",
                wanted="little swap in use: what is on disk is slow",
                found=f"{use.swap_bytes / GIB:.1f} GiB of swap in use",
                remedy="end what uses the memory, then: sudo swapoff -a && sudo swapon -a",
            )
        usual = usual_memory.get(_model(node))
        if usual is not None and total < SMALLER * usual:
            yield warn(
                node.node,
                "it has less memory than equal machines",
                wanted=f"{usual / GIB:.1f} GiB, as on most nodes with as many CPUs and GPUs",
                found=f"{total / GIB:.1f} GiB",
                remedy="sudo dmidecode -t memory (on the node) names the modules; one may have"
                " failed",
            )


def _usual_memory(equal: list[int]) -> int | None:
    """Return the memory that at least two of three equal machines have."""
    if not equal:
        return None
    usual = sorted(equal)[len(equal) // 2]  # of two that differ, either may have lost some
    alike = [m for m in equal if SMALLER * usual <= m <= usual / SMALLER]
    return usual if 3 * len(alike) >= 2 * len(equal) else None


def _model(node: NodeFacts) -> tuple[object, ...]:
    """Return what equal machines have in common; empty if that is not known."""
    cpus = node.machine_state.online_cpus
    return () if cpus is None else (node.arch, cpus, tuple(gpu.name for gpu in node.devices))


@Check(
    "node.oom",
    title="the kernel has not killed processes for lack of memory",
    why="Such a kill ends a rank without a message of its own. It happens again if nothing"
    " changes.",
    fix="Use fewer data loader workers or smaller batches, and look in the kernel log for what"
    " was killed.",
    source="https://docs.kernel.org/admin-guide/mm/concepts.html",
    blocks=False,
    applies=lambda node, _cluster: (
        None not in {node.memory_use.oom_kills, node.machine_state.uptime_s}
    ),
)
def oom(node: NodeFacts) -> Iterator[Finding]:
    """Judge the count since boot, if that is not long ago: it has no dates."""
    kills = node.memory_use.oom_kills
    uptime = node.machine_state.uptime_s
    if kills and uptime is not None and uptime <= OOM_DAYS * _DAY:
        yield warn(
            node.node,
            "the kernel has killed processes for lack of memory",
            wanted="none since the node started",
            found=f"{kills} in {uptime / _DAY:.1f} days",
            remedy="sudo dmesg -T | grep -i 'out of memory' (on the node) names them",
        )


@Check(
    "node.kernel-settings",
    title="settings of the kernel that change the speed are as on the other nodes",
    why="The slowest node sets the pace of all: each step waits for it.",
    fix="Set the same governor, huge pages and NUMA balancing on all nodes, and make that"
    " permanent.",
    source="https://docs.kernel.org/admin-guide/pm/cpufreq.html",
    blocks=False,
    applies=lambda node, _cluster: bool(node.machine_state.kernel_settings),
)
def kernel_settings(facts: Facts) -> Iterator[Finding]:
    """Name a slow clock on any node; of the others, what differs from most nodes."""
    usual_settings = _usual_settings(facts)
    for node in facts.values():
        for name, value in node.machine_state.kernel_settings:
            usual = usual_settings[name]
            if name == "clock source" and value in _SLOW_CLOCKS:
                wanted = usual if usual and usual not in _SLOW_CLOCKS else "tsc"
            elif usual is None or value == usual or not _costs(name, value, usual):
                continue
            else:
                wanted = f"{usual}, as on most nodes"
            yield warn(
                node.node,
                f"its {name} setting makes it slower",
                wanted=wanted,
                found=value,
                remedy=_REMEDY[name](usual or ""),
            )


_REMEDY: dict[str, Callable[[str], str]] = {
    "clock source": lambda _: (
        "sudo dmesg | grep -i clocksource (on the node) tells why the kernel left the faster one"
    ),
    "CPU governor": lambda usual: f"sudo cpupower frequency-set -g {shlex.quote(usual)}",
    "transparent huge pages": lambda usual: (
        f"echo {shlex.quote(usual)} | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"
    ),
    "NUMA balancing": lambda usual: f"sudo sysctl kernel.numa_balancing={shlex.quote(usual)}",
}


def _costs(name: str, value: str, usual: str) -> bool:
    """Tell whether a setting that differs is slower than the usual one."""
    if name == "CPU governor":
        return usual == "performance"
    if name == "NUMA balancing":
        return usual == "0"
    return name == "transparent huge pages" and value == "never"


def _usual_settings(facts: Facts) -> dict[str, str | None]:
    """Return for each setting the value that most nodes have."""
    values: dict[str, Counter[str]] = defaultdict(Counter)
    for node in facts.values():
        for name, value in node.machine_state.kernel_settings:
            values[name][value] += 1
    most = {name: (counts, *counts.most_common(1)[0]) for name, counts in values.items()}
    return {
        name: value if 2 * count > counts.total() else None
        for name, (counts, value, count) in most.items()
    }


@Check(
    "node.overcommit",
    title="the kernel lets programs reserve more memory than they use",
    why="With vm.overcommit_memory=2, a rank fails with `Cannot allocate memory` while memory is"
    " free: CUDA reserves far more than it uses, and each data loader counts like a copy of its"
    " rank.",
    fix="Set vm.overcommit_memory to 0, the kernel's default, in /etc/sysctl.d.",
    source="https://docs.kernel.org/mm/overcommit-accounting.html",
    blocks=False,
    applies=lambda node, _cluster: node.machine_state.overcommit is not None,
)
def overcommit(node: NodeFacts) -> Iterator[Finding]:
    """Judge the kernel's mode: 0 and 1 let programs reserve more, 2 does not."""
    if node.machine_state.overcommit == _STRICT:
        yield warn(
            node.node,
            "the kernel refuses programs memory that they only reserve",
            wanted="vm.overcommit_memory=0 or 1",
            found="vm.overcommit_memory=2",
            remedy="sudo sysctl -w vm.overcommit_memory=0 (on the node)",
        )


@Check(
    "node.reboot",
    title="no update waits for a reboot",
    why="The files of a new kernel, driver or library are there, but the old ones still run. A"
    " reload of the GPU driver may fail, and the node may restart during a run.",
    source="https://www.debian.org/doc/debian-policy/ch-opersys.html",
    fix="Restart the node now instead of in the middle of a run.",
    blocks=False,
    applies=lambda node, _cluster: node.machine_state.reboot_required is not None,
)
def reboot(node: NodeFacts) -> Iterator[Finding]:
    """Judge by the file that the package manager leaves."""
    if node.machine_state.reboot_required:
        yield warn(
            node.node,
            "installed updates wait for a reboot",
            wanted="a node that runs what is installed",
            found="/run/reboot-required is there",
            remedy="cat /run/reboot-required.pkgs (on the node) names them; reboot it between"
            " runs: sudo reboot",
        )


@Check(
    "node.updates",
    title="the node does not replace its GPU driver by itself",
    why="Unattended upgrades replace the driver's libraries under the module that is loaded. Jobs"
    " that run continue, but the next start fails with `Driver/library version mismatch`, and the"
    " nodes end up with different drivers.",
    fix="Hold the driver's packages with apt-mark, and update them between runs on all nodes.",
    source="https://wiki.debian.org/UnattendedUpgrades",
    blocks=False,
    applies=lambda node, _cluster: node.updates is not None,
)
def updates(node: NodeFacts) -> Iterator[Finding]:
    """Name the packages of the driver that are not held and come from where updates come from."""
    known = node.updates or Updates()
    everywhere = any("nvidia" in origin.lower() for origin in known.origins)
    found = [(n, v) for n, v in known.packages if everywhere or _DISTRIBUTION.search(v)]
    if found:
        yield warn(
            node.node,
            "unattended upgrades may replace the GPU driver at any time",
            wanted="held packages, or nvidia in Unattended-Upgrade::Package-Blacklist",
            found=", ".join(f"{name} {version}" for name, version in found),
            remedy=f"sudo apt-mark hold {shlex.join(name for name, _ in found)} (on the node)",
        )
