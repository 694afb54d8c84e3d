"""The agent's sources as one value: read from files, imported from memory, written as a program.

The controller sends them on stdin, where nothing is installed; a run keeps them as one file in
its folder, so that it is looked after by the same code for as long as it lives. What its processes
compile is kept for later runs, as Python keeps .pyc files with the hash of their source.
"""

from __future__ import annotations

import _frozen_importlib_external
import _imp
import binascii
import marshal
import os
import stat
import sys
import zlib

TYPE_CHECKING = False
# Not imported while running, here and in all that every call needs: `typing`, `importlib`, `json`,
# `socket`, `threading` and what they import take a node longer to start than Python itself.
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import CodeType, ModuleType
    from typing import Dict, List, Optional, Sequence, Set

    Sources = Dict[str, bytes]
    """Module name → its source, deflated, with the loader's own text as zlib's dictionary.

    Each is inflated and compiled only when imported.
    """
else:
    ModuleSpec, ModuleType = type(sys.__spec__), type(sys)

ENTRY = "clusterctl.node.agent.loader"

MAGIC: bytes = _frozen_importlib_external.MAGIC_NUMBER
"""Of the bytecode: Pythons with the same one run the same code objects, as with .pyc files."""

_HASH_BYTES = 8
_KEPT_LIMIT = 1024 * 1024
_ROOM = 64 * 1024 * 1024
"""Free bytes below which nothing is kept: what a run needs goes first."""

_installed: Optional[Importer] = None


class Importer:
    """Imports the agent's modules from memory."""

    def __init__(
        self, sources: Sources, compiled: bytes = b"", kept: str = "", identity: str = ""
    ) -> None:
        self.kept = kept
        """The folder that holds what was compiled; empty: there is none."""
        self.identity = identity
        """Of the whole agent, of which these sources may be a part: see `identity_of`."""
        self.codes: Dict[str, bytes] = {}
        self.sources: Sources = {}
        self.packages: Set[str] = set()
        self.take(sources, compiled)
        self._own = zlib.decompress(sources[ENTRY])

    def take(self, sources: Sources, compiled: bytes) -> None:
        """Take what an operation needs, too; what another Python compiled is of no use."""
        self.sources.update(sources)
        self.packages.update(package for name in sources for package in _packages_of(name))
        if compiled.startswith(MAGIC):
            codes = zlib.decompress(compiled[len(MAGIC) :])
            self.codes.update(marshal.loads(codes))  # noqa: S302  (clusterctl's)

    def find_spec(
        self, name: str, path: Optional[Sequence[str]] = None, target: Optional[ModuleType] = None
    ) -> Optional[ModuleSpec]:
        """Answer the import system for the names that are ours."""
        del path, target
        package = name in self.packages
        if not package and name not in self.sources:
            return None
        origin = file_of(name)
        spec = ModuleSpec(name, self, origin=origin, is_package=package)  # type: ignore[arg-type]
        spec.has_location = True
        return spec

    def create_module(self, spec: ModuleSpec) -> Optional[ModuleType]:
        """Leave the making of the module to the import system."""
        del spec
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Run a module: what the controller or an earlier process compiled, else its source."""
        name = module.__name__
        code = self.codes.get(name) or self.read_kept(name)
        if code:
            exec(marshal.loads(code), module.__dict__)  # noqa: S102, S302  (clusterctl's)
        elif name not in self.packages:
            compiled = self.compile(name)
            exec(compiled, module.__dict__)  # noqa: S102
            self.keep({name: marshal.dumps(compiled)})

    def read_kept(self, name: str) -> bytes:
        """Return the code of a module if file and folder are this user's alone, else nothing."""
        if not self.kept or name in self.packages:
            return b""
        path = self._kept_file(name)
        try:
            with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb", 0) as file:
                folder, seen = os.lstat(self.kept), os.fstat(file.fileno())
                if not (stat.S_ISDIR(folder.st_mode) and stat.S_ISREG(seen.st_mode)):
                    return b""
                if any(one.st_uid != os.getuid() or one.st_mode & 0o022 for one in (folder, seen)):
                    return b""
                data = file.read(_KEPT_LIMIT)
        except OSError:
            return b""
        code = data[2 * _HASH_BYTES :]
        whole = data[: 2 * _HASH_BYTES] == _hash(self.sources[name]) + _hash(code)
        return code if whole else b""

    def keep(self, codes: Dict[str, bytes]) -> None:
        """Keep compiled modules; where there is no room or no private folder, none from now on."""
        if not self.kept:
            return
        from clusterctl.own_files import make_private, replace_file  # noqa: PLC0415

        try:
            make_private(os.path.dirname(self.kept), self.kept)
            room = os.statvfs(self.kept)
            if room.f_bavail * room.f_frsize < _ROOM:
                self.kept = ""
                return
            for name, code in codes.items():
                replace_file(self._kept_file(name), _hash(self.sources[name]) + _hash(code) + code)
        except OSError:
            self.kept = ""

    def _kept_file(self, name: str) -> str:
        return "%s/%s.%s" % (self.kept, name, MAGIC[:2].hex())

    def compile(self, name: str) -> CodeType:
        """Return the code object of a module's source."""
        return compile(self.get_source(name), file_of(name), "exec", dont_inherit=True)

    def get_source(self, name: str) -> str:
        """Return a module's text, for tracebacks too."""
        return zlib.decompressobj(zdict=self._own).decompress(self.sources[name]).decode()


