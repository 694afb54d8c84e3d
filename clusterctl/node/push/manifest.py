"""What a pushed path consists of: its files with their sizes, modes and the hashes of all blocks.

The source makes it, the controller carries it, and every other node takes only what is safe: names
below the path, and links that stay in it.
"""

from __future__ import annotations

import bisect
import hashlib
import json
import os
import stat
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Dict, List, NamedTuple, Set, Tuple

BLOCK = 8 << 20
"""Bytes of a block. Each node of the chain holds a few, and a chain of eight fills in eight."""
HASH = 32
"""Bytes of a SHA-256, which today's processors compute faster than BLAKE2."""
THREADS = 4
PARTIAL = b".clusterctl-partial"
"""How the names of files end that are not whole yet."""
MARK = b".clusterctl-push-"
"""How the names of files begin by which nodes find that they share a folder."""
SIZE_LIMIT = 1 << 30
"""Bytes of an inflated manifest."""
MODES = 0o777
"""No file becomes setuid: it would be another user's by then."""


class File(NamedTuple):
    """A file of the tree."""

    path: bytes
    """Below the root; empty: the root is the file."""
    size: int
    mode: int
    mtime_ns: int


class Block(NamedTuple):
    """A part of a file."""

    file: int
    offset: int
    length: int
    digest: bytes


class Manifest:
    """All of a tree; raises ValueError if it holds what no honest source would send."""

    def __init__(
        self,
        *,
        folder: bool,
        files: List[File],
        links: List[Tuple[bytes, bytes]],
        folders: List[Tuple[bytes, int]],
        hashes: bytes,
    ) -> None:
        self.folder, self.files, self.links, self.folders = folder, files, links, folders
        self.hashes = hashes
        self._starts: List[int] = []
        """The first block of each file."""
        count = 0
        for file in files:
            self._starts.append(count)
            count += blocks_of(file.size)
        self.blocks = count
        self.size = sum(file.size for file in files)

    def block(self, index: int) -> Block:
        """Return a block by its place in the whole."""
        # Files without a block share their start with the next one.
        file = bisect.bisect_right(self._starts, index) - 1
        offset = (index - self._starts[file]) * BLOCK
        length = min(BLOCK, self.files[file].size - offset)
        return Block(file, offset, length, self.hashes[index * HASH : (index + 1) * HASH])

    def blocks_in(self, file: int) -> range:
        """Return the blocks of a file."""
        start = self._starts[file]
        return range(start, start + blocks_of(self.files[file].size))

    def encode(self) -> bytes:
        """Return it as bytes."""
        tree = {
            "folder": self.folder,
            "files": [[os.fsdecode(f.path), f.size, f.mode, f.mtime_ns] for f in self.files],
            "links": [[os.fsdecode(path), os.fsdecode(target)] for path, target in self.links],
            "folders": [[os.fsdecode(path), mode] for path, mode in self.folders],
            "hashes": self.hashes.hex(),
        }
        return zlib.compress(json.dumps(tree).encode(), 1)


