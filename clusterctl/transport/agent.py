"""The agent as bytes for stdin, and the one constant command that runs it under any login shell.

The login shell of a node may be dash, bash with a noisy rc file, zsh, fish or tcsh. It sees
`COMMAND` only: no value of anyone's, no backslash, no newline, no `!`. Everything else travels on
stdin: a line with the stub, a line with the inventory's interpreter, then counted bytes.
"""

from __future__ import annotations

import functools
import marshal
import re
import secrets
import threading

from clusterctl.node.agent import loader

# /usr/bin/python3 goes first: a `python3` on PATH may be a pyenv or conda shim that takes longer
# to start than the whole agent. `exec` leaves no shell behind to hold the channel open.
COMMAND = (
    "exec /bin/sh -c 'IFS= read -r s; IFS= read -r p; set -- /usr/bin/python3 python3"
    " python3.14 python3.13 python3.12 python3.11 python3.10 python3.9"
    ' "$p"; while [ $# -gt 0 ]; do c=$1; shift; command -v "$c" >/dev/null 2>&1 &&'
    ' exec "$c" -X utf8 -I -S -c "$s" "$s" "$@"; done; exit 97\''
)

NO_PYTHON = 97
"""Exit status of the command where no Python 3.9 or newer was found."""

_STUB = """\
import os, sys
a = sys.argv[2:]
while sys.version_info < (3, 9) and a:
    c = a.pop(0)
    try:
        os.execvp(c, [c, '-X', 'utf8', '-I', '-S', '-c', sys.argv[1], sys.argv[1]] + a)
    except (OSError, ValueError):
        pass
if sys.version_info < (3, 9):
    os._exit(97)
def r(n):
    b = b''
    while len(b) < n:
        d = os.read(0, n - len(b))
        if not d:
            os._exit(98)
        b += d
    return b
import gc, marshal, zlib
m = r(int(r(12)))
s = r(int(r(12)))
c = r(int(r(12)))
if c:
    gc.disable()
s = marshal.loads(s)
g = {'__name__': 'clusterctl.node.agent.loader'}
exec(compile(zlib.decompress(s[g['__name__']]), '<clusterctl>/loader.py', 'exec'), g)
g['install'](s, c)
from clusterctl.node.agent.main import serve
serve(m)
"""

_PLAIN_PATH = re.compile(r"/[A-Za-z0-9._/+@-]+")


_NODE = "clusterctl.node."
_ALWAYS = (
    "clusterctl.own_files",
    "clusterctl.wire",
    *(_NODE + "agent." + name for name in ("call_channel", "child_tasks", "main", "operations")),
)
CHECK_MODULES = (
    *_ALWAYS,
    *(
        _NODE + name
        for name in ("address_family", "event_loop", "file_io", "listener", "program_path")
    ),
    *(
        _NODE + "probe." + name
        for name in (
            "connect", "folders", "interface_addresses", "kernel_log", "listen", "machine_state",
            "path_probe", "peer_probe", "read", "route_lookup", "tokens",
        )
    ),
)  # fmt: skip
"""What every check imports: to compile it takes a node as long as starting Python."""
SYNC_MODULES = (
    *_ALWAYS,
    _NODE + "file_io",
    _NODE + "run_lock",
    *(
        _NODE + "mirror." + name
        for name in (
            "manifest", "mirror", "safe_open", "sync_diff", "sync_lock", "sync_plan", "tree_hash",
        )
    ),
)  # fmt: skip
COMPILED = {
    **dict.fromkeys(("read", "survey"), CHECK_MODULES),
    **dict.fromkeys(("clear", "place", "rsync", "seen", "tree"), SYNC_MODULES),
}
"""What is sent compiled, by operation; nodes with another bytecode use the sources.

One that a node runs once may as well be compiled there: one of us compiles for all nodes.
"""


@functools.cache
def _sources() -> bytes:
    return marshal.dumps(loader.read_sources(), 2)


@functools.cache
def _compiled(modules: tuple[str, ...]) -> bytes:
    return loader.compile_modules(modules)


_reading = threading.Lock()
"""Held while the sources are read: all nodes ask for them at once, and one answer does."""


def fresh_marker() -> bytes:
    """Return bytes that no login shell prints by chance."""
    return b"clusterctl-%s\n" % secrets.token_hex(12).encode()


def opening(marker: bytes, python: str | None, op: str = "") -> bytes:
    """Return what is written to the command's stdin before the first frame.

    Args:
        marker: what the agent prints before its first frame.
        python: the inventory's interpreter, tried last; one whose path is not plain is not.
        op: the operation that the frame will ask for.
    """
    plain = python if python and _PLAIN_PATH.fullmatch(python) else ""
    with _reading:
        sources, compiled = _sources(), _compiled(COMPILED[op]) if op in COMPILED else b""
    lines = f"exec({_STUB!r})\n{plain}\n".encode()
    parts = (marker, sources, compiled)
    return lines + b"".join(b"%12d" % len(part) + part for part in parts)
