"""The kinds of field in a hosts.yaml: the type of the value, its reader, its JSON Schema."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import BeforeValidator, PlainValidator, WithJsonSchema

from clusterctl.inventory import cluster, readers


def _integer(low: int, high: int) -> WithJsonSchema:
    return WithJsonSchema({"type": "integer", "minimum": low, "maximum": high})


def _matching(pattern: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "pattern": pattern})


_STRING = WithJsonSchema({"type": "string", "minLength": 1})
_ANY_SCALAR = WithJsonSchema({"type": ["string", "number", "boolean"]})
_GPUS = WithJsonSchema(
    {"anyOf": [{"const": "auto"}, {"type": "integer", "minimum": 0, "maximum": 256}]}
)
_SECONDS = WithJsonSchema({"type": "number", "minimum": 0, "maximum": 86400})
_SIGNALS = [*readers.SIGNALS, *(f"SIG{name}" for name in readers.SIGNALS)]
_VIAS, _LAUNCHERS = get_args(cluster.Via), get_args(cluster.LauncherName)

Name = Annotated[str, PlainValidator(readers.read_name), _matching(f"^{readers.CLUSTER.pattern}$")]
Hosts = Annotated[tuple[str, ...], PlainValidator(readers.read_host), _STRING]
Addresses = Annotated[tuple[str, ...], PlainValidator(readers.read_addresses), _STRING]
User = Annotated[str, PlainValidator(readers.read_user), _STRING]
Jump = Annotated[str, PlainValidator(readers.read_jump), _STRING]
Port = Annotated[int, PlainValidator(readers.whole_number(1, 65535)), _integer(1, 65535)]
Procs = Annotated[int, PlainValidator(readers.whole_number(1, 4096)), _integer(1, 4096)]
Gpus = Annotated[int | None, PlainValidator(readers.read_gpus), _GPUS]
Boolean = Annotated[bool, PlainValidator(readers.read_boolean), WithJsonSchema({"type": "boolean"})]
Seconds = Annotated[float, PlainValidator(readers.read_seconds), _SECONDS]
Subnet = Annotated[str, PlainValidator(readers.read_subnet), _STRING]
LocalPath = Annotated[str, PlainValidator(readers.read_local_path), _STRING]
NodePath = Annotated[str, PlainValidator(readers.read_path), _STRING]
AbsolutePath = Annotated[str, PlainValidator(readers.read_absolute), _matching("^/")]
Folder = Annotated[str, PlainValidator(readers.read_folder), _matching("^/.")]
InsidePath = Annotated[str, PlainValidator(readers.read_inside), _STRING]
Interpreter = Annotated[str, PlainValidator(readers.read_interpreter), _STRING]
ShellLine = Annotated[str, PlainValidator(readers.read_line), _STRING]
Word = Annotated[str, PlainValidator(readers.read_word), _ANY_SCALAR]
Words = Annotated[tuple[Word, ...], BeforeValidator(readers.read_words)]
Variable = Annotated[
    str, PlainValidator(readers.read_variable), _matching(f"^{readers.VARIABLE.pattern}$")
]
Variables = Annotated[
    dict[Variable, Word], BeforeValidator(readers.shape(dict, "a mapping of names to values"))
]
VariableNames = Annotated[
    tuple[Variable, ...], BeforeValidator(readers.shape(list, "a list of variable names"))
]
Package = Annotated[
    str, PlainValidator(readers.read_package), _matching(f"^{readers.PACKAGE.pattern}$")
]
Packages = Annotated[
    tuple[Package, ...], BeforeValidator(readers.shape(list, "a list of packages"))
]
_read_paths = readers.shape(list, "a list of paths")
SbatchOption = Annotated[
    str,
    PlainValidator(readers.read_sbatch_option),
    _matching(f"^{readers.SBATCH_OPTION.pattern}$"),
]
SbatchOptions = Annotated[
    dict[SbatchOption, Word], BeforeValidator(readers.shape(dict, "a mapping of sbatch's options"))
]
Paths = Annotated[tuple[NodePath, ...], BeforeValidator(_read_paths)]
AbsolutePaths = Annotated[tuple[AbsolutePath, ...], BeforeValidator(_read_paths)]
RayAddress = Annotated[str, PlainValidator(readers.read_ray_address), _matching("^auto$|.:[0-9]+$")]
Signal = Annotated[str, PlainValidator(readers.read_signal), WithJsonSchema({"enum": _SIGNALS})]
Via = Annotated[
    cluster.Via, PlainValidator(readers.choice(*_VIAS)), WithJsonSchema({"enum": [*_VIAS]})
]
Launcher = Annotated[
    cluster.LauncherName,
    PlainValidator(readers.choice(*_LAUNCHERS)),
    WithJsonSchema({"enum": [*_LAUNCHERS]}),
]
Allow = Annotated[
    Literal["allow"], PlainValidator(readers.choice("allow")), WithJsonSchema({"const": "allow"})
]
