"""What the person's folder holds for the nodes: git's list of it, or all but common junk."""

# ruff: noqa: PTH110, PTH114, PTH118
# Paths are bytes here, and there are many of them.

import contextlib
import fnmatch
import functools
import logging
import os
import posixpath
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from clusterctl.errors import ClusterError, UsageError
from clusterctl.node.mirror.tree_hash import (
    LINK,
    Entry,
    Listing,
    digest_of,
    encode_listing,
    entry_kind,
    path_bytes,
    path_text,
    tree_hash,
)
from clusterctl.sync.digests import Digests
from clusterctl.sync.git import Worktree

IGNORE_FILE = ".clusterctlignore"

JUNK = (
    *(".git", ".hg", ".svn", "__pycache__", "*.pyc", "*.pyo", "node_modules", "*.egg-info"),
    *(".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", ".ipynb_checkpoints"),
    *(".tox", ".nox", ".cache", ".DS_Store", "*.swp", "*~", "wandb", "mlruns", "lightning_logs"),
)
"""Left out where no git says what belongs to the code."""
OUTPUTS = ("slurm-[0-9]*.out", "nohup.out")
"""What Slurm and nohup write into the current folder while the job, or another one, runs."""


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
    """Read a folder's ignore file; `literal` are further paths to leave out, as they are."""
    path = folder / IGNORE_FILE
    try:
        lines = path.read_text(errors="surrogateescape").splitlines()
    except FileNotFoundError:
        lines = []
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}: expected a file of patterns") from error
    patterns = [*OUTPUTS]
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


logger = logging.getLogger(__name__)

OWN_FOLDER = b".clusterctl"
MANIFEST = OWN_FOLDER + b"/manifest.json"
"""In a subfolder it means that a sync places files there: they are not code."""
PULLED = OWN_FOLDER + b"/pulled"
"""In a subfolder: what is in it was pulled, and is not code."""
_SEPARATE = (b"pyvenv.cfg", MANIFEST, PULLED)


@dataclass(frozen=True, kw_only=True)
class SourceTree:
    """A folder as the nodes must have it."""

    folder: Path
    listing: Listing
    tree: str
    size: int
    """Bytes of all its files."""
    commit: str | None
    """What git's HEAD is; None outside git."""
    diff: str
    """What differs from it, as a patch; new files by name only."""

    @functools.cached_property
    def encoded(self) -> bytes:
        """The listing as a node takes it."""
        return encode_listing(self.listing)

    @property
    def dirty(self) -> bool:
        """The folder is not what the commit says."""
        return bool(self.diff)


def read_source(
    folder: Path,
    *,
    leave_out: Iterable[str] = (),
    before: Callable[[Mapping[bytes, int]], None] = lambda _unread: None,
) -> SourceTree:
    """List and hash a folder.

    Args:
        leave_out: paths in it that are no code, as the checkpoints.
        before: called with the bytes of each file that is to be read.

    Raises:
        UsageError: it is not a folder to mirror, git fails, or there is nothing.
        ClusterError: a file cannot be read.
    """
    worktree = Worktree.of(folder)
    files = _files(folder, worktree, leave_out)
    digests = Digests(folder)
    unread = ((path, digests.unread_bytes(path, status)) for path, _, status in files)
    before({path: size for path, size in unread if size})
    listing: Listing = {}
    size = 0
    for path, kind, status in files:
        with _naming_file(path), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            listing[path] = Entry(kind, digests.of(path, kind, status))
            size += status.st_size
    digests.save()
    return SourceTree(
        folder=folder,
        listing=listing,
        tree=tree_hash(listing),
        size=size,
        commit=worktree.commit() if worktree else None,
        diff=worktree.diff() if worktree else "",
    )


def source_paths(folder: Path, *, leave_out: Iterable[str] = ()) -> frozenset[bytes]:
    """Return the paths that `read_source` would list; no file is read.

    Raises:
        UsageError: it is not a folder to mirror, git fails, or there is nothing.
        ClusterError: a folder cannot be read.
    """
    return frozenset(path for path, _, _ in _files(folder, Worktree.of(folder), leave_out))


def _files(
    folder: Path, worktree: Worktree | None, leave_out: Iterable[str]
) -> list[tuple[bytes, str, os.stat_result]]:
    """Return path, kind and state of each file of the code, in order."""
    ignored = ignored_in(folder, leave_out)
    _refuse_home(folder)
    if worktree is not None:
        found = _tracked(folder, worktree, ignored)
    else:
        found = _walked(folder, Ignored(JUNK), ignored)
    root = os.fsencode(folder) + b"/"
    files, own = [], _own_outputs()
    for path in sorted(set(found)):
        _refuse_secret(folder, path)
        # What is tracked may be deleted in the work tree.
        with _naming_file(path), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            status = os.lstat(root + path)
            kind = entry_kind(status)
            if kind is not None and (status.st_dev, status.st_ino) not in own:
                files.append((path, kind, status))
    if not files:
        raise _nothing(folder, worktree)
    return files


def _own_outputs() -> set[tuple[int, int]]:
    """Return the files that this process writes to, as `clusterctl launch >launch.log` lets it."""
    found = set()
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):
            status = os.fstat(descriptor)
            if stat.S_ISREG(status.st_mode):
                found.add((status.st_dev, status.st_ino))
    return found


