"""The state of a machine: limits, memory, settings of the kernel, login, leftover processes.

It is in small files, and in what `node/probe/machine_state.py` answers.
"""

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from clusterctl.facts.answers import Answers
from clusterctl.facts.fact import Fact, Question, seconds, texts, typed
from clusterctl.facts.machine.system import LOGIND, UNLIMITED, parse_logind
from clusterctl.facts.storage.storage import MOUNTS, Mount, mount_of, read_mounts
from clusterctl.values import dataclass

KERNEL_SETTINGS = (
    ("clock source", "/sys/devices/system/clocksource/clocksource0/current_clocksource"),
    ("CPU governor", "/sys/devices/system/cpu/cpufreq/policy0/scaling_governor"),
    ("transparent huge pages", "/sys/kernel/mm/transparent_hugepage/enabled"),
    ("NUMA balancing", "/proc/sys/kernel/numa_balancing"),
)
"""Settings that change the speed of a node; of the CPUs the first stands for all."""
OVERCOMMIT = "/proc/sys/vm/overcommit_memory"
MACHINE = Question(
    files=(
        "/etc/machine-id", "/sys/devices/system/cpu/online", "/proc/uptime", "/proc/meminfo",
        "/proc/vmstat", OVERCOMMIT, MOUNTS, *(path for _, path in KERNEL_SETTINGS), *LOGIND.files,
    ),
    globs=LOGIND.globs,
)  # fmt: skip
_RANGE = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")
_HUGE = 1 << 60
"""Version 1 of cgroups writes about 2^63 for no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupLimits:
    """The smallest limits of the session's cgroups; UNLIMITED if there is none."""

    cpus: float | None = None
    memory_bytes: int | None = None
    processes_left: int | None = None
    """How many more may be started: `pids.max` less `pids.current`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """What the kernel tells of its memory."""

    available_bytes: int | None = None
    swap_bytes: int | None = None
    """Swap in use."""
    oom_kills: int | None = None
    """Since boot."""
    cma_bytes: int | None = None
    """What the kernel reserves for the memory of devices (CMA); None: it has no such reserve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftoverProcess:
    """A process of this user that an earlier job left behind."""

    pid: int
    command: str
    age_s: float | None = None
    rank: str = ""
    run: str = ""
    """The run of clusterctl that started it; empty: another launcher."""
    waits_in: str = ""
    """Of a process stuck in the kernel: the kernel's function."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftovers:
    """Processes of earlier jobs."""

    ranks: tuple[LeftoverProcess, ...] = ()
    """Their launcher has exited, and they hold no GPU."""
    stuck: tuple[LeftoverProcess, ...] = ()
    """They wait in the kernel, and not even SIGKILL ends them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineState:
    """One machine's state."""

    machine_id: str | None = None
    """Of a machine that runs systemd; None: a container, which may have its image's."""
    online_cpus: int | None = None
    uptime_s: float | None = None
    gid: int | None = None
    cgroup: CgroupLimits | None = None
    memory: MemoryUse | None = None
    kernel_settings: tuple[tuple[str, str], ...] = ()
    """Settings that change the speed, by the names of `KERNEL_SETTINGS`."""
    overcommit: int | None = None
    """`vm.overcommit_memory`; 2: the kernel promises programs no more memory than it has."""
    clock_synchronized: bool | None = None
    """A time daemon disciplines the kernel's clock."""
    login_s: float | None = None
    """From the start of the login shell to the first answer."""
    reboot_required: bool | None = None
    noexec: tuple[str, ...] | None = None
    """TMPDIR and home, if no program can be started from there."""
    state_problem: str | None = None
    """Why runs would refuse their folder; empty: they would not."""
    remove_ipc: bool | None = None
    """logind would remove the shared memory of a run, since SSH opens no session of logind."""
    leftovers: Leftovers | None = None


@Fact("machine", MACHINE)
def parse_machine_state(answers: Answers) -> MachineState | None:
    """Return the state of the machine; None if the node told nothing of it."""
    seen = answers.json("machine")
    if not isinstance(seen, dict):
        return None
    cgroups = seen.get("cgroups")
    unsynchronized = seen.get("unsynchronized")
    return MachineState(
        machine_id=answers.word("/etc/machine-id") if seen.get("systemd") is True else None,
        online_cpus=parse_cpu_list(answers.word("/sys/devices/system/cpu/online") or ""),
        uptime_s=parse_uptime(answers.text("/proc/uptime") or ""),
        gid=_count(seen.get("gid")),
        cgroup=parse_cgroups(cgroups) if isinstance(cgroups, list) else None,
        memory=parse_memory_use(
            answers.text("/proc/meminfo") or "", answers.text("/proc/vmstat") or ""
        ),
        kernel_settings=tuple(
            (name, chosen(text))
            for name, path in KERNEL_SETTINGS
            if (text := answers.word(path)) is not None
        ),
        overcommit=answers.number(OVERCOMMIT),
        clock_synchronized=not unsynchronized if isinstance(unsynchronized, bool) else None,
        login_s=seconds(seen.get("login")),
        reboot_required=seen.get("reboot") is True if "reboot" in seen else None,
        noexec=_noexec((seen.get("tmp"), seen.get("home")), answers.once(read_mounts)),
        state_problem=_text(seen["state_problem"]) if "state_problem" in seen else None,
        remove_ipc=parse_logind(answers, "RemoveIPC", default=True)
        if seen.get("systemd") is True and seen.get("session") is False
        else False
        if "session" in seen
        else None,
        leftovers=_leftovers(seen.get("processes")),
    )


