"""Which paths are left out of a sync: common junk, and what `.clusterctlignore` names."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from pathlib import Path

from clusterctl.errors import UsageError

IGNORE_FILE = ".clusterctlignore"

JUNK = (
    *(".git", ".hg", ".svn", "__pycache__", "*.pyc", "*.pyo", "node_modules", "*.egg-info"),
    *(".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", ".ipynb_checkpoints"),
    *(".tox", ".nox", ".cache", ".DS_Store", "*.swp", "*~", "wandb", "mlruns", "lightning_logs"),
)
"""Left out where no git says what belongs to the code."""


class Ignored:
    """Patterns of paths to leave out: a name anywhere, or with a slash from the top on."""

    def __init__(self, patterns: Iterable[str], *, literal: Iterable[str] = ()) -> None:
        """Take the patterns, and paths that are none; each covers everything below it too."""
        names, paths = [], []
        for pattern in patterns:
            stripped = pattern.rstrip("/")
            if "/" in stripped:
                paths.append(fnmatch.translate(stripped.lstrip("/")))
            elif stripped:
                names.append(fnmatch.translate(stripped))
        paths += [re.escape(path.strip("/")) + r"\Z" for path in literal]
        self._name, self._path = _any_of(names), _any_of(paths)
        self._known: dict[bytes, bool] = {b"": False}

    def covers(self, path: bytes) -> bool:
        """Say whether the path, or a folder above it, is left out."""
        if not self._name and not self._path:
            return False
        folder, _, name = path.rpartition(b"/")
        if folder not in self._known:
            self._known[folder] = self.covers(folder)
        return self._known[folder] or self._matches(path, name)

    def _matches(self, path: bytes, name: bytes) -> bool:
        by_name = self._name is not None and self._name.match(name)
        return bool(by_name or (self._path is not None and self._path.match(path)))


def ignored_in(folder: Path, literal: Iterable[str]) -> Ignored:
    """Read a folder's ignore file; `literal` are further paths to leave out, as they are.

    Raises:
        UsageError: it cannot be read, or has a line that means nothing here.
    """
    path = folder / IGNORE_FILE
    try:
        lines = path.read_text(errors="surrogateescape").splitlines()
    except FileNotFoundError:
        lines = []
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}: expected a file of patterns") from error
    patterns = []
    for number, line in enumerate(map(str.strip, lines), 1):
        if line.startswith("!"):
            message = f"{path}:{number}: expected a name or pattern to leave out, found {line}"
            raise UsageError(message, hint="write patterns that leave out only what is no code")
        if line and not line.startswith("#"):
            patterns.append(line)
    return Ignored(patterns, literal=literal)


def _any_of(expressions: list[str]) -> re.Pattern[bytes] | None:
    if not expressions:
        return None
    return re.compile("|".join(expressions).encode("utf-8", "surrogateescape"))