def _hash(data: bytes) -> bytes:
    """Return Python's own hash of sources, of another bytecode another one."""
    return _imp.source_hash(int.from_bytes(MAGIC, "little"), data)


def _packages_of(name: str) -> List[str]:
    words = name.split(".")
    return [".".join(words[:count]) for count in range(1, len(words))]


def file_of(name: str) -> str:
    """Return what tracebacks call the file of a module."""
    return "<clusterctl>/" + name.replace(".", "/") + ".py"


def install(sources: Sources, compiled: bytes = b"", kept: str = "", identity: str = "") -> None:
    """Let this process import the agent's modules from `sources`, or as they were compiled."""
    global _installed  # noqa: PLW0603  (one agent a process, by nature)
    _installed = Importer(sources, compiled, kept, identity)
    sys.meta_path.insert(0, _installed)
    # This text was run before it could be imported; the module must know what is installed.
    sys.modules[ENTRY] = ModuleType(ENTRY)
    sys.modules[ENTRY].__dict__.update(globals(), __name__=ENTRY)


def add(modules: bytes, size: int) -> None:
    """Take what a further operation needs: so many bytes of sources, then compiled modules."""
    if _installed is not None:
        _installed.take(marshal.loads(modules[:size]), modules[size:])  # noqa: S302  (clusterctl's)


def read_sources() -> Sources:
    """Return the agent's modules: those this process runs from, else the files of `node/`."""
    if _installed is not None:
        return _installed.sources
    texts = read_texts()
    own = texts[ENTRY]
    sources = {name: deflated(text, own) for name, text in texts.items() if name != ENTRY}
    return {ENTRY: zlib.compress(own), **sources}


def read_texts() -> Dict[str, bytes]:
    """Return the text of each of the agent's modules, from the files of `node/`."""
    top = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    files = [os.path.join(top, name) for name in ("own_files.py", "wire.py")]
    for folder, folders, names in os.walk(os.path.join(top, "node")):
        folders.sort()
        found = (name for name in sorted(names) if name.endswith(".py") and name != "__init__.py")
        files += [os.path.join(folder, name) for name in found]
    texts = {}
    for path in files:
        name = "clusterctl" + path[len(top) : -len(".py")].replace(os.sep, ".")
        with open(path, "rb") as file:
            texts[name] = file.read()
    return texts


def identity_of(texts: Dict[str, bytes]) -> str:
    """Return what tells an agent from one of another version: a hash of all its modules' texts."""
    import hashlib  # noqa: PLC0415  (a node gets it from the controller)

    return hashlib.sha256(marshal.dumps(sorted(texts.items()), 2)).hexdigest()


def deflated(text: bytes, own: bytes) -> bytes:
    """Return a module's text as it is sent, by the loader's own text."""
    deflate = zlib.compressobj(zdict=own)
    return deflate.compress(text) + deflate.flush()


def program(modules: Sequence[str] = (), kept: str = "") -> bytes:
    """Return the agent, or only some modules of it, as the text of one file.

    `python3 -X utf8 -I -S FILE module:function ARG…` calls the function with the arguments. A few
    modules are short enough for `python3 -c TEXT`.

    Args:
        modules: which; empty: all.
        kept: the folder in which its processes keep what they compile; empty: nowhere.
    """
    sources = read_sources()
    if modules:
        sources = {name: sources[name] for name in (ENTRY, *modules)}
    if _installed is not None and kept and not os.path.lexists(kept):
        _installed.kept = kept
        _installed.keep(_installed.codes)  # those that the controller compiled
    return text_of(sources, _own_identity(), kept)


def text_of(sources: Sources, identity: str, kept: str = "") -> bytes:
    """Return the program that imports its modules from these."""
    data = marshal.dumps(dict(sorted(sources.items())), 2)  # in whatever order they came
    return _PROGRAM % (identity.encode(), binascii.b2a_base64(data, newline=False), kept)


def _own_identity() -> str:
    return identity_of(read_texts()) if _installed is None else _installed.identity


def is_this_agent(begin: bytes) -> bool:
    """Tell by its first bytes whether a program is the agent that this process is a part of."""
    return begin.startswith(_FIRST % _own_identity().encode())


FIRST_BYTES = 128
_FIRST = b'identity = "%s"\n'
# Python reads a long text in base64 ten times as fast as one with `\\x00`.
_PROGRAM = (
    _FIRST
    + b"""import binascii, marshal, sys, zlib
sources = marshal.loads(binascii.a2b_base64(b"%s"))
kept = %a
space = {"__name__": "clusterctl.node.agent.loader"}
exec(compile(zlib.decompress(sources[space["__name__"]]), "<clusterctl>/loader.py", "exec"), space)
space["install"](sources, kept=kept, identity=identity)
module, _, function = sys.argv[1].partition(":")
sys.exit(getattr(__import__(module, fromlist=[function]), function)(*sys.argv[2:]))
"""
)
