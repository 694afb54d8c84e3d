"""The tree as one node has it: which blocks are there, and how the others get their place.

A file grows next to its place, under a name of its own, and takes it when every block of it was
verified. So what a push that was interrupted has written serves the next one: its blocks are known
by their hashes.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import threading
from typing import Any, Dict, Iterator, List, Optional, Tuple

from clusterctl.node.mirror.safe_open import RootFolder
from clusterctl.node.push.manifest import MARK, MODES, PARTIAL, Block, Manifest, hashing, read_at

_FILE = os.O_NOFOLLOW | os.O_NONBLOCK
MAX_SHOWN = 5
"""Paths that an answer names at most."""


class Tree:
    """A pushed path on this node; several threads may use it."""

    def __init__(
        self, target: bytes, manifest: Manifest, *, source: bool = False, pulled: bool = False
    ) -> None:
        """Take the place of the path; nothing is read or changed yet.

        Args:
            source: all of it is here, also what links outside of it lead to.
            pulled: a node, which is not trusted, says the modes: no other user may write to it.
        """
        self.manifest, self._modes = manifest, MODES & ~0o022 if pulled else MODES
        real = os.path.realpath(target)
        self._root = real if manifest.folder else os.path.dirname(real)
        self._name = b"" if manifest.folder else os.path.basename(real)
        self._source = source
        self.have = bytearray(manifest.blocks)
        """1 for each block that is there."""
        self.arrived: List[int] = []
        """The blocks that are there, in the order in which they came."""
        self.changed = threading.Condition()
        self._writing = threading.Lock()
        self.received = 0
        """Bytes that were written."""
        self.compared = 0
        """Bytes of files that were compared."""
        self._missing = [len(manifest.blocks_in(n)) for n in range(len(manifest.files))]
        self._whole = bytearray(len(manifest.files))
        """1 for each file that has its name."""
        self._reusable: Dict[int, List[int]] = {}
        """By file, the blocks that an older one of its name has."""
        self._written: Optional[Tuple[int, int]] = None
        """The file that is being written, and its descriptor."""
        if source:
            self._note(list(range(manifest.blocks)))

    @property
    def complete(self) -> bool:
        """Every block is there."""
        return len(self.arrived) == self.manifest.blocks

    def compare(self) -> Dict[str, Any]:
        """Find which blocks are there; return what is missing or replaced, and the room for it."""
        missing = new_files = 0
        replaced: List[bytes] = []
        with hashing() as pool, RootFolder(self._root) as folder:
            for number, file in enumerate(self.manifest.files):
                indexes = self.manifest.blocks_in(number)
                blocks = [self.manifest.block(n) for n in indexes]
                known = {}
                for part, descriptor in self._opened(folder, number):
                    with open(descriptor, "rb", buffering=0) as found:
                        good = pool.map(_holds, [descriptor] * len(blocks), blocks)
                        known[part] = {n for n, right in zip(indexes, good) if right}
                        same_size = os.fstat(found.fileno()).st_size == file.size
                    if part == "final" and same_size and len(known[part]) == len(blocks):
                        self._whole[number] = 1
                        break
                older, partial = known.get("final", set()), known.get("partial", set())
                self._note(sorted(older | partial))
                self.compared += file.size
                self._missing[number] -= len(older | partial)
                if self._whole[number]:
                    continue
                if older - partial:
                    self._reusable[number] = sorted(older - partial)
                if os.path.lexists(os.path.join(self._root, self._path(number))):
                    replaced.append(self._path(number))
                new_files += "partial" not in known
                missing += file.size - sum(self.manifest.block(n).length for n in partial)
            for path, target in self.manifest.links:
                with contextlib.suppress(OSError):
                    parent, name = folder.parent(path), os.path.basename(path)
                    os.lstat(name, dir_fd=parent)
                    if _link_at(parent, name) != target:
                        replaced.append(path)
        near = self._root
        while not os.path.isdir(near):
            near = os.path.dirname(near)
        space = os.statvfs(near)
        return {
            "missing": missing,
            "files": new_files,
            "free": space.f_bavail * space.f_frsize,
            "free_files": space.f_favail if space.f_files else None,
            "replaced": len(replaced),
            "replaced_paths": [os.fsdecode(path) for path in sorted(replaced)[:MAX_SHOWN]],
        }

    def begin(self) -> None:
        """Make the folders, and the files of which no block is missing."""
        os.makedirs(self._root, exist_ok=True)
        with RootFolder(self._root) as folder:
            for path, told in self.manifest.folders:
                mode = told & self._modes | 0o700
                try:
                    os.mkdir(os.path.basename(path), mode, dir_fd=folder.parent(path))
                except FileExistsError:
                    folder.parent(path + b"/x")  # it must be a folder
            for number, left in enumerate(self._missing):
                if self._whole[number]:
                    path = self._path(number)
                    _unlink(folder.parent(path), _partial_name(os.path.basename(path)))
                    continue
                self._reuse(folder, number)
                if not left:
                    self._finish(folder, number)

    def write(self, index: int, data: memoryview) -> bool:
        """Take a block in; False: it is not the block that it should be."""
        block = self.manifest.block(index)
        if len(data) != block.length or hashlib.sha256(data).digest() != block.digest:
            return False
        with self._writing, RootFolder(self._root) as folder:
            if self.have[index]:
                return True
            if self._written is None or self._written[0] != block.file:
                self.close()
                self._written = block.file, self._open_partial(folder, block.file)
            view, offset = data, block.offset
            while view:
                count = os.pwrite(self._written[1], view, offset)
                view, offset = view[count:], offset + count
            self._missing[block.file] -= 1
            if not self._missing[block.file]:
                self._finish(folder, block.file)
            self.received += block.length
            self._note([index])
        return True

    def close(self) -> None:
        """Close the file that was written."""
        if self._written is not None:
            os.close(self._written[1])
            self._written = None

    def finish(self) -> List[str]:
        """Make the links, set the folders' modes; return names that the source does not have."""
        with RootFolder(self._root) as folder:
            for path, target in self.manifest.links:
                parent, name = folder.parent(path), os.path.basename(path)
                if _link_at(parent, name) != target:
                    temporary = _partial_name(name)
                    _unlink(parent, temporary)
                    os.symlink(target, temporary, dir_fd=parent)
                    os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
            for path, told in reversed(self.manifest.folders):
                mode = told & self._modes
                inner = os.open(
                    os.path.basename(path),
                    os.O_RDONLY | os.O_DIRECTORY | _FILE,
                    dir_fd=folder.parent(path),
                )
                try:
                    if (
                        stat.S_IMODE(os.fstat(inner).st_mode) != mode
                        and os.fstat(inner).st_uid == os.geteuid()
                    ):
                        os.fchmod(inner, mode)
                finally:
                    os.close(inner)
        return self._extra() if self.manifest.folder else []

    def reader(self) -> BlockReader:
        """Return a reader of blocks for one thread."""
        return BlockReader(self)

    def open_to_read(self, number: int) -> int:
        """Open a file of which some blocks are there."""
        path = self._path(number)
        if self._source:
            return os.open(os.path.join(self._root, path), os.O_RDONLY)
        name = os.path.basename(path)
        whole = self._whole[number]  # asked first: the next thing may be that it is renamed
        with RootFolder(self._root) as folder:
            found = None if whole else _open_file(folder.parent(path), _partial_name(name))
            if found is None:
                found = _open_file(folder.parent(path), name)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return found

    def holds(self, index: int) -> bool:
        """Tell whether a block that is there still is what it should be."""
        block = self.manifest.block(index)
        try:
            descriptor = self.open_to_read(block.file)
        except OSError:
            return False
        with open(descriptor, "rb", buffering=0):
            return _holds(descriptor, block)

    @property
    def root(self) -> bytes:
        """The folder below which all of it lies."""
        return self._root

    def wait_beyond(self, count: int, seconds: float) -> bool:
        """Wait until more blocks than `count` are there."""
        with self.changed:
            return self.changed.wait_for(lambda: len(self.arrived) > count, seconds)

    def _note(self, indexes: List[int]) -> None:
        with self.changed:
            for index in indexes:
                self.have[index] = 1
            self.arrived += indexes
            self.changed.notify_all()

    def _path(self, number: int) -> bytes:
        return self._name or self.manifest.files[number].path

    def _opened(self, folder: RootFolder, number: int) -> Iterator[Tuple[str, int]]:
        """Yield descriptors of the file and its partial one, those that exist."""
        path = self._path(number)
        name = os.path.basename(path)
        for part, each in (("final", name), ("partial", _partial_name(name))):
            try:
                descriptor = _open_file(folder.parent(path), each)
            except FileNotFoundError:
                return  # its folder is not there
            if descriptor is not None:
                yield part, descriptor

    def _reuse(self, folder: RootFolder, number: int) -> None:
        """Copy the blocks of an older file that are still right."""
        path = self._path(number)
        older = _open_file(folder.parent(path), os.path.basename(path))
        if older is None or number not in self._reusable:
            if older is not None:
                os.close(older)
            return
        with open(older, "rb", buffering=0), open(self._open_partial(folder, number), "r+b") as new:
            for index in self._reusable.pop(number):
                block = self.manifest.block(index)
                os.pwrite(new.fileno(), read_at(older, block.offset, block.length), block.offset)

    def _open_partial(self, folder: RootFolder, number: int) -> int:
        path = self._path(number)
        parent, name = folder.parent(path), _partial_name(os.path.basename(path))
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT | _FILE, 0o600, dir_fd=parent)
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and status.st_uid == os.geteuid():
            return descriptor
        os.close(descriptor)  # another user's, who could still write to it
        os.unlink(name, dir_fd=parent)
        return os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | _FILE, 0o600, dir_fd=parent)

    def _finish(self, folder: RootFolder, number: int) -> None:
        """Give a whole file its mode, its time and its name."""
        self.close()
        file = self.manifest.files[number]
        path = self._path(number)
        parent, name = folder.parent(path), os.path.basename(path)
        descriptor = self._open_partial(folder, number)
        try:
            os.ftruncate(descriptor, file.size)
            os.fchmod(descriptor, file.mode & self._modes)
            os.utime(descriptor, ns=(file.mtime_ns, file.mtime_ns))
        finally:
            os.close(descriptor)
        os.rename(_partial_name(name), name, src_dir_fd=parent, dst_dir_fd=parent)
        self._whole[number] = 1

    def _extra(self) -> List[str]:
        known = {self._path(n) for n in range(len(self.manifest.files))}
        known |= {path for path, _ in self.manifest.links}
        extra = []
        for place, _, names in os.walk(self._root):
            inner = os.path.relpath(place, self._root)
            prefix = b"" if inner == b"." else inner + b"/"
            extra += [
                os.fsdecode(prefix + name)
                for name in names
                if prefix + name not in known and not name.startswith(MARK)
            ]
        return sorted(extra)


