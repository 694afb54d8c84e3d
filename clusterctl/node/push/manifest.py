"""What a pushed path consists of: its files with their sizes, modes and the hashes of all blocks.

The source makes it, the controller carries it, and every other node takes only what is safe: names
below the path, and links that stay in it.
"""

from __future__ import annotations

import bisect
import hashlib
import os
import re
import stat
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Callable, List, NamedTuple, Optional, Set, Tuple

BLOCK = 8 << 20
"""Bytes of a block. Each node of the chain holds a few, and a chain of eight fills in eight."""
HASH = 32
"""Bytes of a SHA-256, which today's CPUs compute faster than BLAKE2."""
THREADS = 4
PARTIAL = b".clusterctl-partial"
"""How the names of files end that are not whole yet."""
MARK = b".clusterctl-push-"
"""How the names of files begin by which nodes find that they share a folder."""
MAX_ENTRIES = 500_000
"""Files, folders and links of a path: each takes memory of every node, where trainings run."""
SIZE_LIMIT = 128 << 20
"""Bytes of an inflated manifest: so many entries with paths of 200 bytes."""
DEFLATED_LIMIT = 48 << 20
"""Bytes of a deflated one, which the controller holds: 12 TiB."""
_FILE = re.compile(rb"f(\d{1,19}) (\d{1,4}) (\d{1,19}) (.*)", re.DOTALL)
_FOLDER = re.compile(rb"d(\d{1,4}) (.*)", re.DOTALL)
_LINK = re.compile(rb"l(\d{1,5}) (.*)", re.DOTALL)
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


class TooManyFilesError(ValueError):
    """A path has more files than a push takes."""


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

    @property
    def content(self) -> str:
        """A hash that trees share if their names, links and contents are equal."""
        digest = hashlib.sha256(self.hashes)
        for file in self.files:
            digest.update(b"f%d %s\0" % (file.size, file.path))
        for path, target in self.links:
            digest.update(b"l%d %s%s\0" % (len(path), path, target))
        for path, _ in self.folders:
            digest.update(b"d%s\0" % path)
        return digest.hexdigest()

    def encode(self) -> bytes:
        """Return it as bytes; raise TooManyFilesError if no node would take it."""
        lines = [b"folder" if self.folder else b"file"]
        lines += [b"f%d %d %d %s" % (f.size, f.mode, f.mtime_ns, f.path) for f in self.files]
        lines += [b"d%d %s" % (mode, path) for path, mode in self.folders]
        lines += [b"l%d %s%s" % (len(path), path, target) for path, target in self.links]
        text = b"\0".join([*lines, b"", self.hashes])
        if len(lines) > MAX_ENTRIES + 1 or len(text) > SIZE_LIMIT:
            words = "its list of %d files, folders and links has %d bytes; a push takes %d and %d"
            raise TooManyFilesError(words % (len(lines) - 1, len(text), MAX_ENTRIES, SIZE_LIMIT))
        deflated = zlib.compress(text, 1)
        if len(deflated) > DEFLATED_LIMIT:
            words = "its list of files and hashes has %d bytes when deflated; a push takes %d"
            raise TooManyFilesError(words % (len(deflated), DEFLATED_LIMIT))
        return deflated


