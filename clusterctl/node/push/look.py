"""A look at paths before they are hashed: what each is, and whether nodes see the same files."""

from __future__ import annotations

import hashlib
import os
import stat
from typing import Any, Dict, List, Tuple

from clusterctl.node.agent.call_channel import CallChannel
from clusterctl.node.push.manifest import walk
from clusterctl.wire import Message

READ_FILES = 1000
"""Files of which both ends are read."""
END_BYTES = 4096


def look(args: Dict[str, Any], body: bytes, channel: CallChannel) -> Message:
    """Say of each of the `paths` whether it exists, its bytes and files, and its `sketch`.

    Equal sketches are the same files on one filesystem: their names, sizes, times, inodes and ends
    are equal. An inode alone is no proof, as disks of one image number their files alike.
    """
    del body, channel
    return Message({"found": [_look_at(os.path.expanduser(path)) for path in args["paths"]]})


def _look_at(text: str) -> Dict[str, Any]:
    path = os.fsencode(text)
    if not os.path.lexists(path):
        return {"exists": False}
    try:
        names = [file.path for file in walk(path, [])[0]] if os.path.isdir(path) else [b""]
        size, sketch = _sketched([os.path.join(path, name) if name else path for name in names])
    except ValueError as error:
        return {"exists": True, "problem": str(error)}
    except OSError as error:
        name = os.fsdecode(error.filename or path)
        return {"exists": True, "problem": "%s: %s" % (name, error.strerror)}
    return {"exists": True, "bytes": size, "files": len(names), "sketch": sketch}


def _sketched(paths: List[bytes]) -> Tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    for number, path in enumerate(paths):
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):  # a pipe would block
            raise ValueError("%s is neither a file nor a folder" % os.fsdecode(path))
        size += status.st_size
        numbers = (status.st_size, status.st_mtime_ns, status.st_ino)
        digest.update(b"%d %d %d %s\0" % (*numbers, os.path.basename(path)))
        if number < READ_FILES:
            with open(path, "rb", buffering=0) as file:
                digest.update(file.read(END_BYTES))
                file.seek(max(status.st_size - END_BYTES, 0))
                digest.update(file.read(END_BYTES))
    return size, digest.hexdigest()
