"""The sections of a hosts.yaml: reads one and reports every problem; their JSON Schema."""

from collections.abc import Iterable
from typing import Any, TypeVar

from clusterctl.inventory import kinds
from clusterctl.inventory.cluster import Ends, Hang, Job, Notify, Restart, Ssh, Stop
from clusterctl.inventory.kinds import Kind
from clusterctl.inventory.problems import (
    InvalidValue,
    Path,
    Plain,
    Problems,
    nearest,
    printable,
    shown,
)
from clusterctl.inventory.settings import Section, Setting, keys_of, setting, title

S = TypeVar("S")


class DefaultsSection(Section):
    """Settings of every node; an entry of nodes overrides them."""

    gpus: int | None = setting(
        kinds.GPUS, "a number of GPUs; auto: what is found; 0: CPU processes over gloo"
    )
    procs: int | None = setting(kinds.PROCS, "a number of processes where gpus is 0; 1 if absent")
    python: str | None = setting(kinds.INTERPRETER, "the job's interpreter")
    state: str | None = setting(
        kinds.ABSOLUTE_PATH, "a folder for node state, instead of /var/tmp/clusterctl-UID"
    )


class NodeSection(DefaultsSection, like=Ssh):
    """One host, or a range of hosts with the same settings."""

    host = setting(
        kinds.HOSTS,
        "a host name, an address, localhost, or a range as gpu[01-04,07]",
        required=True,
    )
    name: tuple[str, ...] | None = setting(
        kinds.NODE_NAMES,
        "what to call it, if not by its host; for a range of hosts a range as long",
    )
    address: tuple[str, ...] | None = setting(
        kinds.ADDRESSES, "address on the data network; for a range of hosts a range as long"
    )
    workdir: str | None = setting(kinds.FOLDER, "workdir of this node alone")
    master = setting(kinds.BOOLEAN, "this node is the master (rank 0)", False)
    spare = setting(
        kinds.BOOLEAN,
        "it has no rank until it takes the place of a node that a restart leaves out",
        False,
    )


class NetworkSection(Section):
    """The network between the ranks; found or chosen if absent."""

    subnet: str | None = setting(kinds.SUBNET, "a network as 10.11.7.0/24")
    master_port: int | None = setting(kinds.PORT, "a port for the rendezvous")


class QuarantineSection(Section):
    """What becomes of nodes that made runs fail."""

    avoid = setting(
        kinds.BOOLEAN,
        "launch and resume leave out nodes in quarantine, as with --exclude-quarantined",
        False,
    )


class TopSection(Section):
    """The top-level keys that are not sections."""

    cluster = setting(
        kinds.NAME, "a name for the cluster; records are kept under it", required=True
    )
    shared = setting(
        kinds.ABSOLUTE_PATHS, "paths that must be one filesystem, seen by all nodes", ()
    )
    workdir: str | None = setting(
        kinds.FOLDER, "a folder: the code is mirrored here, the job runs here"
    )
    same_machine: str | None = setting(kinds.ALLOW, "allow: two entries may be one machine")


# A host without settings may stand alone.
_NODE = {"anyOf": [{"type": "string", "minLength": 1}, {"$ref": "#/$defs/NodeSection"}]}
_NODES: Kind[object] = Kind(lambda value: value, {"type": "array", "minItems": 1, "items": _NODE})


class HostsFile(TopSection):
    """The whole file."""

    ssh = setting(Ssh, "how nodes are reached", Ssh())
    defaults = setting(DefaultsSection, "settings of every node", DefaultsSection())
    network = setting(NetworkSection, "found or chosen if absent", NetworkSection())
    quarantine = setting(
        QuarantineSection, "what becomes of nodes that made runs fail", QuarantineSection()
    )
    nodes = setting(_NODES, "the first is the master unless one says master: true; absent: Slurm's")
    job = setting(Job, "what is launched", Job())


_MAPPING = "a mapping (key: value)"
_WRONG = object()
"""What is read of a value that is wrong, or not there."""

_PLACES = {
    name: place
    for place, model in (
        ("job", Job),
        ("network", NetworkSection),
        ("quarantine", QuarantineSection),
        ("an entry of nodes", NodeSection),
        ("defaults", DefaultsSection),
        ("ssh", Ssh),
        ("the top of the file", HostsFile),
    )
    for name in keys_of(model)
}
"""The section of each key; if several have it, the last one here."""


