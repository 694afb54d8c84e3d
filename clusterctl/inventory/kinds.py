"""The kinds of values that a setting takes: how each is read, its bounds, its JSON Schema.

A reader takes the value in the document: text, a list, a mapping, or None if the file has no
value there. It returns the parsed value, or raises `InvalidValue`, which says what it expected.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from clusterctl.inventory import addresses
from clusterctl.inventory.addresses import split_login
from clusterctl.inventory.problems import InvalidValue, Plain, nearest

INFINITE = float("inf")

_INTEGER = re.compile(r"0|[1-9][0-9]{0,9}")
_NUMBER = re.compile(r"(0|[1-9][0-9]{0,9})(\.[0-9]{1,3})?")
_DURATION = re.compile(r"((?:0|[1-9][0-9]{0,9})(?:\.[0-9]{1,3})?)([smhdw]?)")
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_LONGEST_NAME = 24
_CLUSTER = re.compile(rf"[a-z0-9][a-z0-9-]{{0,{_LONGEST_NAME - 1}}}")
_PACKAGE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?(==[A-Za-z0-9.!+_-]+)?")
_SBATCH_OPTION = re.compile(r"[a-z][a-z_-]+")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TRUE, _FALSE = ("true", "yes", "on"), ("false", "no", "off")
_NEED_QUOTES = frozenset("{}[],:#&*!|>'%@`")
"""Characters with which YAML may take a word for something else."""
SIGNALS = ("TERM", "INT", "HUP", "QUIT", "USR1", "USR2")
_DAY, _YEAR = 86400, 365 * 86400
_LONGEST_PATTERN = 500
PROGRESS_GROUPS = frozenset({"step", "total", "loss", "tokens_per_s"})
"""The names of what a pattern of `job.progress` may find."""

OWN_SBATCH_OPTIONS = frozenset({
    "array", "batch", "chdir", "clusters", "error", "export", "export-file", "help", "input",
    "no-requeue", "ntasks", "ntasks-per-node", "open-mode", "output", "parsable", "quiet",
    "requeue", "test-only", "usage", "version", "wait", "wrap",
})  # fmt: skip
"""The options of sbatch that a submission has its own value for, or that change its answer."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Kind(Generic[T]):
    """What a setting takes; a list or a mapping has a kind of its items, too."""

    read: Callable[[object], Any]
    schema: Mapping[str, object]
    items: Kind[Any] | type | None = None
    """A type is a section."""
    names: Kind[str] | None = None
    """Of a mapping."""
    bounds: tuple[float, float] | None = None
    """Of a number."""


def _text(wanted: str, fits: Callable[[str], object]) -> Callable[[object], str]:
    """Return a reader of text for which `fits` returns something true."""

    def read(value: object) -> str:
        if not isinstance(value, str) or not fits(value):
            raise InvalidValue(wanted, value)
        return str(value)

    return read


def _choice(*words: str) -> Callable[[object], str]:
    """Return a reader of one of a few words."""
    wanted = "one of " + ", ".join(words) if len(words) > 1 else words[0]

    def read(value: object) -> str:
        if not isinstance(value, str) or value not in words:
            near = nearest(value, words) if isinstance(value, str) else None
            raise InvalidValue(
                f"{near} ({wanted})" if near not in (None, wanted) else wanted, value
            )
        return str(value)

    return read


def _shape(kind: type[T], wanted: str) -> Callable[[object], T]:
    """Return a reader that checks for a list or a mapping; other readers take its items."""

    def read(value: object) -> T:
        if not isinstance(value, kind):
            raise InvalidValue(wanted, value)
        return value

    return read


def _whole_number(low: int, high: float, what: str = "a whole number") -> Callable[[object], int]:
    """Return a reader of whole numbers within bounds, unquoted."""
    wanted = f"{what} from {low} to {high}"

    def read(value: object) -> int:
        if not isinstance(value, str) or not _INTEGER.fullmatch(value):
            raise InvalidValue(wanted, value)
        if not isinstance(value, Plain):
            raise InvalidValue(f"{wanted}, without quotes", value)
        if not low <= int(value) <= high:
            raise InvalidValue(wanted, value)
        return int(value)

    return read


