"""The sections of a hosts.yaml, and the JSON Schema for editors that they give."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeVar, overload

from clusterctl.inventory import fields
from clusterctl.inventory.fields import Kind

T = TypeVar("T")
S = TypeVar("S", bound="Section")


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a section, as its class declares it."""

    kind: Kind[Any] | type[Section]
    description: str
    default: Any = None
    required: bool = False

    @property
    def schema(self) -> dict[str, object]:
        """What editors check."""
        kind = self.kind
        schema = kind.schema if isinstance(kind, Kind) else {"$ref": f"#/$defs/{kind.__name__}"}
        return {**schema, "description": self.description}


class Section:
    """A mapping of the file: `vars` of one are the keys that were written there."""

    keys: ClassVar[dict[str, Key]] = {}

    def __init_subclass__(cls) -> None:
        """Note the keys, and leave the default of each in its place."""
        own = {name: key for name, key in vars(cls).items() if isinstance(key, Key)}
        bases = (base.keys for base in reversed(cls.__mro__[1:]) if issubclass(base, Section))
        cls.keys = {name: key for keys in (*bases, own) for name, key in keys.items()}
        for name, key in own.items():
            setattr(cls, name, key.default)

    def __init__(self, **written: Any) -> None:  # noqa: ANN401  (each key has its own type)
        """Keep values that were read."""
        vars(self).update(written)

    def values(self) -> dict[str, Any]:
        """Return the values of all keys."""
        return {name: getattr(self, name) for name in self.keys}

    def changed(self, **changes: Any) -> Self:  # noqa: ANN401
        """Return the section with some keys replaced."""
        return type(self)(**{**vars(self), **changes})


@overload
def _key(kind: Kind[T], description: str) -> T | None: ...
@overload
def _key(kind: Kind[T], description: str, default: T) -> T: ...
def _key(kind: Kind[Any], description: str, default: Any = None) -> Any:
    return Key(kind, description, default)


def _required(kind: Kind[T], description: str) -> T:
    key: Any = Key(kind, description, required=True)
    return key  # type: ignore[no-any-return]


def _section(kind: type[S], description: str) -> S:
    key: Any = Key(kind, description, kind())
    return key  # type: ignore[no-any-return]


class SshSection(Section):
    """How nodes are reached; ssh_config decides what is left out."""

    user = _key(fields.USER, "the user to log in as")
    port = _key(fields.PORT, "the port of sshd")
    identity = _key(
        fields.LOCAL_PATH, "a private key on this machine; relative to the inventory's folder"
    )
    jump = _key(fields.JUMP, "a jump host, as [user@]host[:port]; none overrides ssh_config")
    via = _key(
        fields.VIA,
        "paramiko; openssh: the system's ssh program; srun: a step of a Slurm job",
        "paramiko",
    )


class DefaultsSection(Section):
    """Settings of every node; an entry of nodes overrides them."""

    gpus = _key(fields.GPUS, "a number of GPUs; auto: what is found; 0: CPU processes over gloo")
    procs = _key(fields.PROCS, "a number of processes where gpus is 0; 1 if absent")
    python = _key(fields.INTERPRETER, "the job's interpreter")
    state = _key(
        fields.ABSOLUTE_PATH, "a folder for node state, instead of /var/tmp/clusterctl-UID"
    )


class NodeSection(SshSection, DefaultsSection):
    """One host, or a range of hosts with the same settings."""

    host = _required(
        fields.HOSTS, "a host name, an address, localhost, or a range as gpu[01-04,07]"
    )
    address = _key(
        fields.ADDRESSES, "address on the data network; for a range of hosts a range as long"
    )
    workdir = _key(fields.FOLDER, "workdir of this node alone")
    master = _key(fields.BOOLEAN, "this node is the master (rank 0)", False)


class NetworkSection(Section):
    """The network between the ranks; found or chosen if absent."""

    subnet = _key(fields.SUBNET, "a network as 10.11.7.0/24")
    master_port = _key(fields.PORT, "a port for the rendezvous")


