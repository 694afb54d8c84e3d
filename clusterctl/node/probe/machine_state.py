"""The state of this machine beyond its small files: limits, processes, login, clock.

All of it is the kernel's own memory, read in a few milliseconds: no program is started.
"""

from __future__ import annotations

import os
import time

from clusterctl.own_files import NotPrivateError, require_private

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Optional, Set

CGROUP = "/sys/fs/cgroup"
CGROUP_FILES = (
    "cpu.max", "memory.max", "memory.high", "pids.max", "pids.current",
    "cpu.cfs_quota_us", "cpu.cfs_period_us", "memory.limit_in_bytes",
)  # fmt: skip
"""Of version 2 and version 1."""
STATE = "/var/tmp/clusterctl-"  # noqa: S108  (owner and mode are what we check)
"""The folder of a user's runs, with the uid, where the inventory names no other."""
STUCK_AGE = 6.0
"""Seconds that a process must have lived: the children of a check live 5."""
STUCK_SECONDS = 0.2
"""How long it must then wait without once being scheduled."""
MOST = 20
"""Processes of a kind to tell of."""
_TICKS = os.sysconf("SC_CLK_TCK")
_KTHREADD = 2
_ADOPTERS = (b"systemd", b"init")
_RANKS = (
    (b"RANK", b"WORLD_SIZE"),
    (b"OMPI_COMM_WORLD_RANK", b"OMPI_COMM_WORLD_SIZE"),
    (b"PMI_RANK", b"PMI_SIZE"),
)
"""What launchers set for a rank; not Slurm's, which every program of an interactive job has."""
_RAY = (b"raylet", b"gcs_server")
_LAUNCHERS = (b"torch", b"accelerate", b"deepspeed", b"mpirun", b"horovod", b"ray")


class OwnProcess:
    """One of this user's processes."""

    def __init__(self, pid: int, line: bytes) -> None:
        """Parse /proc/PID/stat; the name, in brackets, may hold anything."""
        name, _, rest = line.rpartition(b")")
        fields = rest.split()
        self.pid = pid
        self.name = name.partition(b"(")[2]
        self.state = fields[0]
        self.parent = int(fields[1])
        self.start = int(fields[19]) / _TICKS
        """Seconds after boot."""


def describe_machine() -> Dict[str, Any]:
    """Return what `facts.machine_state` parses; what cannot be read is left out."""
    found: Dict[str, Any] = {
        "systemd": os.path.isdir("/run/systemd/system"),
        "reboot": any(map(os.path.exists, ("/run/reboot-required", "/var/run/reboot-required"))),
        "tmp": os.environ.get("TMPDIR") or "/tmp",  # noqa: S108  (only named)
        "home": os.path.expanduser("~"),
        "gid": os.getgid(),
    }
    for key, ask in (
        ("cgroups", read_cgroups),
        ("session", lambda: b"/session-" in _read("/proc/self/cgroup")),
        ("state_problem", _state_problem),
        ("unsynchronized", _unsynchronized),
        ("login", _login_seconds),
        ("processes", scan_processes),
    ):
        try:
            found[key] = ask()
        except (OSError, ValueError, IndexError, ImportError, AttributeError):
            continue
    return found


def read_cgroups() -> List[Dict[str, str]]:
    """Return the limits of this process's cgroups and of those around them.

    Raises:
        FileNotFoundError: the kernel's cgroups are not mounted, so there may be any limits.
    """
    found = []
    mounted = False
    for line in _read("/proc/self/cgroup").decode().splitlines():
        _, controllers, path = line.split(":", 2)
        # It begins with "/.." where the namespace was made in another group.
        path = os.path.normpath(path)
        if controllers and not {"cpu", "memory", "pids"} & set(controllers.split(",")):
            continue
        root = CGROUP + "/" + controllers if controllers else CGROUP
        mounted = mounted or os.path.exists(root + "/cgroup.procs")
        while True:
            limits = {}
            for name in CGROUP_FILES:
                try:
                    limits[name] = _read(root + path.rstrip("/") + "/" + name).decode().strip()
                except OSError:
                    continue
            found.append(limits)
            if path in ("", "/"):
                break
            path = os.path.dirname(path)
    if not mounted:
        raise FileNotFoundError(CGROUP)
    return found


def scan_processes(proc: str = "/proc") -> Dict[str, Any]:
    """Return ranks whose launcher has exited, and processes that wait in the kernel forever.

    Only this user's, since of others neither the environment nor the place can be read.
    """
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    own = {seen.pid: seen for seen in _own_processes(proc)}
    adopters = {pid for pid, seen in own.items() if seen.name in _ADOPTERS}
    entry = _read_of(proc, 1, "cmdline")
    if not any(word in entry for word in _LAUNCHERS):  # else a container whose pid 1 launches
        adopters.add(1)
    ranks: List[Dict[str, Any]] = []
    stuck: List[OwnProcess] = []
    for seen in own.values():
        if seen.pid == 1 or seen.state in b"ZX":
            continue
        if seen.state == b"D":
            # Its environment must not be read: that could hang, too.
            if now - seen.start > STUCK_AGE and seen.parent != os.getppid():
                stuck.append(seen)
        elif seen.parent in adopters and len(ranks) < MOST:
            rank = _rank(proc, seen)
            if rank is not None:
                ranks.append({**rank, "age_s": now - seen.start})
    waiting = [(seen, _switches(proc, seen.pid)) for seen in stuck[:MOST]]
    if waiting:
        time.sleep(STUCK_SECONDS)
    still = [seen for seen, before in waiting if before and _switches(proc, seen.pid) == before]
    return {
        "ranks": ranks,
        "stuck": [
            {
                "pid": seen.pid,
                "command": seen.name.decode("utf-8", "replace"),
                "waits_in": _read_of(proc, seen.pid, "wchan").decode("utf-8", "replace"),
                "age_s": now - seen.start,
            }
            for seen in still
        ],
    }