def _string(read: Callable[[object], T]) -> Kind[T]:
    return Kind(read, {"type": "string", "minLength": 1})


def _matching(read: Callable[[object], str], pattern: str) -> Kind[str]:
    return Kind(read, {"type": "string", "pattern": pattern})


def whole(low: int, high: float) -> Kind[int]:
    """Return the kind of whole numbers within bounds."""
    schema: dict[str, object] = {"type": "integer", "minimum": low}
    if high < INFINITE:
        schema["maximum"] = high
    return Kind(_whole_number(low, high), schema, bounds=(low, high))


def one_of(*words: str) -> Kind[Any]:
    """Return the kind of a few words."""
    return Kind(_choice(*words), {"enum": [*words]} if len(words) > 1 else {"const": words[0]})


def _list(items: Kind[T], read: Callable[[object], object]) -> Kind[tuple[T, ...]]:
    return Kind(read, {"type": "array", "items": items.schema}, items)


def sections(model: type[T], wanted: str) -> Kind[tuple[T, ...]]:
    """Return the kind of lists of a section."""
    items = {"$ref": f"#/$defs/{model.__name__}Section"}
    return Kind(_shape(list, wanted), {"type": "array", "items": items}, model)


def _mapping(names: Kind[str], wanted: str) -> Kind[tuple[tuple[str, str], ...]]:
    schema = {"type": "object", "patternProperties": {names.schema["pattern"]: WORD.schema}}
    return Kind(_shape(dict, wanted), schema, WORD, names)


def cluster_name(text: str) -> str:
    """Return a text as the name of a cluster; empty if nothing of it can be in one."""
    return re.sub(r"[^a-z0-9-]+", "-", text.lower()).strip("-")[:_LONGEST_NAME].strip("-")


def _is_path(value: str) -> bool:
    return bool(value.strip()) and value.isprintable()


_read_node_path = _text("a path on the nodes", _is_path)
_read_path_here = _text("a path on this machine", _is_path)
_read_signal = _choice(*SIGNALS)
_read_words = _shape(list, "a list of words")
_read_gpu_count = _whole_number(0, 256, "auto, or a whole number")


def _read_gpus(value: object) -> int | None:
    """Read a count of GPUs; `auto` is None."""
    return None if value == "auto" else _read_gpu_count(value)


def _read_boolean(value: object) -> bool:
    """Read a truth value as YAML writes it."""
    word = value.lower() if isinstance(value, Plain) else ""
    if word not in _TRUE + _FALSE:
        raise InvalidValue("true or false", value)
    return word in _TRUE


def _read_seconds(value: object) -> float:
    """Read a time of at most a day."""
    if not isinstance(value, Plain) or not _NUMBER.fullmatch(value) or float(value) > _DAY:
        raise InvalidValue(f"seconds from 0 to {_DAY}", value)
    return float(value)


def _duration(wanted: str, low: float, high: float) -> Kind[float]:
    """Return the kind of times in seconds, or with a unit."""

    def read(value: object) -> float:
        found = _DURATION.fullmatch(value) if isinstance(value, str) else None
        seconds = float(found[1]) * _UNITS[found[2]] if found else -1.0
        if not low <= seconds <= high:
            raise InvalidValue(wanted, value)
        return seconds

    number = {"type": "number", "minimum": low, "maximum": high}
    text = {"type": "string", "pattern": f"^{_DURATION.pattern}$"}
    return Kind(read, {"anyOf": [number, text]}, bounds=(low, high))


def _read_pattern(value: object) -> str:
    """Read a regular expression of at most 500 characters."""
    text = value if isinstance(value, str) else ""
    try:
        if not text or len(text) > _LONGEST_PATTERN:
            raise re.error("")  # noqa: TRY301  (the same words)
        re.compile(text)
    except re.error as error:
        why = f" ({error})" if str(error) else ""
        wanted = f"a regular expression of 1 to {_LONGEST_PATTERN} characters{why}"
        raise InvalidValue(wanted, value) from None
    return str(value)


