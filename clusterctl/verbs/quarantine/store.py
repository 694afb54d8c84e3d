"""The file of the quarantine on this machine: read, and changed by one process at a time.

    <state>/quarantine.json       of all clusters; readable by this user only
    <state>/quarantine.json.lock  held by the process that changes it

A file that cannot be read is never replaced: it may be of a later version.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path

from clusterctl.errors import ClusterError
from clusterctl.model.from_json import DocumentError, from_json
from clusterctl.own_files import make_private
from clusterctl.state_folder import ANOTHER_FOLDER, locked
from clusterctl.verbs.quarantine.entries import Entries, Entry
from clusterctl.verbs.runs.records import write_private
from clusterctl.wire import SCHEMA, plain

FILE = "quarantine.json"
MOST_BYTES = 16 << 20
"""More than the entries can take: of a reason's characters, JSON makes up to 12 bytes each."""


def read_entries(root: Path) -> Entries:
    """Return all entries, none without a file; ClusterError if it cannot be read."""
    path = root / FILE
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        raise _unreadable(
            path, str(error.strerror), f"make it readable, or {ANOTHER_FOLDER}"
        ) from error
    aside = shlex.join(["mv", str(path), f"{path}.old"])
    hint = f"to begin with an empty quarantine: {aside}"
    if len(data) > MOST_BYTES:
        raise _unreadable(path, f"expected at most {MOST_BYTES} bytes, found more", hint)
    try:
        document = json.loads(data.decode())
        schema = from_json(int, document.get("schema"), "schema")
        if schema > SCHEMA:
            wanted = f"expected schema {SCHEMA}, found {schema}, of a later clusterctl"
            raise _unreadable(path, wanted, f"use that version; or {hint}")
        found: Entries = from_json(tuple[Entry, ...], document.get("entries"), "entries")
    except (DocumentError, ValueError, AttributeError, RecursionError) as error:
        raise _unreadable(path, f"it is damaged: {error}", hint) from error
    return found


def change_entries(root: Path, change: Callable[[Entries], Entries]) -> Entries:
    """Replace the entries by what `change` makes of them; return those."""
    path = root / FILE
    try:
        make_private(root)
        with locked(path):
            old = read_entries(root)
            new = change(old)
            if new != old:
                document = {"schema": SCHEMA, "entries": plain(new)}
                write_private(path, json.dumps(document, indent=1) + "\n")
    except OSError as error:
        hint = getattr(error, "hint", "") or f"make it writable, or {ANOTHER_FOLDER}"
        raise ClusterError(f"cannot write {path}: {error.strerror}", hint=hint) from error
    return new


def _unreadable(path: Path, why: str, hint: str) -> ClusterError:
    return ClusterError(f"cannot read {path}, the nodes in quarantine: {why}", hint=hint)
