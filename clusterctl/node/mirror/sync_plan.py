"""What has to happen to a folder so that it holds a tree, and nothing of the user's is lost."""

from __future__ import annotations

import contextlib
import os
import stat
import time

from clusterctl.node.mirror.manifest import FOLDER, Manifest, Record, stat_key
from clusterctl.node.mirror.safe_open import RootFolder
from clusterctl.node.mirror.tree_hash import Listing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Set


class SyncPlan:
    """What has to happen to a folder; nothing does before `begin`."""

    def __init__(self, root: bytes, manifest: Manifest, listing: Listing) -> None:
        """Compare the folder with the wanted tree."""
        self.root = root
        self.needed: List[bytes] = []
        self.moved_aside: List[bytes] = []
        """Files that are not ours, or not any more, and have to make way."""
        self.conflicts: List[bytes] = []
        """What cannot be moved: folders of the user's, links and files where folders must be."""
        self.deletions: List[bytes] = []
        """Files that the last sync placed, unchanged since, that the tree no longer has."""
        self.deleted = 0
        self._manifest = manifest
        self._listing = listing
        blocked: Dict[bytes, Optional[bytes]] = {}
        for path in sorted(set(manifest.records) - set(listing)):
            self._plan_stale_path(path, blocked)
        self.stale = sorted([*self.deletions, *self.moved_aside])
        """Placed files that the tree no longer has, edited ones included."""
        digests = {entry.digest for entry in listing.values()}
        self.moved = sum(manifest.records[p].digests[-1] in digests for p in self.stale)
        """How many of them the tree has under another name."""
        freed = set(self.deletions) | set(self.moved_aside)
        blocked = {}
        for path in sorted(listing):
            self._plan_path(path, freed, blocked)

    @property
    def changes(self) -> bool:
        """Any file of the folder would be written, moved or deleted."""
        return bool(self.needed or self.moved_aside or self.deletions)

    def keep(self, paths: Set[bytes]) -> None:
        """Leave files as they are that the person's folder has too, though it is not to be synced.

        They are the node's own from then on.
        """
        kept = paths.intersection(self.stale)
        self.deletions = [path for path in self.deletions if path not in kept]
        self.moved_aside = [path for path in self.moved_aside if path not in kept]

    def begin(self) -> None:
        """Make way: write down what is about to be ours, then delete and move."""
        records: Dict[bytes, Record] = {}
        needed = set(self.needed)
        for path, entry in self._listing.items():
            old = self._manifest.records.get(path)
            before = old.digests[-1:] if old else []
            if path in needed:
                records[path] = Record([*before, entry.digest], True, [])
            else:
                records[path] = old or Record([entry.digest], False, [])
        for path in self.deletions:
            records[path] = self._manifest.records[path]
        self._manifest.write(None, records)
        with RootFolder(self.root) as inside:
            self._delete(inside)
            self._remove_compiled(inside)
            self._move_aside(inside)
            self._drop_empty_parents(inside)

    def _delete(self, inside: RootFolder) -> None:
        """Delete what is still as it was judged; what changed since is moved aside instead."""
        for path in self.deletions:
            name = os.path.basename(path)
            # A folder on the way that is a link by now leads to files that are not ours.
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                parent = inside.parent(path)
                if stat_key(os.lstat(name, dir_fd=parent)) != self._manifest.stat_keys[path]:
                    self.moved_aside.append(path)
                    continue
                os.unlink(name, dir_fd=parent)
                self.deleted += 1

    def _remove_compiled(self, inside: RootFolder) -> None:
        """Remove what Python compiled of files that change.

        It would count as fresh if the new file has the time and the size of the old one, as copies
        that keep times may.
        """
        for path in self.needed:
            folder, name = os.path.split(path)
            stem, kind = os.path.splitext(name)
            if kind != b".py":
                continue
            with contextlib.suppress(OSError):
                parent = inside.parent(os.path.join(folder, b"__pycache__", name))
                for each in map(os.fsencode, os.listdir(parent)):
                    if each.startswith(stem + b".") and each.endswith(b".pyc"):
                        os.unlink(each, dir_fd=parent)

    def _move_aside(self, inside: RootFolder) -> None:
        into = (
            _fresh_folder(os.path.join(self.root, FOLDER, b"replaced")) if self.moved_aside else b""
        )
        for path in self.moved_aside:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                parent = inside.parent(path)
                target = os.path.join(into, path)
                os.makedirs(os.path.dirname(target), exist_ok=True)
                os.rename(os.path.basename(path), target, src_dir_fd=parent)

    def finish(self, tree: str) -> None:
        """Write down that the folder holds the tree, as it was just seen to."""
        records = {}
        for path, entry in self._listing.items():
            ours = self._manifest.records[path].ours
            records[path] = Record([entry.digest], ours, self._manifest.stat_keys[path])
        self._manifest.write(tree, records)

    def _plan_stale_path(self, path: bytes, blocked: Dict[bytes, Optional[bytes]]) -> None:
        """Decide on a path that the last tree had and this one has not."""
        record = self._manifest.records[path]
        if self._obstacle(os.path.dirname(path), set(), blocked) is not None:
            return  # a folder on the way is the user's link now: what it leads to is theirs
        current = self._manifest.current(path)
        if current is None or not record.ours:
            return
        if current.digest in record.digests:
            self.deletions.append(path)
        else:
            self.moved_aside.append(path)

    def _plan_path(
        self, path: bytes, freed: Set[bytes], blocked: Dict[bytes, Optional[bytes]]
    ) -> None:
        """Decide on a path of the wanted tree."""
        obstacle = self._obstacle(os.path.dirname(path), freed, blocked)
        if obstacle is not None:
            if obstacle not in self.conflicts:
                self.conflicts.append(obstacle)
            return
        current = self._manifest.current(path)
        if current == self._listing[path]:
            return
        self.needed.append(path)
        if current is None:
            if os.path.lexists(os.path.join(self.root, path)) and not self._vanishes(path, freed):
                self.conflicts.append(path)
            return
        record = self._manifest.records.get(path)
        known = record.digests if record else []
        if current.digest not in [*known, self._listing[path].digest]:
            self.moved_aside.append(path)

    def _obstacle(
        self, parent: bytes, freed: Set[bytes], blocked: Dict[bytes, Optional[bytes]]
    ) -> Optional[bytes]:
        """Return the part of a path that is there, stays, and is not a folder."""
        if not parent:
            return None
        if parent not in blocked:
            above = self._obstacle(os.path.dirname(parent), freed, blocked)
            blocked[parent] = above
            if above is None and parent not in freed:
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    status = os.lstat(os.path.join(self.root, parent))
                    if not stat.S_ISDIR(status.st_mode):
                        blocked[parent] = parent
        return blocked[parent]

    def _vanishes(self, path: bytes, freed: Set[bytes]) -> bool:
        """Say whether a folder will be empty, and so removed, once all has made way."""
        top = os.path.join(self.root, path)
        for parent, folders, names in os.walk(top):
            links = [name for name in folders if os.path.islink(os.path.join(parent, name))]
            for name in [*names, *links]:
                if os.path.relpath(os.path.join(parent, name), self.root) not in freed:
                    return False
            if parent != top and not folders and not names:
                return False
        return os.path.isdir(top)

    def _drop_empty_parents(self, inside: RootFolder) -> None:
        """Remove the folders that are empty now, the deepest first."""
        levels: Dict[int, Set[bytes]] = {}
        for path in (*self.deletions, *self.moved_aside):
            levels.setdefault(path.count(b"/"), set()).add(os.path.dirname(path))
        for depth in range(max(levels, default=0), 0, -1):
            for folder in sorted(levels.get(depth, ())):
                with contextlib.suppress(OSError):  # not empty, or not there
                    os.rmdir(os.path.basename(folder), dir_fd=inside.parent(folder))
                    levels.setdefault(depth - 1, set()).add(os.path.dirname(folder))


def _fresh_folder(parent: bytes) -> bytes:
    """Make a folder named after the time that no other set-aside uses."""
    os.makedirs(parent, exist_ok=True)
    moment = time.strftime("%Y%m%dT%H%M%S").encode()
    number = 1
    while True:
        path = os.path.join(parent, moment if number == 1 else b"%s-%d" % (moment, number))
        try:
            os.mkdir(path)
        except FileExistsError:
            number += 1
        else:
            return path
