"""Notes next to a folder of checkpoints: which runs write there, for runs of other inventories.

No controller knows them all, and their nodes may have no node in common. So on storage that may be
shared each run's master keeps a hidden file up to date: `.NAME.RUN.clusterctl`, in the folder
above, where no program that lists its checkpoints meets it. Where the user cannot write to the
folder above, there is none.

A note has ages, not times: with the time that the storage gave the file, they hold on every clock.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from typing import Any, Dict, Iterator, List, NamedTuple

from clusterctl.node.agent.call_channel import CallChannel
from clusterctl.node.checkpoints import filesystem
from clusterctl.wire import Message, from_json, to_json

TOUCH_SECONDS = 10.0
LIVE_SECONDS = 60.0
"""A note that is older is of a run that is over: storage can be silent for a while."""
KEPT_SECONDS = 90 * 86400.0
_OLDEST = 1e9
SUFFIX = ".clusterctl"

_BYTES = 1024
"""Of a note, padded: it is written at once, so no reader finds a half of one."""
_MOST = 1000
_RUN = re.compile(r"[a-z0-9-]{1,24}-[0-9]{8}t[0-9]{6}-[a-z0-9]{4}")
_SHOWN = ("name", "cluster", "user", "host")
_CHARACTERS = 64


class WriterNote(NamedTuple):
    """A run that writes, or wrote, to a folder; times by this node's clock."""

    run: str
    folder: str
    began: float
    ended: float
    """When it was last seen, if it is not `live`."""
    live: bool
    about: Dict[str, str]
    """`name`, `cluster`, `user` and `host`."""


def keep_note(
    workdir: str, checkpoints: str, run: str, *, age: float, over: bool, about: Dict[str, str]
) -> bool:
    """Tell other runs that this one, which began `age` seconds ago, writes to a folder now.

    Args:
        over: it has ended.
        about: `name`, `cluster`, `user` and `host`.

    Returns:
        Whether that makes sense: on storage of this machine alone, or in a folder that is named
        after the run, no other run can write.

    Raises:
        OSError: the folder above cannot be written to, or is not there yet.
    """
    if not checkpoints or "://" in checkpoints or run in checkpoints:
        return False
    folder = os.path.normpath(os.path.join(workdir, os.path.expanduser(checkpoints)))
    above, name = os.path.split(folder)
    if not filesystem.mount_of(above).may_be_shared:
        return False
    path = os.path.join(above, ".%s.%s%s" % (name, run, SUFFIX))
    shown = {key: value[:_CHARACTERS] for key, value in about.items()}
    data = to_json({"schema": 1, "age": round(age, 3), "over": over, **shown}).strip()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
    try:
        os.pwrite(descriptor, data[: _BYTES - 1].ljust(_BYTES - 1) + b"\n", 0)
    finally:
        os.close(descriptor)
    for old, _, _ in _notes_at(folder):
        with contextlib.suppress(OSError):
            if time.time() - os.lstat(old).st_mtime > KEPT_SECONDS:
                os.unlink(old)
    return True


def noted_writers(folder: str, ahead: float) -> List[WriterNote]:
    """Return the runs that have a note about a folder, one above it, or one in it.

    Args:
        folder: where the checkpoints are.
        ahead: seconds that the storage's clock is ahead of this node's.
    """
    found = []
    now = time.time()
    for path, noted, run in _notes_at(folder):
        with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):
            value, written = _read(path)
            sign, age = written - ahead, float(value["age"])
            if not 0 <= age < _OLDEST:  # nan too
                continue
            about = {key: str(value.get(key) or "")[:_CHARACTERS] for key in _SHOWN}
            over = bool(value.get("over"))
            live = not over and now - sign < LIVE_SECONDS
            ended = sign if over else sign + TOUCH_SECONDS
            found.append(WriterNote(run, noted, sign - age, ended, live, about))
    return found


def checkpoint_writers(args: Dict[str, Any], _body: bytes, _channel: CallChannel) -> Message:
    """The operation `checkpoint-writers`: the runs that write to a folder now.

    Args: `workdir` and `path`, the folder of checkpoints, relative to it or not.
    """
    workdir = os.path.expanduser(args["workdir"])
    folder = os.path.normpath(os.path.join(workdir, os.path.expanduser(args["path"])))
    notes = [note for note in noted_writers(folder, filesystem.clock_skew(folder)) if note.live]
    return Message({"writers": [{"run": note.run, **note.about} for note in notes]})


def _notes_at(folder: str) -> Iterator[tuple[str, str, str]]:
    """Yield each note's path, the folder that it is about, and its run."""
    wanted, above = os.path.normpath(folder), os.path.normpath(folder)
    places = [(wanted, "")]
    while above != os.path.dirname(above):
        above, name = os.path.split(above)
        places.append((above, name))
    for place, name in places:
        with contextlib.suppress(OSError), os.scandir(place) as entries:
            count = 0
            for entry in entries:
                start, _, run = entry.name[: -len(SUFFIX)].rpartition(".")
                if not entry.name.endswith(SUFFIX) or not _RUN.fullmatch(run):
                    continue
                if name in ("", start[1:]) and (count := count + 1) <= _MOST:
                    yield entry.path, os.path.join(place, start[1:]), run


def _read(path: str) -> tuple[Dict[str, Any], float]:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError(path)
        value = from_json(os.read(descriptor, _BYTES).strip())
    finally:
        os.close(descriptor)
    if not isinstance(value, dict):
        raise TypeError(path)
    return value, status.st_mtime
