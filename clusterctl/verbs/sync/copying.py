"""The files of a sync on their way: how much there is, whether it may be, and how far it is."""

import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from clusterctl.checks.wording import counted, size_of
from clusterctl.errors import LargeCopy
from clusterctl.inventory.cluster import Cluster
from clusterctl.plan.run_names import before_names, pattern_of_runs
from clusterctl.sync.source import IGNORE_FILE, SourceTree, environment_files, outward_links
from clusterctl.transport.fanout import with_ticks
from clusterctl.transport.interface import Reply
from clusterctl.verbs.events import CopyProgress, Emit, Notice
from clusterctl.verbs.sync.result import NodeSync

ANNOUNCED = 10_000_000
"""Bytes for one node above which a line says beforehand how much there is to copy."""
LARGE = 1_000_000_000
"""Bytes for one node above which the user is asked first: this is more than code."""
MUCH_READ = LARGE
"""Bytes of new files above which a line is printed before they are read."""
_NO_CODE = (
    "list what is no code in .gitignore, or outside git in .clusterctlignore;"
    " clusterctl push brings models and data"
)
_HINT = f"copy it: --yes\n{_NO_CODE}"


TICK_SECONDS = 0.5
"""How often the progress is shown."""


@dataclass(frozen=True, kw_only=True)
class Copying:
    """What each node is sent."""

    sizes: Mapping[str, Mapping[str, int]]
    """By node, the bytes of each file that it needs."""
    began: float = field(default_factory=time.monotonic)

    @cached_property
    def totals(self) -> dict[str, int]:
        """By node, the bytes that it needs."""
        return {node: sum(files.values()) for node, files in self.sizes.items()}

    @property
    def most(self) -> int:
        """The bytes that one node needs."""
        return max(self.totals.values(), default=0)

    def refusal(self) -> LargeCopy | None:
        """Return why so much must not be copied unasked; None: it is no more than code."""
        if self.most <= LARGE:
            return None
        return LargeCopy(f"this sync would copy {self._words()}", hint=_HINT)

    def announcement(self) -> Notice | None:
        """Return a line for a copy that takes its time."""
        return Notice(text=f"copying {self._words()}") if self.most > ANNOUNCED else None

    def progress(self, moved: Mapping[str, int]) -> CopyProgress | None:
        """Return how far it is; `moved` has the bytes that each node was sent."""
        if self.most <= ANNOUNCED:
            return None
        wanted = self.totals
        # Less moves where rsync finds parts of a file there.
        done = sum(min(moved.get(node, 0), size) for node, size in wanted.items())
        seconds = time.monotonic() - self.began
        return CopyProgress(
            path=counted(max(map(len, self.sizes.values())), "file"),
            phase="sending",
            done=done,
            total=sum(wanted.values()),
            nodes=sum(moved.get(node, 0) >= size for node, size in wanted.items()),
            total_nodes=len(wanted),
            rate=done / seconds if seconds else 0.0,
        )

    def _words(self) -> str:
        """Return how much it is: `1.2 GB in 2 files to 3 nodes; the largest is a.bin, 1.1 GB`."""
        files = self.sizes[max(self.totals, key=self.totals.__getitem__)]
        size, name = max((size, name) for name, size in files.items())
        nodes = [node for node, needed in self.sizes.items() if needed]
        where = nodes[0] if len(nodes) == 1 else f"each of {counted(len(nodes), 'node')}"
        count = counted(len(files), "file")
        return f"{size_of(self.most)} in {count} to {where}; the largest is {name}, {size_of(size)}"


def announce_reading(unread: Mapping[bytes, int], emit: Emit) -> None:
    """Say that much is read before anything is known; `unread` has the bytes of each file."""
    total = sum(unread.values())
    if total > MUCH_READ:
        size, path = max((size, path) for path, size in unread.items())
        largest = f"the largest is {path.decode(errors='backslashreplace')}, {size_of(size)}"
        text = f"reading {size_of(total)} in {counted(len(unread), 'file')} here; {largest}"
        emit(Notice(text=text, hint=_NO_CODE))


def reported(
    replies: Iterable[Reply],
    copying: Callable[[], Copying | None],
    moved: Mapping[str, int],
    *,
    emit: Emit,
) -> Iterator[Reply]:
    """Yield the nodes' replies; between them, emit what there is to copy and how far that is.

    Args:
        replies: as they come.
        copying: returns what is copied once the nodes have agreed.
        moved: the bytes that each node was sent.
    """
    announced = False
    for reply in with_ticks(iter(replies), TICK_SECONDS):
        if (known := copying()) is not None:
            event = known.progress(moved) if announced else known.announcement()
            announced = True
            if event is not None:
                emit(event)
        if reply is not None:
            yield reply


def checkpoints_in(cluster: Cluster, source: Path) -> list[str]:
    """Return where runs write, relative to the folder; UsageError if that may be any folder."""
    path = Path(cluster.job.checkpoints or "")
    for base in (source, *(Path(node.workdir) for node in cluster.nodes if node.workdir)):
        if path.is_relative_to(base):
            path = path.relative_to(base)
            break
    if path.is_absolute() or not path.parts:
        return []
    folder = before_names(str(path))
    if folder:
        return [folder]
    own = pattern_of_runs(path.parts[0])
    return [one.name for one in source.glob("*") if own.fullmatch(one.name) and one.is_dir()]


def warn_of_copies(source: SourceTree, nodes: Iterable[NodeSync], *, emit: Emit) -> None:
    """Warn, when they are copied, of files with secrets, and of links that lead nowhere there."""
    changed = [node for node in nodes if node.sent]

    def copied(files: list[str]) -> str:
        """Return the first of these files that was sent, or may have been."""
        known = {path for node in changed for path in node.sent_paths}
        more = any(node.sent > len(node.sent_paths) for node in changed)
        return next((file for file in files if more or file in known), "")

    if file := copied(environment_files(source)):
        text = f"{file} is on the nodes now; does it hold secrets?"
        hint = f"to keep it here: echo {shlex.quote(file)} >> {IGNORE_FILE}"
        hint += (
            f"\nlaunch with `--env-file {shlex.quote(file)}`: the ranks get them, none is stored"
        )
        emit(Notice(text=text, level="warning", hint=hint))
    if file := copied(outward_links(source)):
        text = f"{file} leads out of this folder: the nodes get the link, not what it leads to"
        hint = f"if they lack that: echo {shlex.quote(file)} >> {IGNORE_FILE}"
        emit(Notice(text=text, hint=f"{hint}\nthen: clusterctl push {shlex.quote(file)}"))
