"""Expands a pattern such as `gpu*` to the hosts that the person's ssh_config names."""

from __future__ import annotations

import fnmatch
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from clusterctl.errors import UsageError
from clusterctl.inventory.addresses import split_login
from clusterctl.inventory.problems import printable

CONFIG = "~/.ssh/config"
_INCLUDES = 16
"""How deep files may include each other; as OpenSSH."""
_FILES = 256
_LINE = re.compile(r"\s*(host|include)(?:\s*=\s*|\s+)(.*)", re.IGNORECASE)
_WILD = re.compile("[*?]")


def expand_patterns(words: Sequence[str]) -> list[str]:
    """Return the words, each pattern replaced by the hosts that it fits.

    Raises:
        UsageError: a pattern fits none.
    """
    names: list[str] | None = None
    found: list[str] = []
    for word in words:
        user, host, port = split_login(word)
        if not _WILD.search(host):
            found.append(word)
            continue
        if names is None:
            names = list(dict.fromkeys(_hosts(Path(CONFIG).expanduser(), 0, [])))
        fitting = [name for name in names if fnmatch.fnmatchcase(name.lower(), host.lower())]
        if not fitting:
            raise UsageError(
                f"{printable(word)}: expected a pattern that fits a Host of {CONFIG}, found"
                f" {len(names)} of them and none that fits",
                hint="a range needs no ssh_config: clusterctl init 'gpu[01-04]'",
            )
        before, after = f"{user}@" if user else "", f":{port}" if port else ""
        found += [f"{before}{name}{after}" for name in fitting]
    return found


def _hosts(path: Path, depth: int, files: list[Path]) -> Iterator[str]:
    """Yield the hosts that a file and those that it includes name, without patterns."""
    if depth > _INCLUDES or len(files) >= _FILES:
        return
    files.append(path)
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return  # a file that is missing names no host
    for line in text.splitlines():
        matched = _LINE.fullmatch(line)
        if matched is None:
            continue
        try:
            words = shlex.split(matched[2], comments=True)
        except ValueError:
            continue  # ssh itself will tell
        if matched[1].lower() == "host":
            yield from (word for word in words if not _WILD.search(word) and word[:1] != "!")
        else:
            for word in words:
                for inner in _included(word):
                    yield from _hosts(inner, depth + 1, files)


def _included(word: str) -> list[Path]:
    """Return the files of a pattern; a relative one starts at ~/.ssh."""
    folder = Path(CONFIG).expanduser().parent
    pattern = str(folder / Path(word).expanduser())
    anchor = Path(pattern).anchor
    try:
        return sorted(Path(anchor).glob(pattern.removeprefix(anchor)))
    except (OSError, ValueError, RuntimeError, IndexError):
        return []
