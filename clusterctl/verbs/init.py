"""Writes a hosts.yaml to start from: with the hosts given, or those of a hostfile."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from clusterctl.errors import UsageError
from clusterctl.inventory import load
from clusterctl.inventory.cluster import Cluster
from clusterctl.inventory.dump import dump
from clusterctl.inventory.words import cluster_of_words

_UNFIT = re.compile(r"[^a-z0-9-]+")
_NAME_LIMIT = 24

_HEAD = """\
# yaml-language-server: $schema={schema}
# The machines of a cluster, how they are reached, and what runs on them.
# The first node is the master. Next: clusterctl check
"""

_OPTIONS = """\

# What else can be said here; without it ssh_config, or what is found on the nodes, decides.
# ssh: {user: ubuntu, identity: ~/.ssh/id_ed25519, jump: bastion}
# defaults: {gpus: 8, python: /opt/venv/bin/python}  # the job's interpreter
# shared: [/workspace]                               # one filesystem, seen by all nodes
# workdir: /workspace/project                        # the code is mirrored here
# network: {subnet: 10.11.7.0/24, master_port: 29600}
# job:
#   command: [-m, train, --config, config.yaml]
#   env: {NCCL_DEBUG: INFO}                          # recorded in clear
#   env_from: [HF_TOKEN]                             # taken from your environment, never stored
#   checkpoints: checkpoints
#   resume_args: [--resume-from-checkpoint, "{checkpoint}"]
"""


def draft(hosts: Sequence[str], *, name: str) -> str:
    """Return the text of a hosts.yaml for hosts as one gives them to ssh.

    Raises:
        InventoryError: a host or the name cannot be used.
    """
    return _text(cluster_of_words(name, hosts))


def convert(hostfile: Path) -> str:
    """Return the text of a hosts.yaml that says what another inventory says.

    Raises:
        UsageError: there is no such file.
        InventoryError: it has problems.
    """
    if not hostfile.exists():
        raise UsageError(
            f"--convert {hostfile}: wanted a hostfile, found no such file",
            hint="clusterctl init HOST... writes an inventory without one",
        )
    return _text(load(hostfile))


def _text(cluster: Cluster) -> str:
    schema = resources.files("clusterctl.inventory") / "hosts.schema.json"
    return _HEAD.format(schema=schema) + dump(cluster) + _OPTIONS


def name_for(folder: Path) -> str:
    """Return a cluster's name made of a folder's."""
    name = _UNFIT.sub("-", folder.absolute().name.lower()).strip("-")
    return name[:_NAME_LIMIT].strip("-") or "cluster"


def write_new(path: Path, text: str) -> None:
    """Write a file that is not there yet.

    Raises:
        UsageError: it is there, or cannot be written.
    """
    try:
        with path.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise UsageError(
            f"{path}: wanted no file yet, found one", hint="--force writes over it"
        ) from None
    except OSError as error:
        raise _unwritable(path, error) from error


def write_over(path: Path, text: str) -> None:
    """Write a file, whatever is there.

    Raises:
        UsageError: it cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> UsageError:
    return UsageError(f"{path}: wanted a place to write, found: {error.strerror}")