def _own_processes(proc: str) -> Iterator[OwnProcess]:
    """Yield this user's processes, without the kernel's threads, of which each CPU has several."""
    uid = os.getuid()
    # In a container the number is that of any process, and the kernel's threads are not seen.
    has_threads = _read_of(proc, _KTHREADD, "comm") == b"kthreadd\n"
    threads = _kernel_threads(proc) if has_threads else set()
    for name in {name for name in os.listdir(proc) if name.isdigit()} - threads:
        try:
            if os.stat(proc + "/" + name).st_uid != uid:
                continue
            line = _read(proc + "/" + name + "/stat")
        except OSError:
            continue  # it has exited
        seen = OwnProcess(int(name), line)
        if not (has_threads and _KTHREADD in (seen.pid, seen.parent)):
            yield seen


def _kernel_threads(proc: str) -> Set[str]:
    """Return the names of kernel threads as the kernel lists them; empty if it does not."""
    try:
        descriptor = os.open("%s/%d/task/%d/children" % (proc, _KTHREADD, _KTHREADD), os.O_RDONLY)
    except OSError:
        return set()  # each is recognized by its parent
    parts: List[bytes] = []
    try:
        while not parts or parts[-1]:
            parts.append(os.read(descriptor, 1 << 16))
    finally:
        os.close(descriptor)
    return set(b"".join(parts).decode().split())


def _rank(proc: str, seen: OwnProcess) -> Optional[Dict[str, Any]]:
    """Return a rank, or a daemon of Ray, that holds no GPU; None for another process."""
    variables = dict(
        entry.split(b"=", 1)
        for entry in _read_of(proc, seen.pid, "environ").split(b"\0")
        if b"=" in entry
    )
    rank = next((variables[r] for r, size in _RANKS if r in variables and size in variables), None)
    if seen.name in _RAY:
        rank = b""
    if rank is None or _has_gpu(proc, seen.pid):
        return None
    command = b""
    if seen.name not in _RAY:  # theirs is a page of settings
        command = _read_of(proc, seen.pid, "cmdline")[:200].rstrip(b"\0").replace(b"\0", b" ")
    texts = {
        "command": command or seen.name,
        "rank": rank,
        "run": variables.get(b"CLUSTERCTL_RUN_ID", b""),
    }
    return {"pid": seen.pid, **{k: v.decode("utf-8", "replace") for k, v in texts.items()}}


def _has_gpu(proc: str, pid: int) -> bool:
    folder = "%s/%d/fd/" % (proc, pid)
    for name in os.listdir(folder):
        try:
            if os.readlink(folder + name).startswith(("/dev/nvidia", "/dev/kfd")):
                return True
        except OSError:
            continue
    return False


def _switches(proc: str, pid: int) -> Optional[List[bytes]]:
    """Return how often a process was scheduled, if it waits in the kernel."""
    lines = _read_of(proc, pid, "status").splitlines()
    if not any(line.startswith(b"State:\tD") for line in lines):
        return None
    return [line for line in lines if b"ctxt_switches" in line]


def _login_seconds() -> float:
    """Return the seconds from the start of the login shell to the agent's: its start files."""
    from clusterctl.node.agent.main import BEGAN  # noqa: PLC0415  (the agent has it)

    shell = os.getsid(os.getppid())  # a child of the agent asks
    started = OwnProcess(shell, _read("/proc/%d/stat" % shell)).start
    return BEGAN - started  # it may have answered for a while since


def _state_problem() -> str:
    """Return why runs would refuse the usual state folder; empty if it is ours or not there."""
    path = STATE + str(os.getuid())
    try:
        require_private(path)
    except FileNotFoundError:
        return ""
    except NotPrivateError as error:
        return "%s is %s" % (path, error.found)
    return ""


def _unsynchronized() -> Optional[bool]:
    """Return whether no service disciplines the kernel's clock; None if unknown.

    By `_ctypes` itself, since `ctypes` takes three times as long to import.
    """
    import _ctypes  # noqa: PLC0415  (some builds of Python lack it)

    byte = type("Byte", (_ctypes._SimpleCData,), {"_type_": "c"})  # noqa: SLF001
    number = type("Int", (_ctypes._SimpleCData,), {"_type_": "i"})  # noqa: SLF001
    buffer = type("Buffer", (_ctypes.Array,), {"_type_": byte, "_length_": 256})()
    flags = {"_flags_": _ctypes.FUNCFLAG_CDECL, "_restype_": number}
    function = type("Function", (_ctypes.CFuncPtr,), flags)
    # As `CDLL(None)` does.
    ourselves = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]
    adjtimex = function(_ctypes.dlsym(ourselves, "adjtimex"))
    state = adjtimex(_ctypes.byref(buffer))  # a zeroed request changes nothing
    return None if state < 0 else state == 5  # noqa: PLR2004  (TIME_ERROR)


def _read(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, 1 << 16)
    finally:
        os.close(descriptor)


def _read_of(proc: str, pid: int, name: str) -> bytes:
    try:
        return _read("%s/%d/%s" % (proc, pid, name))
    except OSError:
        return b""
