"""Models of the sections of a hosts.yaml, and the JSON Schema for editors that they give."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from clusterctl.inventory import fields
from clusterctl.inventory.readers import InvalidValue


def _field(description: str, default: object = None) -> Any:  # noqa: ANN401  (as pydantic's)
    return Field(default=default, description=description)


class Section(BaseModel):
    """A mapping of the file; an unknown key is a problem."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*", mode="before")
    @classmethod
    def _written(cls, value: object, info: ValidationInfo) -> object:
        """Refuse a key without a value, such as `port:`; a list or mapping may be empty."""
        if value is not None:
            return value
        assert info.field_name is not None
        field = cls.model_fields[info.field_name]
        if field.default == ():
            return []
        if field.default == {} or isinstance(field.default, Section):
            return {}  # `env:` whose variables were all removed
        raise InvalidValue(field.description or "a value", None)


class SshSection(Section):
    """How nodes are reached; ssh_config decides what is left out."""

    user: fields.User | None = _field("the user to log in as")
    port: fields.Port | None = _field("the port of sshd")
    identity: fields.LocalPath | None = _field(
        "a private key on this machine; relative to the inventory's folder"
    )
    jump: fields.Jump | None = _field(
        "a jump host, as [user@]host[:port]; none overrides ssh_config"
    )
    via: fields.Via = _field(
        "paramiko; openssh: the system's ssh program; srun: a step of a Slurm job", "paramiko"
    )


class DefaultsSection(Section):
    """Settings of every node; an entry of nodes overrides them."""

    gpus: fields.Gpus = _field("a number of GPUs; auto: what is found; 0: CPU processes over gloo")
    procs: fields.Procs | None = _field("a number of processes where gpus is 0; 1 if absent")
    python: fields.Interpreter | None = _field("the job's interpreter")
    state: fields.AbsolutePath | None = _field(
        "a folder for node state, instead of /var/tmp/clusterctl-UID"
    )


class NodeSection(SshSection, DefaultsSection):
    """One host, or a range of hosts with the same settings."""

    host: fields.Hosts = Field(
        description="a host name, an address, localhost, or a range as gpu[01-04,07]"
    )
    address: fields.Addresses | None = _field(
        "address on the data network; for a range of hosts a range as long"
    )
    workdir: fields.Folder | None = _field("workdir of this node alone")
    master: fields.Boolean = _field("this node is the master (rank 0)", False)


class NetworkSection(Section):
    """The network between the ranks; found or chosen if absent."""

    subnet: fields.Subnet | None = _field("a network as 10.11.7.0/24")
    master_port: fields.Port | None = _field("a port for the rendezvous")


class StopSection(Section):
    """How the ranks are asked to end."""

    signal: fields.Signal | None = _field("a signal to send; TERM if absent")
    file: fields.InsidePath | None = _field("a file to make in workdir instead")
    grace: fields.Seconds = _field("seconds until KILL", 60.0)
    failure_grace: fields.Seconds = _field("seconds for the other ranks when one has failed", 1.0)
    leftovers: fields.Seconds = _field("seconds for what ranks that ended well left behind", 5.0)


class JobSection(Section):
    """What is launched; the command line overrides it."""

    launcher: fields.Launcher = _field("what starts the ranks", "torchrun")
    launcher_args: fields.Words = _field("passed through to the launcher", ())
    wrap: fields.Words = _field("a container or another program around the job", ())
    ray_address: fields.RayAddress | None = _field(
        "an existing Ray cluster for the launcher ray; absent: one of the run's own"
    )
    slurm: fields.SbatchOptions = _field(
        "options of sbatch for the launcher slurm, such as {nodes: 2, time: 1-00:00:00}", {}
    )
    procs_per_node: fields.Procs | None = _field(
        "a number of ranks on every node; one a GPU if absent"
    )
    command: fields.Words = _field("the job's program and its arguments", ())
    env: fields.Variables = _field("environment of the job, recorded in clear", {})
    env_from: fields.VariableNames = _field(
        "variables taken from this machine's environment; never stored", ()
    )
    env_init: fields.ShellLine | None = _field(
        "a shell line run on the node first; its changes of environment stay"
    )
    needs: fields.Paths = _field("must exist and be equal on every node", ())
    packages: fields.Packages = _field(
        "Python packages that every node needs, as name or name==version", ()
    )
    check: fields.Words = _field("a command that `check` runs on every node", ())
    checkpoints: fields.NodePath | None = _field("the folder of the checkpoints, from workdir")
    resume_args: fields.Words = _field(
        "added to the command by resume; {checkpoint} becomes the path", ()
    )
    stop: StopSection = _field("how the ranks are asked to end", StopSection())


class TopSection(Section):
    """The top-level keys that are not sections."""

    cluster: fields.Name = Field(description="a name for the cluster; records are kept under it")
    shared: fields.AbsolutePaths = _field(
        "paths that must be one filesystem, seen by all nodes", ()
    )
    workdir: fields.Folder | None = _field("a folder: the code is mirrored here, the job runs here")
    same_machine: fields.Allow | None = _field("allow: two entries may be one machine")


class HostsFile(TopSection):
    """The whole file."""

    ssh: SshSection = _field("how nodes are reached", SshSection())
    defaults: DefaultsSection = _field("settings of every node", DefaultsSection())
    network: NetworkSection = _field("found or chosen if absent", NetworkSection())
    nodes: tuple[NodeSection, ...] = Field(
        (),
        min_length=1,
        description="the first is the master unless one says master: true; absent: Slurm's",
    )
    job: JobSection = _field("what is launched", JobSection())


def _keep_written_values(value: dict[str, Any]) -> None:
    """Remove what pydantic adds about absent values: null, defaults, titles."""
    for word in ("default", "title"):
        value.pop(word, None)
    choices = [choice for choice in value.get("anyOf", ()) if choice != {"type": "null"}]
    if len(choices) == 1:
        del value["anyOf"]
        value.update(choices[0])


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a hosts.yaml, for editors."""
    schema = HostsFile.model_json_schema()
    for section in (schema, *schema["$defs"].values()):
        for value in section["properties"].values():
            _keep_written_values(value)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "clusterctl inventory"
    # A host without settings may stand alone.
    schema["properties"]["nodes"]["items"] = {
        "anyOf": [{"type": "string", "minLength": 1}, {"$ref": "#/$defs/NodeSection"}]
    }
    return schema
