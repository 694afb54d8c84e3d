"""The kinds of field in a hosts.yaml: the type it becomes, its reader, its JSON Schema."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, PlainValidator, WithJsonSchema

from clusterctl.inventory import readers

_STRING: dict[str, Any] = {"type": "string", "minLength": 1}
_WORD: dict[str, Any] = {"type": ["string", "number", "boolean"]}


def _integer(low: int, high: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": low, "maximum": high}


Name = Annotated[
    str,
    PlainValidator(
        readers.text("a name of 1 to 24 characters a-z, 0-9 and -, no - in front", readers.CLUSTER)
    ),
    WithJsonSchema({"type": "string", "pattern": "^[a-z0-9][a-z0-9-]{0,23}$"}),
]
Hosts = Annotated[tuple[str, ...], PlainValidator(readers.read_host), WithJsonSchema(_STRING)]
Addresses = Annotated[
    tuple[str, ...], PlainValidator(readers.read_addresses), WithJsonSchema(_STRING)
]
User = Annotated[
    str, PlainValidator(readers.text("a user name", readers.USER)), WithJsonSchema(_STRING)
]
Jump = Annotated[
    str,
    PlainValidator(readers.text("[user@]host[:port], several with commas, or none", readers.JUMP)),
    WithJsonSchema(_STRING),
]
Port = Annotated[int, PlainValidator(readers.whole(1, 65535)), WithJsonSchema(_integer(1, 65535))]
Procs = Annotated[int, PlainValidator(readers.whole(1, 4096)), WithJsonSchema(_integer(1, 4096))]
Gpus = Annotated[
    int | None,
    PlainValidator(readers.read_gpus),
    WithJsonSchema({"anyOf": [{"const": "auto"}, _integer(0, 256)]}),
]
YesNo = Annotated[bool, PlainValidator(readers.read_yes), WithJsonSchema({"type": "boolean"})]
Seconds = Annotated[
    float,
    PlainValidator(readers.read_seconds),
    WithJsonSchema({"type": "number", "minimum": 0, "maximum": 86400}),
]
Subnet = Annotated[str, PlainValidator(readers.read_subnet), WithJsonSchema(_STRING)]
LocalPath = Annotated[str, PlainValidator(readers.read_local_path), WithJsonSchema(_STRING)]
NodePath = Annotated[str, PlainValidator(readers.read_path), WithJsonSchema(_STRING)]
AbsolutePath = Annotated[
    str, PlainValidator(readers.read_absolute), WithJsonSchema({"type": "string", "pattern": "^/"})
]
Folder = Annotated[
    str, PlainValidator(readers.read_folder), WithJsonSchema({"type": "string", "pattern": "^/."})
]
InsidePath = Annotated[str, PlainValidator(readers.read_inside), WithJsonSchema(_STRING)]
Interpreter = Annotated[str, PlainValidator(readers.read_interpreter), WithJsonSchema(_STRING)]
ShellLine = Annotated[str, PlainValidator(readers.read_line), WithJsonSchema(_STRING)]
Word = Annotated[str, PlainValidator(readers.read_text), WithJsonSchema(_WORD)]
Words = Annotated[tuple[Word, ...], BeforeValidator(readers.read_words)]
Variable = Annotated[
    str,
    PlainValidator(readers.text("a variable name of letters, digits and _", readers.VARIABLE)),
    WithJsonSchema({"type": "string", "pattern": f"^{readers.VARIABLE.pattern}$"}),
]
Variables = Annotated[dict[Variable, Word], BeforeValidator(readers.read_variables)]
Signal = Annotated[
    str,
    PlainValidator(readers.read_signal),
    WithJsonSchema({"enum": [*readers.SIGNALS, *(f"SIG{name}" for name in readers.SIGNALS)]}),
]
Via = Annotated[
    Literal["paramiko", "openssh"],
    PlainValidator(readers.choice("paramiko", "openssh")),
    WithJsonSchema({"enum": ["paramiko", "openssh"]}),
]
Launcher = Annotated[
    Literal["torchrun", "direct", "accelerate", "ray", "slurm"],
    PlainValidator(readers.choice("torchrun", "direct", "accelerate", "ray", "slurm")),
    WithJsonSchema({"enum": ["torchrun", "direct", "accelerate", "ray", "slurm"]}),
]
Allow = Annotated[
    Literal["allow"], PlainValidator(readers.choice("allow")), WithJsonSchema({"const": "allow"})
]
Paths = Annotated[tuple[NodePath, ...], BeforeValidator(readers.read_paths)]
AbsolutePaths = Annotated[tuple[AbsolutePath, ...], BeforeValidator(readers.read_paths)]
VariableNames = Annotated[tuple[Variable, ...], BeforeValidator(readers.read_names)]
