"""Which files differ between the commits of runs, if the code's folder is on this machine."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from shlex import quote

from clusterctl.errors import UsageError
from clusterctl.sync.git import Worktree
from clusterctl.values import dataclass
from clusterctl.verbs.compare.story import Story

_COMMIT = re.compile(r"[0-9a-f]{40,64}")
_SHOWN = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitChange:
    """How the commit of a run differs from that of the first one."""

    run: str
    """The run's id."""
    files: tuple[str, ...]
    """Those that differ, from the folder of the code on."""
    command: str
    """It shows how: `git -C FOLDER diff COMMIT COMMIT`."""


def commit_changes(stories: Sequence[Story]) -> Iterator[CommitChange]:
    """Yield what git says of each run with another commit than the first."""
    first, *others = stories
    for other in others:
        folders, commits = zip(_code_of(first), _code_of(other), strict=True)
        if not all(map(_COMMIT.fullmatch, commits)) or len(set(commits)) == 1:
            continue
        for folder in dict.fromkeys(folders):
            files = _changed(Path(folder), *commits)
            if files is not None:
                short = " ".join(one[:_SHOWN] for one in commits)
                command = f"git -C {quote(folder)} diff {short} -- ."
                yield CommitChange(run=other.run, files=files, command=command)
                break


def _code_of(story: Story) -> tuple[str, str]:
    """Return the folder and the commit; none of a run that only nodes tell of."""
    record = story.record
    return (record.source, record.commit) if record and not record.discovered else ("", "")


def _changed(folder: Path, before: str, after: str) -> tuple[str, ...] | None:
    try:
        tree = Worktree.of(folder) if folder.is_absolute() and folder.is_dir() else None
        return tree.changed(before, after) if tree else None
    except (UsageError, OSError):
        return None