def blocks_of(size: int) -> int:
    """Return how many blocks a file of a size has."""
    return -(-size // BLOCK)


def decode(data: bytes) -> Manifest:
    """Read a manifest that came from another machine.

    Raises:
        ValueError: it is none, or holds something that could leave the tree.
    """
    inflater = zlib.decompressobj()
    try:
        return _checked(json.loads(inflater.decompress(data, SIZE_LIMIT)))
    except (zlib.error, KeyError, TypeError, AttributeError, RecursionError, ValueError) as error:
        raise ValueError("the list of files is not valid: %s" % error) from error


def _checked(tree: Dict[str, Any]) -> Manifest:
    folder = tree["folder"] is True
    files = [File(os.fsencode(path), size, mode, at) for path, size, mode, at in tree["files"]]
    folders = [(os.fsencode(path), mode) for path, mode in tree["folders"]]
    links = [(os.fsencode(path), os.fsencode(target)) for path, target in tree["links"]]
    if not folder and (len(files) != 1 or files[0].path or folders or links):
        raise ValueError("a single file has no others")
    seen: Set[bytes] = set()
    for path in [
        *(f.path for f in files if folder),
        *(p for p, _ in folders),
        *(p for p, _ in links),
    ]:
        if not is_below(path) or path in seen:
            raise ValueError("a name in it is %r" % path)
        seen.add(path)
    for path, target in links:
        if not stays_inside(path, target):
            raise ValueError("a link in it leads to %r" % target)
    for number in [n for f in files for n in f[1:]] + [mode for _, mode in folders]:
        if type(number) is not int or not 0 <= number < 1 << 63:
            raise ValueError("a number in it is %r" % (number,))
    hashes = bytes.fromhex(tree["hashes"])
    found = Manifest(folder=folder, files=files, links=links, folders=folders, hashes=hashes)
    if len(hashes) != HASH * found.blocks:
        raise ValueError("it has %d hashes for %d blocks" % (len(hashes) // HASH, found.blocks))
    return found


def is_below(path: bytes) -> bool:
    """Tell whether a path names something below the root, in one way only."""
    parts = path.split(b"/")
    return b"\0" not in path and not {b"", b".", b".."} & set(parts) and not is_ours(parts[-1])


def is_ours(name: bytes) -> bool:
    """Tell whether a name is of a push's own, and never part of a tree."""
    return name.endswith(PARTIAL) or name.startswith(MARK)


def stays_inside(path: bytes, target: bytes) -> bool:
    """Tell whether a link leads to something below the root, whatever other links there are.

    Upward steps come first, where the folders are real ones; after a name they could start
    anywhere.
    """
    parts = target.split(b"/")
    up = 0
    while up < len(parts) and parts[up] == b"..":
        up += 1
    below = b"/".join(parts[up:])
    return up <= path.count(b"/") and is_below(below)


def read_tree(root: bytes, progress: Callable[[int], None]) -> Manifest:
    """List a path and hash all of it; `progress` receives the bytes as they are hashed.

    Raises:
        OSError: something cannot be read.
        ValueError: something in it cannot be pushed, or it changed meanwhile.
    """
    files: List[File] = []
    links: List[Tuple[bytes, bytes]] = []
    folders: List[Tuple[bytes, int]] = []
    if os.path.isdir(root):
        files, links, folders = _walk(root)
    else:
        files = [_file(root, b"")]
    empty = Manifest(
        folder=os.path.isdir(root), files=files, links=links, folders=folders, hashes=b""
    )

    def hash_block(index: int) -> bytes:
        block = empty.block(index)
        name = files[block.file].path
        with open(os.path.join(root, name) if name else root, "rb", buffering=0) as file:
            data = read_at(file.fileno(), block.offset, block.length)
        if len(data) != block.length:
            raise ValueError("%s became shorter while it was read" % os.fsdecode(name or root))
        progress(len(data))
        return hashlib.sha256(data).digest()

    with hashing() as pool:
        hashes = b"".join(pool.map(hash_block, range(empty.blocks)))
    return Manifest(folder=empty.folder, files=files, links=links, folders=folders, hashes=hashes)


def hashing() -> ThreadPoolExecutor:
    """Return threads that read and hash; Python lets others work meanwhile."""
    return ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1))


def _walk(root: bytes) -> Tuple[List[File], List[Tuple[bytes, bytes]], List[Tuple[bytes, int]]]:
    files: List[File] = []
    links: List[Tuple[bytes, bytes]] = []
    folders: List[Tuple[bytes, int]] = []
    for place, below, names in os.walk(root, onerror=_raise):
        below.sort()
        inner = os.path.relpath(place, root)
        prefix = b"" if inner == b"." else inner + b"/"
        for name in sorted([*names, *below]):
            full, path = os.path.join(place, name), prefix + name
            if is_ours(name):
                continue
            if os.path.islink(full) and stays_inside(path, os.readlink(full)):
                links.append((path, os.readlink(full)))
            elif name not in below:
                files.append(_file(full, path))
            elif os.path.islink(full):
                raise ValueError("%s is a link to a folder elsewhere" % os.fsdecode(full))
            else:
                folders.append((path, stat.S_IMODE(os.stat(full).st_mode) & MODES))
    return files, links, folders


def _file(full: bytes, path: bytes) -> File:
    """Look at a file; a link that leads out of the tree is sent as what it leads to."""
    status = os.stat(full)
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("%s is neither a file, a folder nor a link" % os.fsdecode(full))
    return File(path, status.st_size, stat.S_IMODE(status.st_mode) & MODES, status.st_mtime_ns)


def _raise(error: OSError) -> None:
    raise error


_buffers = threading.local()


def read_at(descriptor: int, offset: int, length: int) -> memoryview:
    """Read bytes at a place; fewer only at the end of the file.

    They are this thread's until it reads again: memory for each block anew would cost as much as
    to read it.
    """
    if not hasattr(_buffers, "block"):
        _buffers.block = bytearray(BLOCK)
    view = memoryview(_buffers.block)[:length]
    filled = 0
    while filled < length:
        count = os.preadv(descriptor, [view[filled:]], offset + filled)
        if not count:
            break
        filled += count
    return view[:filled]