def blocks_of(size: int) -> int:
    """Return how many blocks a file of a size has."""
    return -(-size // BLOCK)


def decode(data: bytes) -> Manifest:
    """Read a manifest that came from another machine."""
    inflater = zlib.decompressobj()
    try:
        text, _, hashes = inflater.decompress(data, SIZE_LIMIT).partition(b"\0\0")
        if inflater.unconsumed_tail:
            raise ValueError("it has more than %d bytes" % SIZE_LIMIT)  # noqa: TRY301
        if text.count(b"\0") > MAX_ENTRIES:
            raise ValueError("it has more than %d entries" % MAX_ENTRIES)  # noqa: TRY301
        return _checked(_parsed(text.split(b"\0"), hashes))
    except (zlib.error, ValueError) as error:
        raise ValueError("the list of files is not valid: %s" % error) from error


def _parsed(lines: List[bytes], hashes: bytes) -> Manifest:
    folder = {b"folder": True, b"file": False}.get(lines[0])
    if folder is None:
        raise ValueError("it begins with %r" % lines[0][:20])
    files: List[File] = []
    folders: List[Tuple[bytes, int]] = []
    links: List[Tuple[bytes, bytes]] = []
    for line in lines[1:]:
        if found := _FILE.fullmatch(line):
            size, mode, at = (int(word) for word in found.groups()[:3])
            if max(size, at) >= 1 << 63:
                raise ValueError("a number in it is too large")
            files.append(File(found[4], size, mode, at))
        elif found := _FOLDER.fullmatch(line):
            folders.append((found[2], int(found[1])))
        elif found := _LINK.fullmatch(line):
            length = int(found[1])
            links.append((found[2][:length], found[2][length:]))
        else:
            raise ValueError("a line in it is %r" % line[:100])
    return Manifest(folder=folder, files=files, links=links, folders=folders, hashes=hashes)


def _checked(tree: Manifest) -> Manifest:
    if not tree.folder and (
        len(tree.files) != 1 or tree.files[0].path or tree.folders or tree.links
    ):
        raise ValueError("a single file has no others")
    seen: Set[bytes] = set()
    for path in [
        *(f.path for f in tree.files if tree.folder),
        *(p for p, _ in tree.folders),
        *(p for p, _ in tree.links),
    ]:
        if not is_below(path) or path in seen:
            raise ValueError("a name in it is %r" % path)
        seen.add(path)
    for path, target in tree.links:
        if not stays_inside(path, target):
            raise ValueError("a link in it leads to %r" % target)
    if len(tree.hashes) != HASH * tree.blocks:
        count = len(tree.hashes) // HASH
        raise ValueError("it has %d hashes for %d blocks" % (count, tree.blocks))
    return tree


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


def read_tree(
    root: bytes, progress: Callable[[int], None], left_out: Optional[List[bytes]] = None
) -> Manifest:
    """List a path and hash all of it; `progress` receives the bytes as they are hashed.

    `left_out` gets what cannot be pushed; None: that is an error.

    Raises:
        OSError: something cannot be read.
        ValueError: something in it cannot be pushed, or it changed meanwhile.
    """
    files: List[File] = []
    links: List[Tuple[bytes, bytes]] = []
    folders: List[Tuple[bytes, int]] = []
    if os.path.isdir(root):
        files, links, folders = walk(root, left_out)
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


def walk(
    root: bytes, left_out: Optional[List[bytes]] = None
) -> Tuple[List[File], List[Tuple[bytes, bytes]], List[Tuple[bytes, int]]]:
    """List the files, links and folders below a folder, as `read_tree` does."""
    files: List[File] = []
    links: List[Tuple[bytes, bytes]] = []
    folders: List[Tuple[bytes, int]] = []
    unread: List[OSError] = []
    for place, below, names in os.walk(root, onerror=unread.append):
        below.sort()
        inner = os.path.relpath(place, root)
        prefix = b"" if inner == b"." else inner + b"/"
        if len(files) + len(folders) + len(links) + len(names) + len(below) > MAX_ENTRIES:
            words = "it has more than %d files, folders and links" % MAX_ENTRIES
            raise TooManyFilesError(words)
        for name in sorted([*names, *below]):
            full, path = os.path.join(place, name), prefix + name
            if is_ours(name):
                continue
            try:
                if os.path.islink(full) and stays_inside(path, os.readlink(full)):
                    links.append((path, os.readlink(full)))
                elif name in below and not os.path.islink(full):
                    folders.append((path, stat.S_IMODE(os.stat(full).st_mode) & MODES))
                else:
                    files.append(_file(full, path))
            except (OSError, ValueError):
                if left_out is None:
                    raise
                left_out.append(path)
    shut = _shut(root, unread, left_out)
    return files, links, [one for one in folders if one[0] not in shut]


def _shut(root: bytes, unread: List[OSError], left_out: Optional[List[bytes]]) -> Set[bytes]:
    """Return the folders below that cannot be listed, which are left out."""
    shut = {os.path.relpath(error.filename, root) for error in unread}
    if unread and (left_out is None or b"." in shut):
        raise unread[0]
    if left_out is not None:
        left_out += sorted(shut.difference(left_out))
    return shut


def _file(full: bytes, path: bytes) -> File:
    """Look at a file; a link that leads out of the tree is sent as what it leads to."""
    status = os.stat(full)
    if stat.S_ISDIR(status.st_mode):
        raise ValueError("%s is a link to a folder elsewhere" % os.fsdecode(full))
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("%s is neither a file, a folder nor a link" % os.fsdecode(full))
    mode, at = stat.S_IMODE(status.st_mode) & MODES, max(status.st_mtime_ns, 0)
    return File(path, status.st_size, mode, at)


_buffers = threading.local()


def read_at(descriptor: int, offset: int, length: int) -> memoryview:
    """Read bytes at a place; fewer only at the end of the file.

    They are this thread's until it reads again: new memory for each block would cost as much as
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
