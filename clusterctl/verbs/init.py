"""Writes a hosts.yaml to start from: with the hosts given, or those of a hostfile."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path

from clusterctl.errors import UsageError
from clusterctl.inventory import load
from clusterctl.inventory.build import cluster_from_hosts
from clusterctl.inventory.cluster import Cluster, Node
from clusterctl.inventory.dump import dump, flow
from clusterctl.inventory.machine import own_user

_UNFIT = re.compile(r"[^a-z0-9-]+")
_NAME_LIMIT = 24

_HEAD = """\
# yaml-language-server: $schema={schema}
# The machines of a cluster, how they are reached, and what runs on them.
# The first node is the master. Next: clusterctl check
"""

_SSH = "# ssh: {user: ubuntu, identity: ~/.ssh/id_ed25519, jump: bastion}\n"
_OPTIONS = f"""\

# Other keys. Without them, ssh_config and the nodes themselves decide.
{_SSH}# defaults: {{gpus: 8, python: /opt/venv/bin/python}}  # the job's interpreter
# shared: [/workspace]                               # one filesystem, seen by all nodes
# network: {{subnet: 10.11.7.0/24, master_port: 29600}}
# job:
#   command: [-m, train, --config, config.yaml]
#   env: {{NCCL_DEBUG: INFO}}                          # recorded in clear
#   env_from: [HF_TOKEN]                             # taken from your environment, never stored
#   checkpoints: checkpoints
#   resume_args: [--resume-from-checkpoint, "{{checkpoint}}"]
"""

_WORKDIR = "# The code is mirrored here and the job runs here, on every node.\n"
_GPU_SIGNS = ("/dev/nvidiactl", "/dev/kfd")
_GPU_TOOLS = ("nvidia-smi", "amd-smi", "rocm-smi")


def draft(hosts: Sequence[str], *, name: str, identity: Path | None = None) -> str:
    """Return the text of a hosts.yaml for hosts as one gives them to ssh.

    Args:
        hosts: names, addresses and ranges, with user and port.
        name: of the cluster.
        identity: the private key that opens all of them; None: as ssh finds one.

    Raises:
        InventoryError: a host or the name cannot be used.
        UsageError: the identity is no private key.
    """
    text = _text(cluster_from_hosts(name, hosts))
    if identity is None:
        return text
    ssh = f"ssh: {_key(identity)}  # also: user, port, jump\n"
    return text.replace(_SSH, "").replace(f"cluster: {name}\n", f"cluster: {name}\n{ssh}", 1)


def _key(identity: Path) -> str:
    """Return `ssh:` of an inventory with this key.

    Raises:
        UsageError: it is no private key.
    """
    path = identity.expanduser().absolute()
    try:
        first = path.read_bytes()[:64]
    except OSError as error:
        raise UsageError(
            f"--identity {identity}: expected a private key: {error.strerror}"
        ) from None
    if b"PRIVATE KEY" not in first:
        private = path.with_suffix("") if path.suffix == ".pub" else None
        raise UsageError(
            f"--identity {identity}: expected a private key, found another file",
            hint=f"--identity {private}" if private else "ssh-keygen -t ed25519 makes one",
        )
    return flow({"identity": str(path)})


def convert(hostfile: Path) -> str:
    """Return the text of a hosts.yaml that says what another inventory says.

    Raises:
        UsageError: there is no such file.
        InventoryError: it has problems.
    """
    if not hostfile.exists():
        raise UsageError(
            f"--convert {hostfile}: expected a hostfile, found no such file",
            hint="clusterctl init HOST... writes an inventory without one",
        )
    return _text(load(hostfile))


def _text(cluster: Cluster) -> str:
    schema = resources.files("clusterctl.inventory") / "hosts.schema.json"
    nodes = tuple(_completed(node, cluster.name) for node in cluster.nodes)
    text = dump(replace(cluster, nodes=nodes)).replace("\nworkdir:", f"\n{_WORKDIR}workdir:", 1)
    return _HEAD.format(schema=schema) + text + _OPTIONS


def _completed(node: Node, cluster: str) -> Node:
    """Return a node with a folder for the code; this machine also with what is found on it."""
    if not node.local:
        user = node.ssh.user or own_user()
        home = "/root" if user == "root" else f"/home/{user}"
        return replace(node, workdir=node.workdir or f"{home}/clusterctl/{cluster}")
    return replace(
        node,
        workdir=node.workdir or str(Path.home() / "clusterctl" / cluster),
        gpus=node.gpus if node.gpus is not None or _has_gpus() else 0,
        python=node.python or _with_torch(),
    )


def _has_gpus() -> bool:
    """Tell whether this machine looks as if it had GPUs, without a driver's help."""
    return any(map(os.path.exists, _GPU_SIGNS)) or any(map(shutil.which, _GPU_TOOLS))


def _with_torch() -> str | None:
    """Return an interpreter of this machine that has torch: the active environment's, or ours."""
    active = os.environ.get("VIRTUAL_ENV")
    candidates = [f"{active}/bin/python"] if active else []
    for python in (*candidates, sys.executable):
        found = Path(python).parent.parent.glob("lib/python3*/*-packages/torch/version.py")
        if next(found, None) is not None:
            return python
    return None


def name_for(folder: Path) -> str:
    """Return a cluster's name made of a folder's."""
    name = _UNFIT.sub("-", folder.absolute().name.lower()).strip("-")
    return name[:_NAME_LIMIT].strip("-") or "cluster"


def write(path: Path, text: str, *, overwrite: bool) -> None:
    """Write the file.

    Raises:
        UsageError: it exists and is not to be overwritten, or cannot be written.
    """
    try:
        with path.open("w" if overwrite else "x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise UsageError(
            f"{path}: expected no file yet, found one", hint="--force overwrites it"
        ) from None
    except OSError as error:
        message = f"{path}: expected a place to write, found: {error.strerror}"
        raise UsageError(message) from error