class StopSection(Section):
    """How the ranks are asked to end."""

    signal = _key(fields.SIGNAL, "a signal to send; TERM if absent")
    file = _key(fields.INSIDE_PATH, "a file to make in workdir instead")
    grace = _key(fields.SECONDS, "seconds until KILL", 60.0)
    failure_grace = _key(fields.SECONDS, "seconds for the other ranks when one has failed", 1.0)
    leftovers = _key(fields.SECONDS, "seconds for what ranks that ended well left behind", 5.0)


class JobSection(Section):
    """What is launched; the command line overrides it."""

    launcher = _key(fields.LAUNCHER, "what starts the ranks", "torchrun")
    launcher_args = _key(fields.WORDS, "passed through to the launcher", ())
    wrap = _key(fields.WORDS, "a container or another program around the job", ())
    ray_address = _key(
        fields.RAY_ADDRESS,
        "an existing Ray cluster for the launcher ray; absent: one of the run's own",
    )
    slurm = _key(
        fields.SBATCH_OPTIONS,
        "options of sbatch for the launcher slurm, such as {nodes: 2, time: 1-00:00:00}",
        {},
    )
    procs_per_node = _key(fields.PROCS, "a number of ranks on every node; one a GPU if absent")
    command = _key(fields.WORDS, "the job's program and its arguments", ())
    env = _key(fields.VARIABLES, "environment of the job, recorded in clear", {})
    env_from = _key(
        fields.VARIABLE_NAMES, "variables taken from this machine's environment; never stored", ()
    )
    env_init = _key(
        fields.SHELL_LINE, "a shell line run on the node first; its changes of environment stay"
    )
    needs = _key(fields.PATHS, "must exist and be equal on every node", ())
    packages = _key(
        fields.PACKAGES, "Python packages that every node needs, as name or name==version", ()
    )
    check = _key(fields.WORDS, "a command that `check` runs on every node", ())
    checkpoints = _key(fields.NODE_PATH, "the folder of the checkpoints, from workdir")
    resume_args = _key(
        fields.WORDS, "added to the command by resume; {checkpoint} becomes the path", ()
    )
    stop = _section(StopSection, "how the ranks are asked to end")


class TopSection(Section):
    """The top-level keys that are not sections."""

    cluster = _required(fields.NAME, "a name for the cluster; records are kept under it")
    shared = _key(fields.ABSOLUTE_PATHS, "paths that must be one filesystem, seen by all nodes", ())
    workdir = _key(fields.FOLDER, "a folder: the code is mirrored here, the job runs here")
    same_machine = _key(fields.ALLOW, "allow: two entries may be one machine")


# A host without settings may stand alone.
_NODE = {"anyOf": [{"type": "string", "minLength": 1}, {"$ref": "#/$defs/NodeSection"}]}
_NODES: Kind[object] = Kind(lambda value: value, {"type": "array", "minItems": 1, "items": _NODE})


class HostsFile(TopSection):
    """The whole file."""

    ssh = _section(SshSection, "how nodes are reached")
    defaults = _section(DefaultsSection, "settings of every node")
    network = _section(NetworkSection, "found or chosen if absent")
    nodes = _key(_NODES, "the first is the master unless one says master: true; absent: Slurm's")
    job = _section(JobSection, "what is launched")


def _schema_of(section: type[Section]) -> dict[str, Any]:
    required = [name for name, key in section.keys.items() if key.required]
    return {
        "title": section.__name__,
        "description": section.__doc__,
        "type": "object",
        "properties": {name: key.schema for name, key in section.keys.items()},
        "additionalProperties": False,
        **({"required": required} if required else {}),
    }


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a hosts.yaml, for editors."""
    inner = (
        DefaultsSection, JobSection, NetworkSection, NodeSection, SshSection, StopSection
    )  # fmt: skip
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **_schema_of(HostsFile),
        "title": "clusterctl inventory",
        "$defs": {section.__name__: _schema_of(section) for section in inner},
    }
