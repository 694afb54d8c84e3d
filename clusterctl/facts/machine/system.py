"""What a machine is: its names, its system, its user, its CPUs and memory."""

from __future__ import annotations

import re
import shlex

from clusterctl.facts.answers import Answers
from clusterctl.facts.fact import Fact, Question, Unreadable, of_value, of_word

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