def read_section(model: type[S], value: object, path: Path, problems: Problems) -> S | None:
    """Return the section of what is right, and report the rest; None if a required key is wrong."""
    keys = keys_of(model)
    needed = {name for name, key in keys.items() if key.required}
    if value is None and not needed:
        value = {}  # `job:` whose keys were all removed
    if not isinstance(value, dict):
        first, setting_of = next(iter(keys.items()))
        simple = isinstance(setting_of.kind, Kind) and setting_of.kind.items is None
        found = shown(value)
        told = f", such as {{{first}: {found}}}" if isinstance(value, Plain) and simple else ""
        problems.add(path, wanted=_MAPPING + told, found=found)
        return None
    right = {
        name: read
        for name, key in keys.items()
        if (read := _read_key(key, value, (*path, name), problems)) is not _WRONG
    }
    known = keys_of(HostsFile) if model is TopSection else keys
    for name in value:
        if name not in keys:
            wanted, found = _suggestion(name, known), f'"{printable(name)}"'
            problems.add((*path, name), wanted=wanted, found=found)
    for name, other in [(name, keys[name].instead_of) for name in right]:
        if other in right:
            problems.add(path, wanted=f"{other} or {name}", found="both")
        elif other:
            right[other] = None
    return model(**right) if needed <= right.keys() else None


def _read_key(key: Setting, section: dict[str, object], path: Path, problems: Problems) -> object:
    """Return the value of a key, without the variables that are wrong; _WRONG: there is none."""
    if path[-1] not in section:
        if key.required:
            problems.add(path, wanted=key.description, found="nothing")
        return _WRONG
    value = section[path[-1]]
    if value is None:
        # A list or mapping may be empty, as `env:` whose variables were all removed.
        if key.default is None or isinstance(key.default, (str, int, float)):
            problems.add(path, wanted=key.description, found="nothing")
            return _WRONG
        value = [] if isinstance(key.kind, Kind) and key.kind.names is None else {}
    if isinstance(key.kind, Kind):
        return _read(key.kind, value, path, problems)
    return read_section(key.kind, value, path, problems) or _WRONG


def _read(kind: Kind[Any], value: object, path: Path, problems: Problems) -> object:
    try:
        read = kind.read(value)
    except InvalidValue as invalid:
        problems.add(path, wanted=invalid.wanted, found=invalid.found)
        return _WRONG
    items, names = kind.items, kind.names
    if items is None:
        return read
    if isinstance(items, type):
        sections = [
            read_section(items, one, (*path, at), problems) or _WRONG for at, one in enumerate(read)
        ]
        return _WRONG if _WRONG in sections else tuple(sections)
    if names is None:
        found = [_read(items, one, (*path, at), problems) for at, one in enumerate(read)]
        return _WRONG if _WRONG in found else tuple(found)
    pairs = [
        (_read(names, name, (*path, name), problems), _read(items, one, (*path, name), problems))
        for name, one in read.items()
    ]
    return tuple({name: one for name, one in pairs if _WRONG not in (name, one)}.items())


_MEANT = {
    "hosts": "nodes", "machines": "nodes", "servers": "nodes", "workers": "nodes",
    "hostname": "host", "ip": "host", "key": "identity", "username": "user",
}  # fmt: skip
"""Keys of other tools' files."""


def _suggestion(key: str, known: Iterable[str]) -> str:
    """Return the key that was probably meant, or the section where this one belongs."""
    names = sorted(known)
    if key in _PLACES:
        return f"{key} in {_PLACES[key]}"
    near = _MEANT[key] if _MEANT.get(key) in names else nearest(key, names)
    if near is not None:
        return f'"{near}"'
    return "one of " + ", ".join(names)


def _schema_of(model: type) -> dict[str, Any]:
    keys = keys_of(model)
    needed = [name for name, key in keys.items() if key.required]
    return {
        "title": title(model),
        "description": model.__doc__,
        "type": "object",
        "properties": {name: key.schema for name, key in keys.items()},
        "additionalProperties": False,
        **({"required": needed} if needed else {}),
    }


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a hosts.yaml, for editors."""
    inner = (
        DefaultsSection, Ends, Hang, Job, NetworkSection, NodeSection, Notify, QuarantineSection,
        Restart, Ssh, Stop,
    )  # fmt: skip
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **_schema_of(HostsFile),
        "title": "clusterctl inventory",
        "$defs": {title(model): _schema_of(model) for model in inner},
    }
