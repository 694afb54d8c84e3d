"""Reads the hosts of a file in any known form, and of a Slurm allocation."""

from __future__ import annotations

from pathlib import Path

from clusterctl.errors import InventoryError, UsageError
from clusterctl.inventory.allocation import NODELISTS, nodelist
from clusterctl.inventory.ansible import (
    has_sections,
    is_ansible_ini,
    is_ansible_yaml,
    read_ansible_ini,
    read_ansible_yaml,
)
from clusterctl.inventory.build import build, cluster_from_hosts
from clusterctl.inventory.cluster import Cluster
from clusterctl.inventory.document import read_yaml
from clusterctl.inventory.hostfile import read_hostfile
from clusterctl.inventory.load import is_yaml, read_text
from clusterctl.inventory.problems import Problems
from clusterctl.inventory.ranges import BadRange, expand_hosts

SLURM = "slurm"


class _SourceProblems(Problems):
    hint = "--from reads hostfiles, Ansible inventories and a hosts.yaml"


def load_source(path: Path, *, name: str, group: str | None = None) -> Cluster:
    """Return the cluster of a hosts.yaml, a hostfile or an Ansible inventory.

    Args:
        path: the file; its content tells its form.
        name: of the cluster; a hosts.yaml has its own.
        group: of an Ansible inventory; None: all hosts.

    Raises:
        InventoryError: it cannot be read, or has problems.
        UsageError: there is a group, and the file has none.
    """
    text = read_text(path)
    problems = _SourceProblems(str(path))
    yaml = is_yaml(path, text) and (is_yaml(path, "") or not has_sections(text))
    parsed = read_yaml(text, Problems(str(path))) if yaml else None
    if is_ansible_yaml(parsed.value if parsed else None):
        document = read_ansible_yaml(text, problems, name=name, group=group)
    elif not yaml and is_ansible_ini(text):
        document = read_ansible_ini(text, problems, name=name, group=group)
    else:
        if group is not None:
            raise UsageError(
                f"--group {group}: expected an Ansible inventory, found another file: {path}",
                hint="leave --group out",
            )
        document = read_yaml(text, problems) if yaml else read_hostfile(text, problems)
        if document is not None and not yaml:
            assert isinstance(document.value, dict)
            document.value["cluster"] = name
    problems.raise_if_any()
    if document is None:
        problems.end()
    return build(document, problems)


def slurm_cluster(name: str) -> Cluster:
    """Return the cluster of the Slurm allocation that this shell is in.

    Raises:
        UsageError: there is none, or its list of nodes is in no known form.
    """
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
