"""Writes a cluster's hosts for other programs, as text; each format is a pure function."""

import re
from collections.abc import Callable, Iterator
from functools import partial

import yaml

from clusterctl.errors import UsageError
from clusterctl.inventory.cluster import Cluster, Node
from clusterctl.values import dataclass

_SSH_NOTE = "# Users, ports and keys: clusterctl export --to ssh_config\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedNode:
    """A node as the inventory describes it, with its defaults."""

    node: str
    """Its name in clusterctl's output."""
    host: str
    """Its name or address for SSH."""
    user: str | None
    port: int | None
    identity: str | None
    """The path of the private key on your machine."""
    jump: str | None
    gpus: int | None
    """GPUs to use; null: all that are found."""
    python: str | None
    workdir: str | None
    address: str | None
    """Its address on the data network; null: found by `check`."""


def exported_nodes(cluster: Cluster) -> tuple[ExportedNode, ...]:
    """Return the nodes for JSON, the master first."""
    return tuple(
        ExportedNode(
            node=node.name,
            host=node.host,
            user=node.ssh.user,
            port=node.ssh.port,
            identity=node.ssh.identity,
            jump=node.ssh.jump,
            gpus=node.gpus_wanted,
            python=node.python,
            workdir=node.workdir,
            address=node.address,
        )
        for node in cluster.nodes
    )


def to_hostfile(name: str, cluster: Cluster) -> str:
    """Return a hostfile of DeepSpeed or Open MPI: `host slots=N`, the master first."""
    hosts = [node.host for node in cluster.nodes]
    twice = next((node for node in cluster.nodes if hosts.count(node.host) > 1), None)
    if twice is not None:
        raise UsageError(
            f"{twice.source or cluster.file}: expected each host once, since a hostfile has no"
            f" ports, found {twice.host} again",
            hint="clusterctl export --to ssh_config, then list its names",
        )
    others = any(node.ssh.user or node.ssh.port or node.ssh.identity for node in cluster.nodes)
    lines = [f"{node.host} slots={slots(cluster, node, name)}\n" for node in cluster.nodes]
    return (_SSH_NOTE if others else "") + "".join(lines)


def slots(cluster: Cluster, node: Node, name: str) -> int:
    """Return the processes of a node: one a GPU, or those on its CPUs."""
    if cluster.job.procs_per_node is not None:
        return cluster.job.procs_per_node
    if node.gpus is None:
        raise UsageError(
            f"{node.source or cluster.file}: gpus: expected a number for --to {name}, found none"
            f" for {node.name}",
            hint="`defaults: {gpus: 8}`, or write the file with clusterctl init, which finds it",
        )
    return node.gpus or node.procs or 1


def to_ansible(cluster: Cluster) -> str:
    """Return an inventory of Ansible in YAML, with the cluster as a group."""
    hosts = {_alias(cluster, node): _variables(cluster, node) or None for node in cluster.nodes}
    group = re.sub(r"\W", "_", cluster.name)
    # Ansible refuses some names of groups, and a digit in front.
    group = f"cluster_{group}" if group[0].isdigit() or group in {"all", "ungrouped"} else group
    return _yaml({"all": {"children": {group: {"hosts": hosts}}}})


def _variables(cluster: Cluster, node: Node) -> dict[str, object]:
    if node.local:
        return {"ansible_connection": "local"}
    jump = node.ssh.jump
    values = {
        "ansible_host": node.host if _alias(cluster, node) != node.host else None,
        "ansible_user": node.ssh.user,
        "ansible_port": node.ssh.port,
        "ansible_ssh_private_key_file": node.ssh.identity,
        "ansible_ssh_common_args": f"-o ProxyJump={jump}" if jump else None,
    }
    return {key: value for key, value in values.items() if value is not None}


def to_ssh_config(cluster: Cluster) -> str:
    """Return the `Host` blocks of the nodes that are reached over SSH."""
    blocks = ("".join(_block(cluster, node)) for node in cluster.nodes if not node.local)
    return "\n".join(blocks)


def _block(cluster: Cluster, node: Node) -> Iterator[str]:
    alias, ssh = _alias(cluster, node), node.ssh
    yield f"Host {alias}\n"
    if alias != node.host:
        yield f"  HostName {node.host.replace('%', '%%')}\n"
    if ssh.user is not None:
        yield f"  User {ssh.user}\n"
    if ssh.port is not None:
        yield f"  Port {ssh.port}\n"
    if ssh.identity is not None:
        # ssh expands tokens there, and needs quotes around spaces.
        yield f'  IdentityFile "{ssh.identity.replace("%", "%%")}"\n'
    if ssh.jump is not None:
        yield f"  ProxyJump {ssh.jump}\n"


def _alias(cluster: Cluster, node: Node) -> str:
    """Return the host, or the node's unique name if several nodes share the host."""
    hosts = [one.host for one in cluster.nodes]
    return node.host if hosts.count(node.host) == 1 else node.name


def _yaml(document: object) -> str:
    text: str = yaml.safe_dump(document, sort_keys=False)
    return text


FORMATS: dict[str, Callable[[Cluster], str]] = {
    "deepspeed": partial(to_hostfile, "deepspeed"),
    "mpi": partial(to_hostfile, "mpi"),
    "ansible": to_ansible,
    "ssh_config": to_ssh_config,
}