def _read_progress(value: object) -> str:
    """Read a regular expression with a group for at least one value of progress."""
    pattern = _read_pattern(value)
    if not PROGRESS_GROUPS.intersection(re.compile(pattern).groupindex):
        wanted = r"a group named step, total, loss or tokens_per_s, such as (?P<step>\d+)"
        raise InvalidValue(wanted, value)
    return pattern


def _read_path(value: object) -> str:
    """Read a path on the nodes; a relative one starts at workdir."""
    path = _read_node_path(value)
    if path.startswith("~"):
        raise InvalidValue("a path on the nodes without ~ (homes differ between nodes)", value)
    return path


def _read_absolute(value: object) -> str:
    """Read an absolute path on the nodes."""
    path = _read_path(value)
    parts = path.split("/")
    if not path.startswith("/") or ".." in parts:
        raise InvalidValue("an absolute path on the nodes, without ..", value)
    return "/" + "/".join(part for part in parts if part not in ("", "."))


def _read_folder(value: object) -> str:
    """Read an absolute path that is not the root."""
    path = _read_absolute(value)
    if path == "/":
        raise InvalidValue("a folder of the job's own", value)
    return path


def _read_interpreter(value: object) -> str:
    """Read an absolute path, or the name of a program on PATH."""
    path = _read_path(value)
    if "/" in path:
        return _read_absolute(value)
    if path.split() != [path]:
        raise InvalidValue("one program, as /opt/venv/bin/python", value)
    return path


def _read_inside(value: object) -> str:
    """Read a path that stays inside workdir."""
    path = _read_path(value)
    if path.startswith("/") or ".." in path.split("/"):
        raise InvalidValue("a file name inside workdir", value)
    return path


def _read_local_path(value: object) -> str:
    """Read a path on the controller."""
    try:
        return str(Path(_read_path_here(value)).expanduser())
    except RuntimeError:  # ~user of an unknown user
        raise InvalidValue("a path on this machine", value) from None


def _read_word(value: object) -> str:
    """Read any text that a process can be given."""
    if not isinstance(value, str) or "\0" in value:
        found = 'nothing (write "" for an empty one)' if value is None else None
        raise InvalidValue("text", value, found=found)
    return str(value)


def _read_list_of_words(value: object) -> list[object]:
    """Check for a list of words; a reader takes each word."""
    if isinstance(value, str):
        try:
            words = shlex.split(value)
        except ValueError:
            words = [value]
        quoted = (f'"{word}"' if set(word) & _NEED_QUOTES else word for word in words)
        raise InvalidValue(f"a list of words: [{', '.join(quoted)}]", value)
    return _read_words(value)


def _is_ray_address(value: str) -> bool:
    _, host, port = split_login(value.removeprefix("ray://"))
    return value == "auto" or bool(host and port and port.isdigit() and "@" not in value)


def _read_sbatch_option(value: object) -> str:
    """Read the long name of an option of sbatch, with `-` or `_`; return it with `-`."""
    if not isinstance(value, str) or not _SBATCH_OPTION.fullmatch(value):
        raise InvalidValue("an option of sbatch without --, such as gpus-per-node", value)
    name = value.replace("_", "-")
    if name in OWN_SBATCH_OPTIONS:
        raise InvalidValue("an option that clusterctl does not set itself", value)
    return name


def _read_signal_name(value: object) -> str:
    """Read a signal with or without SIG; return it without."""
    if isinstance(value, str) and value.removeprefix("SIG") in SIGNALS:
        return value.removeprefix("SIG")
    return _read_signal(value)


