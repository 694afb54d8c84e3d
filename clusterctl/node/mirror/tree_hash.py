"""What a folder holds, as one value and one hash; the same on the controller and on the nodes.

A tree is regular files, executable files and symbolic links by path; folders are only what the
paths imply. Times, owners and the other permission bits are not part of it.
"""

from __future__ import annotations

import os
import stat
import zlib
from collections import namedtuple

from clusterctl.wire import from_json, to_json

CHUNK = 1 << 20
FIRST = 1 << 16
"""Most files are small, and room for a large piece costs more than reading a small one."""

FILE, EXECUTABLE, LINK = "f", "x", "l"


TYPE_CHECKING = False
if TYPE_CHECKING:
    from hashlib import sha256
    from typing import Dict, NamedTuple, Optional

    class Entry(NamedTuple):
        """One path of a tree."""

        kind: str
        """f, x (executable) or l (link)."""
        digest: str
        """SHA-256 of the content, of a link its target."""

    Listing = Dict[bytes, Entry]
else:
    Entry, Listing = namedtuple("Entry", "kind digest"), dict  # noqa: PYI024
    # Python's own SHA-256: `hashlib` loads OpenSSL, which takes long.
    try:
        from _sha2 import sha256  # Python 3.12 and newer
    except ImportError:
        try:
            from _sha256 import sha256
        except ImportError:
            from hashlib import sha256


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
        return sha256(os.readlink(path)).hexdigest()
    with open(path, "rb", buffering=0) as file:
        data = file.read(FIRST)
        if len(data) < FIRST:
            return sha256(data + file.read()).hexdigest()
        import hashlib  # noqa: PLC0415  (OpenSSL's is quicker, and takes time to load)

        digest = hashlib.sha256(data)
        while data:
            data = file.read(CHUNK)
            digest.update(data)
        return digest.hexdigest()


def tree_hash(listing: Listing) -> str:
    """Return the one hash of a whole tree."""
    digest = sha256()
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
    return zlib.compress(to_json(entries), 1)


def decode_listing(data: bytes) -> Listing:
    """Return the listing that `encode_listing` was given."""
    entries = from_json(zlib.decompress(data))
    return {path_bytes(path): Entry(*entry) for path, entry in entries.items()}
