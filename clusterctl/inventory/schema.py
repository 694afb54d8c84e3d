"""The shape of a hosts.yaml: one model a section; the JSON Schema for editors comes from here."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from clusterctl.inventory import fields
from clusterctl.inventory.readers import Unwanted


class Section(BaseModel):
    """A mapping of the file; a key that it does not know is a problem."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*", mode="before")
    @classmethod
    def _written(cls, value: object, info: ValidationInfo) -> object:
        """Refuse a key without a value: `~` alone is one, and it was meant as something."""
        if value is None:
            assert info.field_name is not None
            raise Unwanted(cls.model_fields[info.field_name].description or "a value", None)
        return value


class SshSection(Section):
    """How nodes are reached; what is left out is ssh_config's to say."""

    user: fields.User | None = Field(default=None, description="the user to log in as")
    port: fields.Port | None = Field(default=None, description="the port of sshd")
    identity: fields.LocalPath | None = Field(
        default=None,
        description="a private key on this machine; relative to the inventory's folder",
    )
    jump: fields.Jump | None = Field(
        default=None, description="a jump host, as [user@]host[:port]; none overrides ssh_config"
    )
    via: fields.Via = Field(
        default="paramiko", description="paramiko, or openssh for the system's own ssh program"
    )


class DefaultsSection(Section):
    """What holds for every node that does not say otherwise."""

    gpus: fields.Gpus = Field(
        default=None,
        description="a number of GPUs; auto: what is found; 0: CPU processes over gloo",
    )
    procs: fields.Procs | None = Field(
        default=None, description="a number of processes where gpus is 0; 1 if absent"
    )
    python: fields.Interpreter | None = Field(default=None, description="the job's interpreter")
    state: fields.AbsolutePath | None = Field(
        default=None, description="a folder for node state, instead of /var/tmp/clusterctl-UID"
    )


class NodeSection(SshSection, DefaultsSection):
    """One host, or a range of hosts with the same settings."""

    host: fields.Hosts = Field(
        description="a host name, an address, localhost, or a range as gpu[01-04,07]"
    )
    address: fields.Addresses | None = Field(
        default=None,
        description="address on the data network; for a range of hosts a range as long",
    )
    workdir: fields.Folder | None = Field(default=None, description="workdir of this node alone")
    master: fields.YesNo = Field(default=False, description="this node is the master (rank 0)")


class NetworkSection(Section):
    """The network that the ranks talk over; found or chosen where absent."""

    subnet: fields.Subnet | None = Field(default=None, description="a network as 10.11.7.0/24")
    master_port: fields.Port | None = Field(default=None, description="a port for the rendezvous")


class StopSection(Section):
    """How the ranks are asked to end."""

    signal: fields.Signal | None = Field(
        default=None, description="a signal to send; TERM if absent"
    )
    file: fields.InsidePath | None = Field(
        default=None, description="a file to make in workdir instead"
    )
    grace: fields.Seconds = Field(default=60.0, description="seconds until KILL")
    failure_grace: fields.Seconds = Field(
        default=1.0, description="seconds for the other ranks when one has failed"
    )
    leftovers: fields.Seconds = Field(
        default=5.0, description="seconds for what ranks that ended well left behind"
    )


class JobSection(Section):
    """What is launched; the command line overrides it."""

    launcher: fields.Launcher = Field(default="torchrun", description="what starts the ranks")
    launcher_args: fields.Words = Field(default=(), description="passed through to the launcher")
    procs_per_node: fields.Procs | None = Field(
        default=None,
        description="a number of ranks on every node; one a GPU if absent",
    )
    command: fields.Words = Field(default=(), description="the job's program and its arguments")
    env: fields.Variables = Field(
        default_factory=dict, description="environment of the job, recorded in clear"
    )
    env_from: fields.VariableNames = Field(
        default=(), description="variables taken from this machine's environment; never stored"
    )
    env_init: fields.ShellLine | None = Field(
        default=None,
        description="a shell line run on the node first; its changes of environment stay",
    )
    needs: fields.Paths = Field(default=(), description="must exist and be equal on every node")
    check: fields.Words = Field(default=(), description="a command that `check` runs on every node")
    checkpoints: fields.NodePath | None = Field(
        default=None, description="the folder of the checkpoints, from workdir"
    )
    resume_args: fields.Words = Field(
        default=(), description="added to the command by resume; {checkpoint} becomes the path"
    )
    stop: StopSection = Field(default=StopSection(), description="how the ranks are asked to end")


class TopSection(Section):
    """The keys at the top of the file that are no section."""

    cluster: fields.Name = Field(description="a name for the cluster; records are kept under it")
    shared: fields.AbsolutePaths = Field(
        default=(), description="paths that must be one filesystem, seen by all nodes"
    )
    workdir: fields.Folder | None = Field(
        default=None, description="a folder: the code is mirrored here, the job runs here"
    )
    same_machine: fields.Allow | None = Field(
        default=None, description="allow: two entries may be one machine"
    )


class HostsFile(TopSection):
    """The whole file."""

    ssh: SshSection = Field(default=SshSection(), description="how nodes are reached")
    defaults: DefaultsSection = Field(
        default=DefaultsSection(), description="settings of every node"
    )
    network: NetworkSection = Field(
        default=NetworkSection(), description="found or chosen where absent"
    )
    nodes: tuple[NodeSection, ...] = Field(
        min_length=1, description="the first is the master unless one says master: true"
    )
    job: JobSection = Field(default=JobSection(), description="what is launched")


def _say_what_may_be_written(value: dict[str, Any]) -> None:
    """Take out what pydantic says of values that are not there: null, defaults, titles."""
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
            _say_what_may_be_written(value)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "clusterctl inventory"
    # A node that is only a host may be written as the host alone.
    schema["properties"]["nodes"]["items"] = {
        "anyOf": [{"type": "string", "minLength": 1}, {"$ref": "#/$defs/NodeSection"}]
    }
    return schema
