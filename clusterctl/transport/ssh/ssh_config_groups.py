"""Which hosts ssh_config cannot tell apart, so that one `ssh -G` answers for all of them.

OpenSSH still reads the settings. Here only their files are searched for whatever could make the
answer depend on the host: patterns of `Host`, `Match`, tokens, names that are made canonical.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from clusterctl.values import dataclass

_VERSION = re.compile("^OpenSSH_", re.MULTILINE)
_FILE = re.compile(r"^debug1: Reading configuration data (.+)$", re.MULTILINE)
_LINE = re.compile(r"([A-Za-z0-9]+)[\s=]+(.*)")
_PLAIN_HOST = re.compile("[a-z0-9][a-z0-9.-]*")
"""One that `ssh -G` prints as it was given."""
_NEVER_SHARED = ("match", "canonical")
"""How keywords begin that judge a host by more than its name."""
_OWN_TOKENS = frozenset(
    {
        *("certificatefile", "controlpath", "identityfile", "localcommand", "proxycommand"),
        *("remotecommand", "revokedhostkeys"),
    }
)
"""Keywords that we do not use, or ask for again, or whose tokens `ssh -G` leaves to us."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostGroups:
    """What tells hosts apart in the files that `ssh -G` has read."""

    patterns: tuple[re.Pattern[str], ...]
    names: frozenset[str]
    """What `HostName` stands for somewhere: printed of such a host, it may be another's, too."""

    @classmethod
    def of(cls, debug: str) -> Self | None:
        """Return the groups, by what `ssh -v -G` says; None if any host may differ from any."""
        if not _VERSION.search(debug):
            return None  # another program that is called ssh
        patterns: set[str] = set()
        names: set[str] = set()
        try:
            for path in _FILE.findall(debug):
                for keyword, value in _settings(Path(path).read_text(errors="replace")):
                    if keyword == "host":
                        patterns.update(value.replace("!", "").split())
                    elif keyword == "hostname":
                        names.update(value.lower().split())
        except (OSError, ValueError):
            return None
        return cls(patterns=tuple(map(_compiled, sorted(patterns))), names=frozenset(names))

    def group(self, host: str) -> tuple[object, ...] | None:
        """Return what hosts with the same settings share; None if this one shares with none."""
        if not _PLAIN_HOST.fullmatch(host):
            return None
        matched = tuple(pattern.fullmatch(host) is not None for pattern in self.patterns)
        return (matched, host if host in self.names else None)


def _settings(text: str) -> Iterator[tuple[str, str]]:
    """Yield keywords and values."""
    for line in map(str.strip, text.splitlines()):
        if not line or line.startswith("#"):
            continue
        parts = _LINE.fullmatch(line)
        if parts is None:
            raise ValueError(line)
        keyword, value = parts[1].lower(), parts[2]
        quoted = keyword in {"host", "hostname"} and set(value) & set("\"'\\")
        token = "%" in value and keyword not in _OWN_TOKENS
        if quoted or token or keyword.startswith(_NEVER_SHARED):
            raise ValueError(line)
        yield keyword, value


def _compiled(pattern: str) -> re.Pattern[str]:
    """Return a pattern of `Host`, where `*` and `?` stand for what they do in file names."""
    return re.compile(re.escape(pattern).replace(r"\*", ".*").replace(r"\?", "."))
