"""Reads the small files of a folder as one answer: /sys has a file for each value."""

from __future__ import annotations

import os

from clusterctl.node.file_io import list_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable, List

VALUE_LIMIT = 4096


def read_folder(folder: str, names: Iterable[str]) -> bytes:
    """Return a line `NAME VALUE` for each of these files; those that cannot be read have none."""
    lines: List[bytes] = []
    for name in names:
        try:
            descriptor = os.open(folder + "/" + name, os.O_RDONLY)
        except OSError:
            continue
        try:
            value = os.read(descriptor, VALUE_LIMIT)
        except OSError:
            continue  # such as the speed of a link that is down
        finally:
            os.close(descriptor)
        lines.append(os.fsencode(name) + b" " + b" ".join(value.split()) + b"\n")
    return b"".join(lines)


def matching(pattern: str) -> List[str]:
    """Return the paths that match a pattern, sorted; a `*` stands for any part of one name."""
    found = [""]
    for part in pattern.lstrip("/").split("/"):
        head, star, tail = part.partition("*")
        if not star:
            found = [path + "/" + part for path in found]
            continue
        found = [
            path + "/" + name
            for path in found
            for name in list_folder(path or "/")
            if name.startswith(head) and name.endswith(tail) and not name.startswith(".")
        ]
    return [path for path in found if os.path.lexists(path)]
