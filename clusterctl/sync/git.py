"""What git says of a folder: its files, its commit; a git that fails is an error, never silence.

The folder may be another user's: no program that its own `.git/config` names is run.
"""

# ruff: noqa: PTH112, PTH114
# Paths are bytes here, and there are many of them.

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from shlex import quote
from typing import Self

from clusterctl.errors import UsageError
from clusterctl.node.mirror.tree_hash import path_text
from clusterctl.safe_text import printable_words
from clusterctl.values import dataclass

DIFF_LIMIT = 16 * 1024 * 1024
"""Bytes of uncommitted changes that are kept for the record."""
_MISLEADING = (
    *("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR"),
    *("GIT_OBJECT_DIRECTORY", "GIT_NAMESPACE"),
)
"""Set in hooks, for one repository; each folder of a sync is asked for its own."""
_NO_PROGRAMS = ("-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}")
"""Options that hold in submodules, too."""
_FILTERS = r"^filter\..*\.(clean|smudge|process|required)$"
_UNREADABLE = re.compile(rb"^warning: could not open directory '(.*)': (.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Worktree:
    """A folder in a git work tree."""

    folder: Path
    top: Path
    """The work tree's own folder."""

    @classmethod
    def of(cls, folder: Path) -> Self | None:
        """Return the work tree that contains a folder; None: no `.git` is there or above.

        Raises:
            UsageError: there is one, and git does not work with it.
        """
        claimed = _claimed(folder)
        if claimed is None:
            return None
        top = Path(os.fsdecode(_git(folder, "rev-parse", "--show-toplevel").stdout.rstrip(b"\n")))
        if top != claimed:
            # Git went past a .git that it takes for none, to a repository further up.
            raise _failed(folder, f"{claimed / '.git'} is not a git repository")
        return cls(folder=folder, top=top)

    def files(self, ignored: Callable[[bytes], bool]) -> Iterator[bytes]:
        """Yield tracked and new files; a repository within is asked itself.

        `ignored` says of a path below the folder whether it is left out anyway.

        Raises:
            UsageError: git cannot list them all.
        """
        yield from _list_files(self.folder, b"", ignored)

    def commit(self) -> str | None:
        """Return what HEAD is; None: there is no commit yet."""
        done = _run(self.folder, "rev-parse", "--verify", "--quiet", "HEAD")
        return done.stdout.decode().strip() or None

    def diff(self) -> str:
        """Return what differs from HEAD as a patch; new files by name only."""
        # Not into submodules: their own configuration names filters, too.
        options = ("--no-ext-diff", "--no-textconv", "--ignore-submodules=dirty")
        words = ("diff", "HEAD", "--binary", "--no-color", *options, "--", ".")
        done = _run(self.folder, *self._without_own_filters(), *words)
        shown = done.stdout[:DIFF_LIMIT].decode("utf-8", "backslashreplace")
        if len(done.stdout) > DIFF_LIMIT:
            shown += f"\n# cut: {len(done.stdout)} bytes\n"
        if done.returncode and self.commit() is not None:
            shown += f"# git diff failed: {printable_words(done.stderr)}\n"
        new = _git(self.folder, "ls-files", "-z", "--others", "--exclude-standard")
        names = [path_text(name) for name in filter(None, new.stdout.split(b"\0"))]
        return shown + "".join(f"# new file: {name!r}\n" for name in names)

    def changed(self, before: str, after: str) -> tuple[str, ...] | None:
        """Return the files below the folder that two commits differ in; None: one is not here."""
        words = ("diff", "--name-only", "--relative", "--no-renames", "-z", before, after)
        done = _run(self.folder, *words, "--", ".")
        names = filter(None, done.stdout.split(b"\0"))
        return None if done.returncode else tuple(map(path_text, names))

    def _without_own_filters(self) -> list[str]:
        """Return options against filters of the clone's own; those of the user are trusted."""
        options: list[str] = []
        for scope in ("--local", "--worktree"):
            asked = ("config", scope, "--includes", "--name-only", "-z", "--get-regexp", _FILTERS)
            found = _run(self.folder, *asked).stdout
            for name in sorted(set(map(os.fsdecode, filter(None, found.split(b"\0"))))):
                if "=" in name:  # git has no way to name it
                    raise _failed(self.folder, f"its configuration has the filter {name!r}")
                options += ["-c", f"{name}={'false' if name.endswith('.required') else ''}"]
        return options

    def ignores_folder(self) -> bool:
        """Say whether git ignores the folder as a whole."""
        return _run(self.folder, "check-ignore", "-q", ".").returncode == 0


def _claimed(folder: Path) -> Path | None:
    """Return the nearest folder that has a `.git`, on the same filesystem, as git looks for it."""
    here = folder.resolve()
    device = here.stat().st_dev
    for above in (here, *here.parents):
        try:
            if above.stat().st_dev != device:
                return None
        except OSError:
            return None
        if os.path.lexists(above / ".git"):
            return above
    return None


def _list_files(folder: Path, prefix: bytes, ignored: Callable[[bytes], bool]) -> Iterator[bytes]:
    done = _git(folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    for unreadable, why in _UNREADABLE.findall(done.stderr):
        # git names it from the work tree's own folder on.
        above = _git(folder, "rev-parse", "--show-prefix").stdout.rstrip(b"\n")
        name = unreadable.removeprefix(above)
        if not ignored(prefix + name.rstrip(b"/")):
            where = folder / os.fsdecode(name)
            hint = "make it readable, or name it in .clusterctlignore or .gitignore"
            raise UsageError(f"{where}: {printable_words(why)}", hint=hint)
    root = os.fsencode(folder) + b"/"
    for name in filter(None, done.stdout.split(b"\0")):
        path = name.rstrip(b"/")
        if not _is_folder(root + path):
            yield prefix + path
        elif os.path.lexists(root + path + b"/.git") and not ignored(prefix + path):
            nested = folder / os.fsdecode(path)
            Worktree.of(nested)  # or git would list it as part of what is around it
            yield from _list_files(nested, prefix + path + b"/", ignored)


def _is_folder(path: bytes) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def _git(folder: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    """Run git; raise UsageError if it failed."""
    done = _run(folder, *words)
    if done.returncode:
        raise _failed(folder, printable_words(done.stderr))
    return done


def _run(folder: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    environment = {k: v for k, v in os.environ.items() if k not in _MISLEADING}
    # No protocol: a partial clone would fetch what it lacks, by a program of its own choice.
    environment.update(LC_ALL="C", GIT_OPTIONAL_LOCKS="0", GIT_ALLOW_PROTOCOL="none")
    try:
        return subprocess.run(
            ["git", *_NO_PROGRAMS, *words],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
    except FileNotFoundError as error:
        raise _failed(folder, "git is not on PATH here") from error


def _failed(folder: Path, words: str) -> UsageError:
    hint = f"try: git -C {quote(str(folder))} status; without git, .gitignore would not count"
    if "dubious ownership" in words:
        words = "the folder belongs to another user"
        hint = f"try: git config --global --add safe.directory {quote(str(folder))}"
    elif "not on PATH" in words:
        hint = "install git: it decides which files belong to the code"
    return UsageError(f"{folder}: git: {words}", hint=hint)
