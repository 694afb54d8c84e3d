"""Reads the hosts of a file in any known form, and of a Slurm allocation."""

import re
import shlex
from pathlib import Path

import yaml

from clusterctl.errors import InventoryError, UsageError
from clusterctl.inventory.build import build, cluster_from_hosts
from clusterctl.inventory.cluster import Cluster
from clusterctl.inventory.document import read_yaml
from clusterctl.inventory.load import is_yaml, read_text
from clusterctl.inventory.other_programs.allocation import NODELISTS, SBATCH, nodelist, program_in
from clusterctl.inventory.other_programs.ansible import (
    has_sections,
    is_ansible_ini,
    is_ansible_yaml,
    list_inventory,
    listing_of,
    read_listing,
)
from clusterctl.inventory.other_programs.hostfile import read_hostfile
from clusterctl.inventory.problems import Problems
from clusterctl.inventory.ranges import BadRange, expand_hosts

SLURM = "slurm"
_HOST_LINE = re.compile(r"^[ \t]*Host[ \t=]+(\S.*)$", re.MULTILINE | re.IGNORECASE)
_HOST_NAME = re.compile(
    r"^[ \t]*(?:HostName|ProxyJump|IdentityFile|User)[ \t=]", re.MULTILINE | re.IGNORECASE
)
_HOST_BLOCK = re.compile(r"^(?=[ \t]*Host[ \t=])", re.MULTILINE | re.IGNORECASE)
_ADDRESS = re.compile(r"^[ \t]*HostName[ \t=]", re.MULTILINE | re.IGNORECASE)
_JUMP = re.compile(r"^[ \t]*ProxyJump[ \t=]+(\S+)", re.MULTILINE | re.IGNORECASE)
_SHOWN_HOSTS = 8


class _SourceProblems(Problems):
    hint = "--from reads hostfiles, Ansible inventories and a hosts.yaml"


def load_source(
    path: Path, *, name: str, group: str | None = None, notes: list[str] | None = None
) -> Cluster:
    """Return the cluster of a hosts.yaml, a hostfile or an Ansible inventory.

    Args:
        path: the file; its content tells its form.
        name: of the cluster; a hosts.yaml has its own.
        group: of an Ansible inventory; None: all hosts.
        notes: gets what was not taken over.

    Raises:
        InventoryError: it cannot be read, or has problems.
        UsageError: there is a group, and the file has none.
    """
    text = read_text(path)
    problems = _SourceProblems(str(path))
    _refuse_other(path, text)
    is_in_yaml = is_yaml(path, text) and (is_yaml(path, "") or not has_sections(text))
    of_ansible = is_ansible_yaml(_plain_yaml(text)) if is_in_yaml else is_ansible_ini(text)
    listing = listing_of(text) or (list_inventory(path, problems) if of_ansible else None)
    if listing is not None:
        document = read_listing(listing, problems, name=name, group=group)
    else:
        if group is not None:
            raise UsageError(
                f"--group {group}: expected an Ansible inventory, found another file: {path}",
                hint="leave --group out",
            )
        document = read_yaml(text, problems) if is_in_yaml else read_hostfile(text, problems)
        if document is not None and not is_in_yaml:
            assert isinstance(document.value, dict)
            document.value["cluster"] = name
    problems.raise_if_any()
    if document is None:
        problems.end()
    cluster = build(document, problems)
    if notes is not None:
        notes.extend(problems.notes)
    return cluster


def _plain_yaml(text: str) -> object:
    """Return what YAML stands for, whatever its tags; None: it is none."""
    try:
        return yaml.load(text, Loader=yaml.BaseLoader)  # noqa: S506  (makes texts alone)
    except (yaml.YAMLError, RecursionError):
        return None


def _refuse_other(path: Path, text: str) -> None:
    """Refuse files that list no hosts, with the command that does what is meant."""
    if SBATCH.search(text):
        raise UsageError(
            f"--from {path}: expected a list of hosts, found a script for sbatch",
            hint="Slurm chooses the nodes: clusterctl launch --launcher slurm --"
            f" {program_in(text)}\n"
            "in the shell of salloc: clusterctl init --from slurm",
        )
    hosts = _hosts_of_ssh_config(text) if _HOST_NAME.search(text) else []
    if hosts:
        names = shlex.join(hosts[:_SHOWN_HOSTS]) + (" ..." if len(hosts) > _SHOWN_HOSTS else "")
        include = "" if path.name == "config" else f" (with `Include {path.absolute()}` in it)"
        raise UsageError(
            f"--from {path}: expected a list of hosts, found an ssh_config",
            hint=f"name its hosts; ~/.ssh/config{include} is read: clusterctl init {names}",
        )


def _hosts_of_ssh_config(text: str) -> list[str]:
    """Return the names of hosts, one of each that has several, without jump hosts."""
    found: dict[str, None] = {}
    jumps: set[str] = set()
    for block in _HOST_BLOCK.split(text):
        if names := _HOST_LINE.match(block):
            words = [word for word in names[1].split() if not {"*", "?", "!"} & set(word)]
            found |= dict.fromkeys(words[:1] if _ADDRESS.search(block) else words)
        for value in _JUMP.findall(block):
            jumps |= {each.rpartition("@")[2].partition(":")[0] for each in value.split(",")}
    return [name for name in found if name not in jumps]


def slurm_cluster(name: str) -> Cluster:
    """Return the cluster of the Slurm allocation that this shell is in."""
    variable, hosts = nodelist()
    if not variable:
        raise UsageError(
            f"--from slurm: expected {NODELISTS[0]}, which an allocation sets, found none",
            hint="salloc -N 2, then the same command in its shell",
        )
    try:
        return cluster_from_hosts(name, expand_hosts(hosts))
    except (BadRange, InventoryError) as error:
        found = "; ".join(error.problems) if isinstance(error, InventoryError) else str(error)
        raise UsageError(
            f"--from slurm: {variable}: {found}", hint=f'scontrol show hostnames "${variable}"'
        ) from error
