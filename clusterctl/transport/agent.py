"""The agent as bytes for stdin, and the one constant command that runs it under any login shell.

The login shell of a node may be dash, bash with a noisy rc file, zsh, fish or tcsh. It sees
`COMMAND` only: no value of anyone's, no backslash, no newline, no `!`. Everything else travels on
stdin: a line with the stub, a line with the inventory's interpreter, then counted bytes.
"""

from __future__ import annotations

import functools
import importlib.util
import marshal
import re
import secrets
import threading
import zlib
from collections.abc import Iterator
from types import CodeType
from typing import Any

from clusterctl.node.agent import loader
from clusterctl.node.agent.operations import OPERATIONS
from clusterctl.wire import Message

# /usr/bin/python3 goes first: a `python3` on PATH may be a pyenv or conda shim that takes longer
# to start than the whole agent. `exec` leaves no shell behind to hold the channel open.
COMMAND = (
    "exec /bin/sh -c 'IFS= read -r s; IFS= read -r p; set -- /usr/bin/python3 python3"
    " python3.14 python3.13 python3.12 python3.11 python3.10 python3.9"
    ' "$p"; while [ $# -gt 0 ]; do c=$1; shift; [ -x "$(command -v "$c")" ] &&'
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
import _frozen_importlib_external, gc, marshal, zlib
m, l, i, s, c = [r(int(r(12))) for _ in '12345']
gc.disable()
s = marshal.loads(s)
g = {'__name__': 'clusterctl.node.agent.loader'}
if l[:4] == _frozen_importlib_external.MAGIC_NUMBER:
    l = marshal.loads(l[4:])
else:
    l = compile(zlib.decompress(s[g['__name__']]), '<clusterctl>/loader.py', 'exec')
exec(l, g)
g['install'](s, c, '', i.decode())
from clusterctl.node.agent.main import serve
serve(m)
"""

_PLAIN_PATH = re.compile(r"/[A-Za-z0-9._/+@-]+")


_NODE = "clusterctl.node."
_MAIN = _NODE + "agent.main"
CHECK_MODULES = (
    "clusterctl.own_files",
    "clusterctl.wire",
    *(_NODE + "agent." + name for name in ("call_channel", "child_tasks", "main", "operations")),
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
"""What every check imports; only rare answers of a node need more."""


_WRITES_AGENT = _NODE + "run.operations.start"
"""It writes all of the agent to the node."""


def modules_of(op: str) -> dict[str, CodeType]:
    """Return the code of all that an operation may import, as this Python caches it.

    Of a check, only what every check imports.
    """
    if op in {"read", "collect-facts"}:
        return {name: _code(name) for name in CHECK_MODULES}
    return _all_modules_of(op)


def _all_modules_of(op: str) -> dict[str, CodeType]:
    known = _texts().keys() - {loader.ENTRY}
    wanted = [_MAIN, OPERATIONS[op].partition(":")[0]]
    found: dict[str, CodeType] = {}
    while wanted:
        name = wanted.pop()
        if name in found or name not in known:
            continue
        found[name] = code = _code(name)
        wanted += _imported(code)
    return found


def sources_for(op: str) -> loader.Sources:
    """Return the sources of all that an operation may import, or pass on to another Python."""
    return {name: _source(name) for name in _names_for(op)}


@functools.cache
def _names_for(op: str) -> list[str]:
    needed = _all_modules_of(op).keys() if op else {_WRITES_AGENT}
    if _WRITES_AGENT in needed:
        return [*_texts()]
    probes = _NODE + "probe."
    passes_on = probes + "read" in needed
    return [
        name
        for name in _texts()
        if name == loader.ENTRY or name in needed or (passes_on and name.startswith(probes))
    ]


@functools.cache
def _code(name: str) -> CodeType:
    spec: Any = importlib.util.find_spec(name)
    return _renamed(spec.loader.get_code(name), loader.file_of(name))


def _renamed(code: CodeType, file: str) -> CodeType:
    """Return code whose tracebacks name no file of this machine."""
    inner = (_renamed(one, file) if isinstance(one, CodeType) else one for one in code.co_consts)
    return code.replace(co_filename=file, co_consts=tuple(inner))


def _imported(code: CodeType) -> Iterator[str]:
    """Yield the names of clusterctl's modules that code imports, and some that there are not."""
    for name in code.co_names:
        if name.startswith("clusterctl."):  # a name with a dot is that of an import
            yield name
            yield from (f"{name}.{part}" for part in code.co_names)
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from _imported(one)


@functools.cache
def _texts() -> dict[str, bytes]:
    return loader.read_texts()


@functools.cache
def _identity() -> bytes:
    return loader.identity_of(_texts()).encode()


@functools.cache
def _source(name: str) -> bytes:
    own = _texts()[loader.ENTRY]
    return zlib.compress(own) if name == loader.ENTRY else loader.deflated(_texts()[name], own)


@functools.cache
def compiled_for(op: str, known: frozenset[str] = frozenset()) -> bytes:
    """Return what an operation imports as code objects; nodes with another bytecode compile."""
    had = {name for each in known for name in modules_of(each)}
    codes = {name: marshal.dumps(code) for name, code in modules_of(op).items() if name not in had}
    return loader.MAGIC + zlib.compress(marshal.dumps(codes))


_reading = threading.Lock()
"""Held while the sources are read: all nodes ask for them at once, and one answer does."""


def fresh_marker() -> bytes:
    """Return bytes that no login shell prints by chance."""
    return b"clusterctl-%s\n" % secrets.token_hex(12).encode()


def opening(marker: bytes, python: str | None, op: str = "") -> tuple[bytes, bytes]:
    """Return what is written to the command's stdin before the first frame.

    Args:
        marker: what the agent prints before its first frame.
        python: the inventory's interpreter, tried last; one whose path is not plain is not.
        op: the operation that the frame will ask for.

    Returns:
        What is this node's own, then the modules, the same bytes for all nodes.
    """
    plain = python if python and _PLAIN_PATH.fullmatch(python) else ""
    with _reading:
        modules = modules_for(op)
    return f"exec({_STUB!r})\n{plain}\n".encode() + _sized(marker), modules


def further(op: str, known: frozenset[str]) -> bytes:
    """Return what is written before the frame of a request to an agent that has stayed.

    Args:
        op: the operation that the frame will ask for.
        known: those that it was asked for, whose modules it has.
    """
    with _reading:
        return modules_for(op, known)


@functools.cache
def modules_for(op: str, known: frozenset[str] = frozenset()) -> bytes:
    """Return the sources that an operation needs, and what it imports as it was compiled."""
    had = {name for each in known for name in _names_for(each)}
    sources = {name: _source(name) for name in _names_for(op) if name not in had}
    parts = marshal.dumps(sources, 2), compiled_for(op, known) if op else b""
    if known:
        return Message({"modules": len(parts[0])}, b"".join(parts)).encode()
    compiled_loader = loader.MAGIC + marshal.dumps(_code(loader.ENTRY))
    return b"".join(map(_sized, (compiled_loader, _identity(), *parts)))


def _sized(part: bytes) -> bytes:
    return b"%12d" % len(part) + part
