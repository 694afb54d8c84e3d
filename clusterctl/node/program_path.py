"""Finds the file of a program on PATH, as a shell does."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional


def find_program(word: bytes, path: bytes) -> Optional[bytes]:
    """Return the file that the first word of a command names; None: there is none."""
    if b"/" in word:
        return word if os.path.exists(word) else None
    for folder in path.split(b":"):
        candidate = os.path.join(folder or b".", word)
        if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
            return candidate
    return None


def broken_link(path: bytes) -> str:
    """Return that a path leads to a file that is not there, or not for this user; else nothing."""
    target = os.path.realpath(path)
    if b"/" not in path or target == os.path.abspath(path):
        return ""
    shown = target.decode("utf-8", "backslashreplace")
    return " (it leads to %s, which this user does not find)" % shown
