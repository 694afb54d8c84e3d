"""The state of a machine: limits, memory, settings of the kernel, login, leftover processes."""

from __future__ import annotations

from clusterctl.values import dataclass


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
    """Settings that change the speed, by the names of `request.KERNEL_SETTINGS`."""
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