NAME = _matching(
    _text("a name of 1 to 24 characters a-z, 0-9 and -, no - in front", _CLUSTER.fullmatch),
    f"^{_CLUSTER.pattern}$",
)
HOSTS = _string(addresses.read_host)
NODE_NAMES = _string(addresses.read_names)
ADDRESSES = _string(addresses.read_addresses)
USER = _string(_text("a user name", addresses.USER.fullmatch))
JUMP = _string(_text("[user@]host[:port], several with commas, or none", addresses.is_jump))
PORT = whole(1, 65535)
PROCS = whole(1, 4096)
GPUS: Kind[int] = Kind(
    _read_gpus, {"anyOf": [{"const": "auto"}, {"type": "integer", "minimum": 0, "maximum": 256}]}
)
BOOLEAN: Kind[bool] = Kind(_read_boolean, {"type": "boolean"})
SECONDS: Kind[float] = Kind(_read_seconds, {"type": "number", "minimum": 0, "maximum": _DAY})
DURATION = _duration("a time such as 300, 10s, 5m or 2h, of at most a day", 0, _DAY)
RUN_TIME = _duration("a time such as 90m, 12h or 7d, from 1 s to 365 days", 1, _YEAR)
MAX_TIME = _duration("a time such as 90m, 12h or 7d, up to 365 days, or 0 for no limit", 0, _YEAR)
HANG_ACTION = one_of("report", "stop", "restart")
PING_TIME = _duration("a time from 10s to 1d", 10, _DAY)
EVENTS: Kind[tuple[str, ...]] = _list(
    one_of("started", "restarted", "waiting", "hung", "failed", "ended"),
    _shape(list, "a list of events"),
)
SUBNET = _string(addresses.read_subnet)
LOCAL_PATH = _string(_read_local_path)
NODE_PATH = _string(_read_path)
ABSOLUTE_PATH = _matching(_read_absolute, "^/")
FOLDER = _matching(_read_folder, "^/.")
INSIDE_PATH = _string(_read_inside)
INTERPRETER = _string(_read_interpreter)
SHELL_LINE = _string(_text("a shell line", lambda value: value.strip() and "\0" not in value))
WORD: Kind[str] = Kind(_read_word, {"type": ["string", "number", "boolean"]})
WORDS = _list(WORD, _read_list_of_words)
VARIABLE = _matching(
    _text("a variable name of letters, digits and _", _VARIABLE.fullmatch),
    f"^{_VARIABLE.pattern}$",
)
VARIABLES = _mapping(VARIABLE, "a mapping of names to values")
VARIABLE_NAMES = _list(VARIABLE, _shape(list, "a list of variable names"))
PACKAGE = _matching(
    _text("a package as axolotl or axolotl==0.12.2", _PACKAGE.fullmatch), f"^{_PACKAGE.pattern}$"
)
PACKAGES = _list(PACKAGE, _shape(list, "a list of packages"))
SBATCH_OPTION = _matching(_read_sbatch_option, f"^{_SBATCH_OPTION.pattern}$")
SBATCH_OPTIONS = _mapping(SBATCH_OPTION, "a mapping of sbatch's options")
PATHS = _list(NODE_PATH, _shape(list, "a list of paths"))
ABSOLUTE_PATHS = _list(ABSOLUTE_PATH, _shape(list, "a list of paths"))
RAY_ADDRESS = _matching(
    _text("auto, HOST:PORT or ray://HOST:PORT", _is_ray_address), "^auto$|.:[0-9]+$"
)
SIGNAL: Kind[str] = Kind(
    _read_signal_name, {"enum": [*SIGNALS, *(f"SIG{name}" for name in SIGNALS)]}
)
ALLOW = one_of("allow")
COUNT = whole(0, INFINITE)
RESTARTS = whole(0, 1000)
NODES = whole(0, 10_000)
EXIT_CODES = _list(whole(1, 255), _shape(list, "a list of exit codes"))
PROGRESS = _list(_string(_read_progress), _shape(list, "a list of regular expressions"))
PATTERNS = _list(_string(_read_pattern), _shape(list, "a list of regular expressions"))
TIMEOUT: Kind[float] = Kind(
    _read_seconds, {"type": "number", "exclusiveMinimum": 0}, bounds=(0.001, INFINITE)
)
"""Of a flag: any time but none at all."""
