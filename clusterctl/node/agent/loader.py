"""The agent's sources as one value: read from files, imported from memory, written as a program.

The controller sends them on stdin, where nothing is installed; a run keeps them as one file in
its folder, so that it is looked after by the same code for as long as it lives.
"""

from __future__ import annotations

import _frozen_importlib_external
import binascii
import marshal
import os
import sys
import zlib

TYPE_CHECKING = False
# Not imported while running, here and in all that every call needs: `typing`, `importlib`, `json`,
# `socket`, `threading` and what they import take a node longer to start than Python itself.
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import CodeType, ModuleType
    from typing import Dict, List, Optional, Sequence

    Sources = Dict[str, bytes]
    """Module name → its source, deflated, with the loader's own text as zlib's dictionary.

    Each is inflated and compiled only when imported.
    """
else:
    ModuleSpec, ModuleType = type(sys.__spec__), type(sys)

ENTRY = "clusterctl.node.agent.loader"

MAGIC: bytes = _frozen_importlib_external.MAGIC_NUMBER
"""Of the bytecode: Pythons with the same one run the same code objects, as with .pyc files."""

_installed: Optional[Importer] = None


class Importer:
    """Imports the agent's modules from memory."""

    def __init__(self, sources: Sources, compiled: bytes = b"") -> None:
        self.compiled = b""
        self.codes: Dict[str, bytes] = {}
        self.take(sources, compiled)
        self._own = zlib.decompress(sources[ENTRY])

    def take(self, sources: Sources, compiled: bytes) -> None:
        """Take what an operation needs; what another Python compiled is of no use."""
        self.sources = sources
        self.packages = {package for name in sources for package in _packages_of(name)}
        if compiled.startswith(MAGIC):
            self.compiled = compiled
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
        """Run a module: what the controller compiled, else its source."""
        name = module.__name__
        if name in self.codes:
            exec(marshal.loads(self.codes[name]), module.__dict__)  # noqa: S102, S302  (clusterctl's)
        elif name not in self.packages:
            exec(self.compile(name), module.__dict__)  # noqa: S102

    def compile(self, name: str) -> CodeType:
        """Return the code object of a module's source."""
        return compile(self.get_source(name), file_of(name), "exec", dont_inherit=True)

    def get_source(self, name: str) -> str:
        """Return a module's text, for tracebacks too."""
        return zlib.decompressobj(zdict=self._own).decompress(self.sources[name]).decode()


def _packages_of(name: str) -> List[str]:
    words = name.split(".")
    return [".".join(words[:count]) for count in range(1, len(words))]


def file_of(name: str) -> str:
    """Return what tracebacks call the file of a module."""
    return "<clusterctl>/" + name.replace(".", "/") + ".py"


def install(sources: Sources, compiled: bytes = b"") -> None:
    """Let this process import the agent's modules from `sources`, or as they were `compiled`."""
    global _installed  # noqa: PLW0603  (one agent a process, by nature)
    _installed = Importer(sources, compiled)
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
    own = texts.pop(ENTRY)
    sources = {ENTRY: zlib.compress(own)}
    for name, text in texts.items():
        deflate = zlib.compressobj(zdict=own)
        sources[name] = deflate.compress(text) + deflate.flush()
    return sources


def program(modules: Sequence[str] = ()) -> bytes:
    """Return the agent, or only some modules of it, as the text of one file.

    `python3 -X utf8 -I -S FILE module:function ARG…` calls the function with the arguments. A few
    modules are short enough for `python3 -c TEXT`. All of them come as this process has them:
    compiled too, if they came so.
    """
    sources = read_sources()
    compiled = b""
    if modules:
        sources = {name: sources[name] for name in (ENTRY, *modules)}
    elif _installed is not None:
        compiled = _installed.compiled
    return text_of(sources, compiled)


def text_of(sources: Sources, compiled: bytes = b"") -> bytes:
    """Return the program that imports its modules from these."""
    parts = (marshal.dumps(sources, 2), compiled)
    return _PROGRAM % tuple(binascii.b2a_base64(part, newline=False) for part in parts)


def is_this_agent(text: bytes) -> bool:
    """Tell whether a program has the sources of this process, compiled or not."""
    return text.partition(_COMPILED)[0] == program().partition(_COMPILED)[0]


_COMPILED = b"\ncompiled = "
# Python reads a long text in base64 ten times as fast as one with `\\x00`.
_PROGRAM = b"""import binascii, marshal, sys, zlib
sources = marshal.loads(binascii.a2b_base64(b"%s"))
compiled = binascii.a2b_base64(b"%s")
space = {"__name__": "clusterctl.node.agent.loader"}
exec(compile(zlib.decompress(sources[space["__name__"]]), "<clusterctl>/loader.py", "exec"), space)
space["install"](sources, compiled)
module, _, function = sys.argv[1].partition(":")
sys.exit(getattr(__import__(module, fromlist=[function]), function)(*sys.argv[2:]))
"""