def parse_cpu_list(text: str) -> int | None:
    """Return how many CPUs a list such as `0-3,8` names; None if it is not one."""
    total = 0
    for part in text.split(",") if text else ():
        found = _RANGE.fullmatch(part)
        if not found:
            return None
        total += int(found[2] or found[1]) - int(found[1]) + 1
    return total if total > 0 else None


def parse_uptime(text: str) -> float | None:
    """Return the seconds since boot from /proc/uptime."""
    try:
        return seconds(float(text.split(maxsplit=1)[0]))
    except (ValueError, IndexError):
        return None


def parse_cgroups(groups: Iterable[object]) -> CgroupLimits:
    """Return the smallest limits of these cgroups, of version 1 or 2."""
    cpus: list[float] = []
    memory: list[int] = []
    left: list[int] = []
    for group in groups:
        if not isinstance(group, dict):
            continue
        quota, _, period = _text(group.get("cpu.max")).partition(" ")
        quota = quota or _text(group.get("cpu.cfs_quota_us"))
        period = period or _text(group.get("cpu.cfs_period_us"))
        if (microseconds := _number(quota)) and (every := _number(period)):
            cpus.append(microseconds / every)
        for name in ("memory.max", "memory.high", "memory.limit_in_bytes"):
            limit = _number(_text(group.get(name)))
            if limit is not None and limit < _HUGE:
                memory.append(limit)
        most = _number(_text(group.get("pids.max")))
        if most is not None:
            left.append(max(most - (_number(_text(group.get("pids.current"))) or 0), 0))
    return CgroupLimits(
        cpus=min(cpus, default=float(UNLIMITED)),
        memory_bytes=min(memory, default=UNLIMITED),
        processes_left=min(left, default=UNLIMITED),
    )


def parse_memory_use(meminfo: str, vmstat: str) -> MemoryUse:
    """Return the use of memory from /proc/meminfo and /proc/vmstat."""
    total, free = _kib(meminfo, "SwapTotal"), _kib(meminfo, "SwapFree")
    kills = re.search(r"^oom_kill (\d{1,18})$", vmstat, re.MULTILINE)
    return MemoryUse(
        available_bytes=_kib(meminfo, "MemAvailable"),
        swap_bytes=max(total - free, 0) if total is not None and free is not None else None,
        oom_kills=int(kills[1]) if kills else None,
        cma_bytes=_kib(meminfo, "CmaTotal"),
    )


def chosen(text: str) -> str:
    """Return the setting of a file such as `always [madvise] never`, or the whole line."""
    found = re.search(r"\[(\w+)\]", text)
    return found[1] if found else text


def _kib(text: str, name: str) -> int | None:
    found = re.search(rf"^{name}:\s+(\d{{1,18}}) kB", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def _noexec(folders: Iterable[object], mounts: tuple[Mount, ...]) -> tuple[str, ...] | None:
    if not mounts:
        return None
    known = [folder for folder in folders if isinstance(folder, str) and folder.startswith("/")]
    found = ((folder, mount_of(mounts, folder)) for folder in dict.fromkeys(known))
    return tuple(folder for folder, mount in found if mount and "noexec" in mount.options)


def _leftovers(seen: object) -> Leftovers | None:
    if not isinstance(seen, dict):
        return None
    return Leftovers(ranks=_processes(seen.get("ranks")), stuck=_processes(seen.get("stuck")))


def _processes(listed: object) -> tuple[LeftoverProcess, ...]:
    each: list[Mapping[str, Any]] = listed if isinstance(listed, list) else []
    return tuple(
        LeftoverProcess(
            pid=pid,
            command=_text(one.get("command")),
            age_s=seconds(one.get("age_s")),
            rank=_text(one.get("rank")),
            run=_text(one.get("run")),
            waits_in=_text(one.get("waits_in")),
        )
        for one in each
        if isinstance(one, dict) and (pid := _count(one.get("pid")))
    )


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch(r"\d{1,20}", text) else None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _count(value: object) -> int | None:
    count = typed(int, value)
    return count if count is not None and count >= 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLock:
    """The run that holds the node."""

    run: str = ""
    """Empty: no process."""
    user: str = ""
    since: str = ""
    about: str = ""
    """Its name, command and origin, by its supervisor."""
    holds: tuple[str, ...] = ()
    """UUIDs of its GPUs, and `port-N` if its ranks meet here; empty: it holds the whole machine."""


@Fact("lock")
def parse_lock(answers: Answers) -> RunLock | None:
    """Return the run that holds the whole machine; each node is asked for it by `request.lock`."""
    lock = answers.object("lock")
    if not lock:
        return None
    return RunLock() if lock.get("holder") is None else _held_by(lock["holder"])


@Fact("sharing")
def parse_sharing(answers: Answers) -> tuple[RunLock, ...]:
    """Return the runs that hold some of its GPUs each."""
    holders = answers.object("lock").get("sharing")
    return tuple(map(_held_by, holders)) if isinstance(holders, list) else ()


def _held_by(told: object) -> RunLock:
    who: Mapping[str, Any] = told if isinstance(told, dict) else {}
    began = _moment(who.get("since"))
    return RunLock(
        run=str(who.get("run") or f"unknown, of pid {who.get('pid', '?')}"),
        user=str(who.get("user") or who.get("uid", "")),
        since=f"{began:%Y-%m-%d %H:%M} UTC" if began else "",
        about=str(who.get("about") or ""),
        holds=texts(who.get("holds")),
    )


def _moment(since: object) -> datetime | None:
    """Return the time in a lock file, which any user may write: it may be any value."""
    try:
        return datetime.fromtimestamp(since, UTC) if isinstance(since, (int, float)) else None
    except (ValueError, OverflowError, OSError):
        return None
