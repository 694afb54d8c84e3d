"""What has to happen to a folder so that it holds a tree, and nothing of the user's is lost."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from typing import Dict, List, Optional, Set

from clusterctl.node.manifest import FOLDER, Manifest, Record
from clusterctl.node.trees import Listing


class Change:
    """What has to happen to a folder; nothing does before `begin`."""

    def __init__(self, root: bytes, manifest: Manifest, listing: Listing) -> None:
        """Compare the folder with the wanted tree."""
        self.root = root
        self.needed: List[bytes] = []
        self.aside: List[bytes] = []
        """Files that are not ours, or not any more, and have to make way."""
        self.in_the_way: List[bytes] = []
        """What cannot be moved: folders of the user's, links and files where folders must be."""
        self.deleted = 0
        self._manifest = manifest
        self._listing = listing
        self._deletions: List[bytes] = []
        for path in sorted(set(manifest.records) - set(listing)):
            self._judge_leftover(path)
        gone = set(self._deletions) | set(self.aside)
        blocked: Dict[bytes, Optional[bytes]] = {}
        for path in sorted(listing):
            self._judge(path, gone, blocked)

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
        for path in self._deletions:
            records[path] = self._manifest.records[path]
        self._manifest.write(None, records)
        into = os.path.join(self.root, FOLDER, b"replaced", time.strftime("%Y%m%dT%H%M%S").encode())
        for path in self.aside:
            target = os.path.join(into, path)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.rename(os.path.join(self.root, path), target)
            self._drop_empty_parents(path)
        for path in self._deletions:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self.root, path))
                self.deleted += 1
            self._drop_empty_parents(path)

    def finish(self, tree: str) -> None:
        """Write down that the folder holds the tree, as it was just seen to."""
        records = {}
        for path, entry in self._listing.items():
            ours = self._manifest.records[path].ours
            records[path] = Record([entry.digest], ours, self._manifest.seen[path])
        self._manifest.write(tree, records)

    def _judge_leftover(self, path: bytes) -> None:
        """Decide on a path that the last tree had and this one has not."""
        record = self._manifest.records[path]
        current = self._manifest.current(path)
        if current is None or not record.ours:
            return
        if current.digest in record.digests:
            self._deletions.append(path)
        else:
            self.aside.append(path)

    def _judge(self, path: bytes, gone: Set[bytes], blocked: Dict[bytes, Optional[bytes]]) -> None:
        """Decide on a path of the wanted tree."""
        obstacle = self._obstacle(os.path.dirname(path), gone, blocked)
        if obstacle is not None:
            if obstacle not in self.in_the_way:
                self.in_the_way.append(obstacle)
            return
        current = self._manifest.current(path)
        if current == self._listing[path]:
            return
        self.needed.append(path)
        if current is None:
            if os.path.lexists(os.path.join(self.root, path)) and not self._vanishes(path, gone):
                self.in_the_way.append(path)
            return
        record = self._manifest.records.get(path)
        known = record.digests if record else []
        if current.digest not in [*known, self._listing[path].digest]:
            self.aside.append(path)

    def _obstacle(
        self, parent: bytes, gone: Set[bytes], blocked: Dict[bytes, Optional[bytes]]
    ) -> Optional[bytes]:
        """Return the part of a path that is there, stays, and is not a folder."""
        if not parent:
            return None
        if parent not in blocked:
            above = self._obstacle(os.path.dirname(parent), gone, blocked)
            blocked[parent] = above
            if above is None and parent not in gone:
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    status = os.lstat(os.path.join(self.root, parent))
                    if not stat.S_ISDIR(status.st_mode):
                        blocked[parent] = parent
        return blocked[parent]

    def _vanishes(self, path: bytes, gone: Set[bytes]) -> bool:
        """Say whether a folder will be empty, and so removed, once all has made way."""
        top = os.path.join(self.root, path)
        for parent, folders, names in os.walk(top):
            links = [name for name in folders if os.path.islink(os.path.join(parent, name))]
            for name in [*names, *links]:
                if os.path.relpath(os.path.join(parent, name), self.root) not in gone:
                    return False
            if parent != top and not folders and not names:
                return False
        return os.path.isdir(top)

    def _drop_empty_parents(self, path: bytes) -> None:
        parent = os.path.dirname(path)
        while parent:
            try:
                os.rmdir(os.path.join(self.root, parent))
            except OSError:
                return
            parent = os.path.dirname(parent)
