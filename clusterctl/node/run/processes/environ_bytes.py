"""Environments as bytes: what a user wrote arrives unchanged, whatever the node's locale.

All that runs on a node runs with `-X utf8`: there `os.fsencode` and `os.fsdecode` carry any bytes
through JSON.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict

    Environment = Dict[bytes, bytes]
else:
    Environment = dict


def original_environment() -> Environment:
    """Return the environment that this process was given.

    Not `os.environb`: under the C locale Python itself adds LC_CTYPE to that.
    """
    with open("/proc/self/environ", "rb") as file:
        return parse_environ(file.read())


def parse_environ(raw: bytes) -> Environment:
    """Return an environment from the form that the kernel shows."""
    return dict(entry.split(b"=", 1) for entry in raw.split(b"\0") if b"=" in entry)