class BlockReader:
    """Reads blocks of a tree for one thread, which asks for them about in order."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._open: Optional[Tuple[int, int]] = None

    def read(self, index: int) -> memoryview:
        """Return a block that is there, until this thread reads the next one; else OSError."""
        block = self._tree.manifest.block(index)
        if self._open is None or self._open[0] != block.file:
            self.close()
            self._open = block.file, self._tree.open_to_read(block.file)
        return read_at(self._open[1], block.offset, block.length)

    def close(self) -> None:
        """Close the file that was read."""
        if self._open is not None:
            os.close(self._open[1])
            self._open = None


def _holds(descriptor: int, block: Block) -> bool:
    data = read_at(descriptor, block.offset, block.length)
    return len(data) == block.length and hashlib.sha256(data).digest() == block.digest


def _partial_name(name: bytes) -> bytes:
    # A name may be too long for what is added; then the hash tells it from others.
    return b".%s.%s%s" % (name[:100], hashlib.sha256(name).hexdigest()[:12].encode(), PARTIAL)


def _open_file(parent: int, name: bytes) -> Optional[int]:
    try:
        descriptor = os.open(name, os.O_RDONLY | _FILE, dir_fd=parent)
    except OSError:
        return None
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    return None


def _link_at(parent: int, name: bytes) -> Optional[bytes]:
    try:
        return os.readlink(name, dir_fd=parent)
    except OSError:
        return None


def _unlink(parent: int, name: bytes) -> None:
    try:
        os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        return
