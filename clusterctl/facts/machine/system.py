"""What a machine is: its names, system, user, CPUs, memory, and limits."""

import re
import shlex

from clusterctl.facts.answers import Answer, Answers
from clusterctl.facts.fact import Fact, Question, Unreadable, of_value, of_word
from clusterctl.values import dataclass

NETNS = "/proc/self/ns/net"
SHM = "/dev/shm"  # noqa: S108  (read, not written to)

of_value("hostname", str, "names")
of_word("boot_id", "/proc/sys/kernel/random/boot_id")
of_word("kernel", "/proc/sys/kernel/osrelease")
of_value("arch", str, "self")
of_value("uid", int, "self")
of_value("user", str, "self")
of_value("cpus", int, "self")
of_value("shm_bytes", int, "path:" + SHM, "total", Question(local_paths=(SHM,)))


@Fact("hostname_addresses")
def parse_hostname_addresses(answers: Answers) -> tuple[str, ...] | None:
    """Return the addresses that the machine's own name has there."""
    names = answers.object("names")
    if "addresses" not in names:
        raise Unreadable(str(names.get("error", "")) or answers.why("names"))
    listed = names["addresses"]
    return tuple(map(str, listed)) if isinstance(listed, list) else None


@Fact("netns", Question(links=(NETNS,)))
def parse_netns(answers: Answers) -> str | None:
    """Return the network namespace, which differs between containers of one machine."""
    link = answers.by_key.get("link:" + NETNS)
    return link.text if link is not None and link.good else None


@Fact("os", file="/etc/os-release")
def parse_os(text: str) -> str | None:
    """Return the name of the distribution from /etc/os-release."""
    found = re.search(r"^PRETTY_NAME=(.*)$", text, re.MULTILINE)
    if not found:
        return None
    try:
        return " ".join(shlex.split(found[1])) or None
    except ValueError:
        return found[1].strip() or None


@Fact("memory_bytes", file="/proc/meminfo")
def parse_memory(text: str) -> int | None:
    """Return the machine's memory in bytes from /proc/meminfo."""
    found = re.search(r"^MemTotal:\s+(\d{1,20}) kB", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else None


LOGIND_FILES = ("/etc/systemd/logind.conf", "/usr/lib/systemd/logind.conf")
"""The administrator's, else the vendor's."""
LOGIND_FOLDERS = (
    "/usr/lib/systemd/logind.conf.d/",
    "/run/systemd/logind.conf.d/",
    "/etc/systemd/logind.conf.d/",
)
"""If files have the same name, the one in the later folder counts."""
LOGIND = Question(files=LOGIND_FILES, globs=tuple(folder + "*.conf" for folder in LOGIND_FOLDERS))

of_value("linger", bool, "self")


@Fact("kill_user_processes", LOGIND)
def parse_kill_user_processes(answers: Answers) -> bool | None:
    """Return whether logind kills processes when a session ends; None if it has no settings.

    systemd's default is yes; every known distribution is built with no.
    """
    return parse_logind(answers, "KillUserProcesses", default=False)


def parse_logind(answers: Answers, name: str, *, default: bool) -> bool | None:
    """Return a yes or no of logind's settings; None if it has no settings.

    This follows systemd: one main file, the administrator's before the vendor's. The files of the
    folders override it, in the order of their names.
    """
    main = next((text for path in LOGIND_FILES if (text := answers.text(path)) is not None), None)
    parts: dict[str, Answer] = {}
    for folder in LOGIND_FOLDERS:
        parts.update(answers.below(folder))
    if main is None and not parts:
        return None
    # The main file shows the distribution's own default as a comment: RHEL's of RemoveIPC is no.
    decided = default and not re.search(rf"^#\s*{name}\s*=\s*no\b", main or "", re.MULTILINE)
    for text in (main or "", *(parts[name].text for name in sorted(parts))):
        for found in re.finditer(rf"^[ \t]*{name}\s*=\s*(\w+)", text, re.MULTILINE):
            decided = found[1].lower() in {"yes", "y", "true", "t", "on", "1"}
    return decided


UNLIMITED = -1
"""A resource limit that is not set."""
_SOFT = r"\s+(?:\d{1,20}|unlimited)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Resource limits of the non-interactive session; UNLIMITED if not set."""

    memlock: int | None = None
    nofile_hard: int | None = None
    """A run raises the soft limits on files and processes to the hard ones."""
    processes_hard: int | None = None
    cpu_hard: int | None = None
    """Seconds of CPU time of a process."""
    address_space_hard: int | None = None
    stack: int | None = None


@Fact("limits", file="/proc/self/limits")
def parse_limits(text: str) -> Limits:
    """Read the limits of /proc/self/limits."""
    return Limits(
        memlock=_limit(text, "Max locked memory"),
        nofile_hard=_limit(text, "Max open files" + _SOFT),
        processes_hard=_limit(text, "Max processes" + _SOFT),
        cpu_hard=_limit(text, "Max cpu time" + _SOFT),
        address_space_hard=_limit(text, "Max address space" + _SOFT),
        stack=_limit(text, "Max stack size"),
    )


def _limit(text: str, name: str) -> int | None:
    found = re.search(rf"^{name}\s+(\d{{1,20}}|unlimited)\s", text, re.MULTILINE)
    if not found:
        return None
    return UNLIMITED if found[1] == "unlimited" else int(found[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class SshStatus:
    """How the node answered SSH and ping."""

    state: str = "ok"
    """`transport.interface.State`."""
    phase: str = ""
    words: str = ""
    hint: str = ""
    seconds: float | None = None
    connect_s: float | None = None
    """Until the SSH server accepted the login; None if the connection was there before."""
    ping: str = ""
    """`ok`, `silent`, or empty if it was not tried."""
    key: str | None = None
    """Why the inventory's key cannot be read; empty: it can; None: the inventory has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """The node's clock minus the controller's, from the shortest of several round trips."""

    offset_s: float
    error_s: float
    """Half of that round trip: the largest error of the offset."""
