"""What the person's folder holds for the nodes: git's list of it, or all but common junk."""

from __future__ import annotations

import contextlib
import fnmatch
import logging
import os
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from clusterctl.errors import ClusterError, UsageError
from clusterctl.node.trees import Entry, Listing, digest_of, encode, kind_of, text, tree_hash

logger = logging.getLogger(__name__)

IGNORE_FILE = ".clusterctlignore"
OWN_FOLDER = b".clusterctl"
DIFF_LIMIT = 16 * 1024 * 1024
"""Bytes of uncommitted changes that are kept for the record."""

JUNK = (
    *(".git", ".hg", ".svn", "__pycache__", "*.pyc", "*.pyo", "node_modules", "*.egg-info"),
    *(".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", ".ipynb_checkpoints"),
    *(".tox", ".nox", ".cache", ".DS_Store", "*.swp", "*~", "wandb", "mlruns", "lightning_logs"),
)
"""Left out where no git says what belongs to the code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A folder as it shall be on the nodes."""

    folder: Path
    listing: Listing
    tree: str
    size: int
    """Bytes of all its files."""
    commit: str | None
    """What git's HEAD is; None outside git."""
    diff: str
    """What differs from it, as a patch; new files by name only."""

    @property
    def encoded(self) -> bytes:
        """The listing as a node takes it."""
        return encode(self.listing)

    @property
    def dirty(self) -> bool:
        """The folder is not what the commit says."""
        return bool(self.diff)


def read_source(folder: Path, *, leave_out: Iterable[str] = ()) -> Source:
    """List and hash a folder.

    Args:
        folder: the person's current folder.
        leave_out: paths in it that are no code, such as the checkpoints.

    Raises:
        UsageError: git cannot say, or there is nothing.
        ClusterError: a file cannot be read.
    """
    in_git = _git(folder, "rev-parse", "--is-inside-work-tree").strip() == b"true"
    found = _listed_by_git(folder, b"") if in_git else _walked(folder, Ignored(JUNK))
    ignored = Ignored([*_ignore_lines(folder), *(f"/{path}" for path in leave_out)])
    listing: Listing = {}
    size = 0
    for path in sorted(set(found)):
        if path.split(b"/", 1)[0] == OWN_FOLDER or ignored.covers(path):
            continue
        full = folder / os.fsdecode(path)
        try:
            status = full.lstat()
            kind = kind_of(status)
            if kind is not None:
                listing[path] = Entry(kind, digest_of(os.fsencode(full), kind))
                size += status.st_size
        except FileNotFoundError:
            continue  # deleted in the work tree
        except OSError as error:
            hint = f"make it readable, or name it in {IGNORE_FILE}"
            raise ClusterError(f"{text(path)}: {error.strerror}", hint=hint) from error
    if not listing:
        raise UsageError(f"{folder}: nothing to sync: no files", hint="run it in the code's folder")
    return Source(
        folder=folder,
        listing=listing,
        tree=tree_hash(listing),
        size=size,
        commit=_git(folder, "rev-parse", "--verify", "HEAD").decode().strip() or None
        if in_git
        else None,
        diff=_diff(folder) if in_git else "",
    )


@contextlib.contextmanager
def token_in(folder: Path, token: str) -> Iterator[None]:
    """Leave a token in the folder for a while: a node that sees it has this very folder."""
    own = folder / os.fsdecode(OWN_FOLDER)
    path = own / "seen" / token
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    except OSError as error:
        # Then no node has written there either, so none can be recognised by it.
        logger.info("%s: no token can be left: %s", folder, error)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
            path.parent.rmdir()
            own.rmdir()


class Ignored:
    """Patterns of paths to leave out: a name anywhere, or with a slash from the top on."""

    def __init__(self, patterns: Iterable[str]) -> None:
        """Take the patterns; what they cover, they cover with everything below it."""
        self._patterns = [p.rstrip("/").encode("utf-8", "surrogateescape") for p in patterns]

    def covers(self, path: bytes) -> bool:
        """Say whether the path, or a folder above it, is left out."""
        parts = path.split(b"/")
        for count in range(1, len(parts) + 1):
            head = b"/".join(parts[:count])
            for pattern in self._patterns:
                wanted = head if b"/" in pattern else parts[count - 1]
                if fnmatch.fnmatchcase(wanted, pattern.lstrip(b"/")):
                    return True
        return False


def _ignore_lines(folder: Path) -> list[str]:
    try:
        lines = (folder / IGNORE_FILE).read_text(errors="surrogateescape").splitlines()
    except FileNotFoundError:
        return []
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def _listed_by_git(folder: Path, prefix: bytes) -> Iterator[bytes]:
    """Yield tracked and new files; a repository within is asked itself."""
    output = _git(folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    for name in filter(None, output.split(b"\0")):
        path = name.rstrip(b"/")
        full = folder / os.fsdecode(path)
        if full.is_dir() and not full.is_symlink():
            if (full / ".git").exists():
                yield from _listed_by_git(full, prefix + path + b"/")
            continue
        if not _in_virtual_environment(folder, full):
            yield prefix + path


def _in_virtual_environment(folder: Path, path: Path) -> bool:
    above = path.relative_to(folder).parents
    return any((folder / parent / "pyvenv.cfg").exists() for parent in above[:-1])


def _walked(folder: Path, junk: Ignored) -> Iterator[bytes]:
    """Yield all files but junk and virtual environments."""
    for parent, folders, names in os.walk(folder):
        here = Path(parent)
        # A link to a folder is a path of the tree, not a folder to go into.
        links = [name for name in folders if (here / name).is_symlink()]
        folders[:] = [
            name
            for name in folders
            if name not in links
            and not junk.covers(os.fsencode(name))
            and not (here / name / "pyvenv.cfg").exists()
        ]
        for name in [*names, *links]:
            if not junk.covers(os.fsencode(name)):
                yield os.fsencode((here / name).relative_to(folder))


def _diff(folder: Path) -> str:
    patch = _git(folder, "diff", "HEAD", "--binary", "--no-color", "--no-ext-diff", "--", ".")
    new = _git(folder, "ls-files", "-z", "--others", "--exclude-standard")
    names = [text(name) for name in filter(None, new.split(b"\0"))]
    shown = patch[:DIFF_LIMIT].decode("utf-8", "backslashreplace")
    if len(patch) > DIFF_LIMIT:
        shown += f"\n# cut: {len(patch)} bytes\n"
    return shown + "".join(f"# new file: {name!r}\n" for name in names)


def _git(folder: Path, *words: str) -> bytes:
    """Return git's output, empty where it has none to give.

    Raises:
        UsageError: this is git's folder, and git will not work with it.
    """
    try:
        done = subprocess.run(
            ["git", *words], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
    except FileNotFoundError:
        return b""
    if b"dubious ownership" in done.stderr:
        hint = f"try: git config --global --add safe.directory '{folder}'"
        raise UsageError(f"{folder}: git: the folder belongs to another user", hint=hint)
    return done.stdout if done.returncode == 0 else b""