def changed_since(source: SourceTree, names: Iterable[str]) -> list[str]:
    """Return which of some paths are no longer in the folder as they were listed."""
    changed = []
    for name in names:
        path = os.fsencode(source.folder) + b"/" + path_bytes(name)
        entry = source.listing.get(path_bytes(name))
        try:
            kind = entry_kind(os.lstat(path)) or ""
            if entry is not None and entry != Entry(kind, digest_of(path, kind)):
                changed.append(name)
        except OSError:
            changed.append(name)
    return changed


@contextlib.contextmanager
def token_in(folder: Path, token: str) -> Iterator[None]:
    """Leave a token in the folder for a while: a node that sees it has this very folder."""
    own = folder / os.fsdecode(OWN_FOLDER)
    path = own / "seen" / token
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    except OSError as error:
        # Then no node has written there either, so none can be recognized by it.
        logger.info("%s: cannot write a token: %s", folder, error)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
            path.parent.rmdir()
            own.rmdir()


def _is_separate(folder: bytes) -> bool:
    """Say whether a folder is a virtual environment, or what a sync mirrors or a pull brings."""
    return any(os.path.exists(folder + b"/" + name) for name in _SEPARATE)


def _tracked(folder: Path, worktree: Worktree, ignored: Ignored) -> Iterator[bytes]:
    """Yield what git lists, but what is left out and what is not the code's."""
    root = os.fsencode(folder) + b"/"

    @functools.cache
    def is_separate(inner: bytes) -> bool:
        """Say whether a folder is in a virtual environment, in a workdir, or behind a link."""
        if not inner:
            return False
        above, full = inner.rpartition(b"/")[0], root + inner
        return is_separate(above) or os.path.islink(full) or _is_separate(full)

    for path in worktree.files(ignored.covers):
        own = path.split(b"/", 1)[0] == OWN_FOLDER
        if not (own or ignored.covers(path) or is_separate(path.rpartition(b"/")[0])):
            yield path


def _walked(folder: Path, junk: Ignored, ignored: Ignored) -> Iterator[bytes]:
    """Yield all files but junk and what is left out, whose folders are not even opened."""

    def wanted(path: bytes) -> bool:
        name = path.rpartition(b"/")[2]
        return not (name == OWN_FOLDER or junk.covers(name) or ignored.covers(path))

    yield from _below(os.fsencode(folder), wanted)


def _below(root: bytes, wanted: Callable[[bytes], bool]) -> Iterator[bytes]:
    prefixes = [b""]
    while prefixes:
        prefix = prefixes.pop()
        with _naming_file(prefix), os.scandir(os.path.join(root, prefix)) as entries:
            for entry in entries:
                path = prefix + entry.name
                if not wanted(path):
                    continue
                # A link to a folder is a path of the tree, not a folder to go into.
                if not entry.is_dir(follow_symlinks=False):
                    yield path
                elif not _is_separate(os.path.join(root, path)):
                    prefixes.append(path + b"/")


@contextlib.contextmanager
def _naming_file(path: bytes) -> Iterator[None]:
    """Turn what the system refuses into a ClusterError that names the file."""
    try:
        yield
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: bytes, error: OSError) -> ClusterError:
    hint = f"make it readable, or name it in {IGNORE_FILE}"
    return ClusterError(f"{path_text(path) or '.'}: {error.strerror}", hint=hint)


_PRIVATE = re.compile(
    rb"(^|/)(\.ssh/id_[^/]*(?<!\.pub)|\.gnupg/.*|\.aws/credentials|\.kube/config|\.netrc)\Z"
)
"""Keys and passwords of a home folder."""


_ENVIRONMENT = re.compile(rb"(^|/)\.env(\.(?!example|sample|template|dist)\w+)?\Z")


def environment_files(source: SourceTree) -> list[str]:
    """Return the files of variables, which often hold secrets."""
    return [path_text(path) for path in source.listing if _ENVIRONMENT.search(path)]


def outward_links(source: SourceTree) -> list[str]:
    """Return the links to files outside of the folder: a sync brings the link alone."""
    found = []
    for path, entry in source.listing.items():
        if entry.kind == LINK:
            with contextlib.suppress(OSError):
                target = os.fsencode((source.folder / os.fsdecode(path)).readlink())
                inner = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
                if inner.startswith((b"/", b"..")):
                    found.append(path_text(path))
    return found


def _refuse_home(folder: Path) -> None:
    """Raise UsageError for a home folder, unless an ignore file shows that it is meant."""
    if folder.resolve() == Path.home().resolve() and not (folder / IGNORE_FILE).exists():
        message = f"{folder} is your home folder: expected the folder of the code"
        hint = f"cd to the code; if it is here, name the rest in {folder / IGNORE_FILE}"
        raise UsageError(message, hint=hint)


def _refuse_secret(folder: Path, path: bytes) -> None:
    """Raise UsageError for what is a private key by its name."""
    if _PRIVATE.search(path):
        message = f"{folder / os.fsdecode(path)}: a private key or password would go to every node"
        hint = f"cd to the folder of the code, or name it in {IGNORE_FILE}"
        raise UsageError(message, hint=hint)


def _nothing(folder: Path, worktree: Worktree | None) -> UsageError:
    if worktree is not None and worktree.ignores_folder():
        message = (
            f"{folder}: nothing to sync: the git repository {worktree.top} ignores this folder"
        )
        hint = "take it out of .gitignore there, or make it a repository of its own: git init"
        return UsageError(message, hint=hint)
    return UsageError(f"{folder}: nothing to sync: no files", hint="run it in the code's folder")
