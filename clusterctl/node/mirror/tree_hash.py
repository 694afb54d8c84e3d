"""What a folder holds, as one value and one hash; the same on the controller and on the nodes.

A tree is regular files, executable files and symbolic links by path; folders are only what the
paths imply. Times, owners and the other permission bits are not part of it.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import zlib
from typing import Dict, NamedTuple, Optional

CHUNK = 1 << 20
FIRST = 1 << 16
"""Most files are small, and room for a large piece costs more than reading a small one."""

FILE, EXECUTABLE, LINK = "f", "x", "l"


class Entry(NamedTuple):
    """One path of a tree."""

    kind: str
    """f, x (executable) or l (link)."""
    digest: str
    """SHA-256 of the content, of a link its target."""


Listing = Dict[bytes, Entry]


def entry_kind(status: os.stat_result) -> Optional[str]:
    """Return the kind of what is there; None for folders and special files."""
    if stat.S_ISLNK(status.st_mode):
        return LINK
    if stat.S_ISREG(status.st_mode):
        # Any x: so does rsync decide what it makes executable.
        return EXECUTABLE if status.st_mode & 0o111 else FILE
    return None


def digest_of(path: bytes, kind: str) -> str:
    """Return the hash of a file's content or of a link's target."""
    if kind == LINK:
        return hashlib.sha256(os.readlink(path)).hexdigest()
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        count = FIRST
        while True:
            data = file.read(count)
            if not data:
                return digest.hexdigest()
            digest.update(data)
            count = CHUNK if len(data) == count else FIRST


def tree_hash(listing: Listing) -> str:
    """Return the one hash of a whole tree."""
    digest = hashlib.sha256()
    for path in sorted(listing):
        entry = listing[path]
        digest.update(b"%s %s %s\0" % (entry.kind.encode(), entry.digest.encode(), path))
    return digest.hexdigest()


def path_text(path: bytes) -> str:
    """Return a path for JSON; any bytes come back by `path_bytes`."""
    return path.decode("utf-8", "surrogateescape")


def path_bytes(path: str) -> bytes:
    """Return the path that `path_text` was made of."""
    return path.encode("utf-8", "surrogateescape")


def encode_listing(listing: Listing) -> bytes:
    """Return a listing as bytes for a message."""
    entries = {path_text(path): list(entry) for path, entry in listing.items()}
    return zlib.compress(json.dumps(entries, separators=(",", ":")).encode(), 1)


def decode_listing(data: bytes) -> Listing:
    """Return the listing that `encode_listing` was given."""
    entries = json.loads(zlib.decompress(data))
    return {path_bytes(path): Entry(*entry) for path, entry in entries.items()}
