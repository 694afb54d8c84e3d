"""The kinds of field in a hosts.yaml: the reader of the value, and its JSON Schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, get_args

from clusterctl.inventory import cluster, readers

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """What a key takes; a list or a mapping has a kind of its items, too."""

    read: Callable[[object], Any]
    schema: Mapping[str, object]
    items: Kind[Any] | None = None
    names: Kind[str] | None = None
    """Of a mapping."""


def _list(items: Kind[str], read: Callable[[object], object]) -> Kind[tuple[str, ...]]:
    return Kind(read, {"type": "array", "items": items.schema}, items)


def _mapping(names: Kind[str], wanted: str) -> Kind[dict[str, str]]:
    schema = {"type": "object", "patternProperties": {names.schema["pattern"]: WORD.schema}}
    return Kind(readers.shape(dict, wanted), schema, WORD, names)


def _whole(low: int, high: int) -> Kind[int]:
    schema = {"type": "integer", "minimum": low, "maximum": high}
    return Kind(readers.whole_number(low, high), schema)


def _matching(read: Callable[[object], str], pattern: str) -> Kind[str]:
    return Kind(read, {"type": "string", "pattern": pattern})


def _string(read: Callable[[object], T]) -> Kind[T]:
    return Kind(read, {"type": "string", "minLength": 1})


_SIGNALS = [*readers.SIGNALS, *(f"SIG{name}" for name in readers.SIGNALS)]
_VIAS, _LAUNCHERS = get_args(cluster.Via), get_args(cluster.LauncherName)
_GPUS = {"anyOf": [{"const": "auto"}, {"type": "integer", "minimum": 0, "maximum": 256}]}

NAME = _matching(readers.read_name, f"^{readers.CLUSTER.pattern}$")
HOSTS = _string(readers.read_host)
ADDRESSES = _string(readers.read_addresses)
USER = _string(readers.read_user)
JUMP = _string(readers.read_jump)
PORT = _whole(1, 65535)
PROCS = _whole(1, 4096)
GPUS: Kind[int] = Kind(readers.read_gpus, _GPUS)
BOOLEAN: Kind[bool] = Kind(readers.read_boolean, {"type": "boolean"})
SECONDS: Kind[float] = Kind(
    readers.read_seconds, {"type": "number", "minimum": 0, "maximum": 86400}
)
SUBNET = _string(readers.read_subnet)
LOCAL_PATH = _string(readers.read_local_path)
NODE_PATH = _string(readers.read_path)
ABSOLUTE_PATH = _matching(readers.read_absolute, "^/")
FOLDER = _matching(readers.read_folder, "^/.")
INSIDE_PATH = _string(readers.read_inside)
INTERPRETER = _string(readers.read_interpreter)
SHELL_LINE = _string(readers.read_line)
WORD: Kind[str] = Kind(readers.read_word, {"type": ["string", "number", "boolean"]})
WORDS = _list(WORD, readers.read_words)
VARIABLE = _matching(readers.read_variable, f"^{readers.VARIABLE.pattern}$")
VARIABLES = _mapping(VARIABLE, "a mapping of names to values")
VARIABLE_NAMES = _list(VARIABLE, readers.shape(list, "a list of variable names"))
PACKAGE = _matching(readers.read_package, f"^{readers.PACKAGE.pattern}$")
PACKAGES = _list(PACKAGE, readers.shape(list, "a list of packages"))
SBATCH_OPTION = _matching(readers.read_sbatch_option, f"^{readers.SBATCH_OPTION.pattern}$")
SBATCH_OPTIONS = _mapping(SBATCH_OPTION, "a mapping of sbatch's options")
PATHS = _list(NODE_PATH, readers.shape(list, "a list of paths"))
ABSOLUTE_PATHS = _list(ABSOLUTE_PATH, readers.shape(list, "a list of paths"))
RAY_ADDRESS = _matching(readers.read_ray_address, "^auto$|.:[0-9]+$")
SIGNAL: Kind[str] = Kind(readers.read_signal, {"enum": _SIGNALS})
VIA: Kind[cluster.Via] = Kind(readers.choice(*_VIAS), {"enum": [*_VIAS]})
LAUNCHER: Kind[cluster.LauncherName] = Kind(readers.choice(*_LAUNCHERS), {"enum": [*_LAUNCHERS]})
ALLOW: Kind[str] = Kind(readers.choice("allow"), {"const": "allow"})
