"""Parses small files of /proc and /etc."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address

from clusterctl.facts.answers import Answer, Answers
from clusterctl.facts.machine.machine import UNLIMITED, Limits
from clusterctl.facts.network.network import Listener
from clusterctl.facts.request import LOGIND_FOLDERS
from clusterctl.facts.software.software import Setting

_LISTENING = "0A"
_PORTS = re.compile(r"\s*(\d{1,5})\s+(\d{1,5})\s*")


def parse_os(text: str) -> str | None:
    """Return the name of the distribution from /etc/os-release."""
    found = re.search(r"^PRETTY_NAME=(.*)$", text, re.MULTILINE)
    if not found:
        return None
    try:
        return " ".join(shlex.split(found[1])) or None
    except ValueError:
        return found[1].strip() or None


def parse_memory(text: str) -> int | None:
    """Return the machine's memory in bytes from /proc/meminfo."""
    found = re.search(r"^MemTotal:\s+(\d{1,20}) kB", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else None


_SOFT = r"\s+(?:\d{1,20}|unlimited)"


def parse_limits(text: str) -> Limits:
    """Read the limits of /proc/self/limits."""
    return Limits(
        memlock=_limit(text, "Max locked memory"),
        nofile=_limit(text, "Max open files"),
        nofile_hard=_limit(text, "Max open files" + _SOFT),
        processes_hard=_limit(text, "Max processes" + _SOFT),
        stack=_limit(text, "Max stack size"),
    )


def _limit(text: str, name: str) -> int | None:
    found = re.search(rf"^{name}\s+(\d{{1,20}}|unlimited)\s", text, re.MULTILINE)
    if not found:
        return None
    return UNLIMITED if found[1] == "unlimited" else int(found[1])


def parse_listeners(answers: Answers) -> tuple[Listener, ...] | None:
    """Return the TCP sockets that listen; None if the table could not be read."""
    table = answers.text("/proc/net/tcp")
    if table is None:
        return None
    both = (table, answers.text("/proc/net/tcp6") or "")
    return tuple(listener for text in both for listener in _listeners(text))


def _listeners(table: str) -> Iterator[Listener]:
    for line in table.splitlines()[1:]:
        fields = line.split()
        try:
            address, port = fields[1].split(":")
            if fields[3] == _LISTENING:
                yield Listener(address=_address(address), port=int(port, 16), uid=int(fields[7]))
        except (ValueError, IndexError):
            continue


def _address(text: str) -> str:
    """Parse an address as the kernel prints it: 32-bit words in the machine's byte order."""
    raw = bytes.fromhex(text)
    turned = b"".join(raw[i : i + 4][::-1] for i in range(0, len(raw), 4))
    return str(IPv6Address(turned) if len(turned) > 4 else IPv4Address(turned))  # noqa: PLR2004


def parse_port_range(text: str) -> tuple[int, int] | None:
    """Read the range of ephemeral ports."""
    found = _PORTS.fullmatch(text)
    return (int(found[1]), int(found[2])) if found else None


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
    main = answers.text("/etc/systemd/logind.conf")
    if main is None:
        main = answers.text("/usr/lib/systemd/logind.conf")
    parts: dict[str, Answer] = {}
    for folder in LOGIND_FOLDERS:
        parts.update(answers.below(folder))
    if main is None and not parts:
        return None
    # The main file shows the distribution's own default as a comment: RHEL's of RemoveIPC is no.
    decided = default and not re.search(rf"^#\s*{name}\s*=\s*no\b", main or "", re.MULTILINE)
    for text in (main or "", *(parts[name].text for name in sorted(parts))):
        for found in re.finditer(rf"^\s*{name}\s*=\s*(\w+)", text, re.MULTILINE):
            decided = found[1].lower() in {"yes", "y", "true", "t", "on", "1"}
    return decided


def parse_nccl_conf(answers: Answers) -> tuple[Setting, ...]:
    """Return the settings in NCCL's files; the one in the home folder wins.

    As NCCL reads them (`setEnvFile`): nothing is trimmed, so that `NCCL_DEBUG = WARN` sets a
    variable whose name ends with a space. Neither file overrides the environment.
    """
    settings: dict[str, Setting] = {}
    files = [(key, a) for key, a in answers.by_key.items() if key.endswith("nccl.conf") and a.good]
    for key, answer in reversed(files):  # the home's is the last
        for line in answer.text.splitlines():
            name, found, value = line.partition("=")
            if found and name and not name.startswith("#"):
                origin = key.removeprefix("file:")
                settings.setdefault(name, Setting(name=name, value=value, origin=origin))
    return tuple(settings[name] for name in sorted(settings))


_SETTING = re.compile(r"([A-Za-z_]\w*):[ \t]*([^#\n]*)")


def parse_launcher_config(answers: Answers, path: str) -> tuple[tuple[str, str], ...] | None:
    """Return the plain settings of a launcher's own file on a node.

    None: it was not asked for, or could not be read.
    """
    if not path:
        return None
    end = "file:" + path if path.startswith("/") else path.removeprefix("~")
    found = [
        a for key, a in answers.by_key.items() if key.startswith("file:") and key.endswith(end)
    ]
    if not found:
        return ()
    return launcher_settings(found[0].text) if found[0].good else None


def launcher_settings(text: str) -> tuple[tuple[str, str], ...]:
    """Return the plain settings of a launcher's YAML or JSON file; none of those in sections."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        lines = (_SETTING.match(line) for line in text.splitlines())
        named = {match[1]: match[2].strip().strip("'\"") for match in lines if match}
    else:
        pairs = document.items() if isinstance(document, dict) else ()
        named = {str(k): str(v) for k, v in pairs if isinstance(v, (str, int, float))}
    return tuple(sorted((name, value) for name, value in named.items() if value))


def parse_etc_environment(text: str) -> tuple[str, ...]:
    """Return the names that /etc/environment sets; pam_env allows `export` before them."""
    names = (line.partition("=")[0].strip() for line in text.splitlines() if "=" in line)
    return tuple(sorted({name.removeprefix("export ").strip() for name in names} - {""}))
