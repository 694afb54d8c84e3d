"""Reads the hosts of a file in any known form, and of a Slurm allocation."""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

from clusterctl.errors import InventoryError, UsageError
from clusterctl.inventory.build import build, cluster_from_hosts
from clusterctl.inventory.cluster import Cluster
from clusterctl.inventory.document import read_yaml
from clusterctl.inventory.load import is_yaml, read_text
from clusterctl.inventory.other_programs.allocation import NODELISTS, SBATCH, nodelist
from clusterctl.inventory.other_programs.ansible import (
    has_sections,
    is_ansible_ini,
    is_ansible_yaml,
    is_listing,
    read_ansible_ini,
    read_ansible_yaml,
    read_listing,
)
from clusterctl.inventory.other_programs.hostfile import read_hostfile
from clusterctl.inventory.problems import Plain, Problems, printable, shown
from clusterctl.inventory.ranges import BadRange, expand_hosts

SLURM = "slurm"
LISTER = "ansible-inventory"
LISTER_SECONDS = 60.0
_LISTING = "where Ansible is: ansible-inventory -i {} --list > all.json; then --from all.json"
_HOST_LINE = re.compile(r"^\s*Host[ \t=]+(\S.*)$", re.MULTILINE | re.IGNORECASE)
_HOST_NAME = re.compile(
    r"^\s*(?:HostName|ProxyJump|IdentityFile|User)[ \t=]", re.MULTILINE | re.IGNORECASE
)
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
    yaml = is_yaml(path, text) and (is_yaml(path, "") or not has_sections(text))
    yaml = yaml or text.lstrip().startswith("{")
    parsed = read_yaml(text, Problems(str(path)), foreign=True) if yaml else None
    value = parsed.value if parsed else None
    plugin = isinstance(value, dict) and "plugin" in value
    of_ansible = is_ansible_yaml(value) or plugin or (not yaml and is_ansible_ini(text))
    listed = value if is_listing(value) else None
    if of_ansible and listed is None:
        listed = _listed_by_ansible(path, problems)
    if isinstance(listed, dict):
        document = read_listing(listed, problems, name=name, group=group)
    elif plugin:
        assert isinstance(value, dict)
        problems.add((), wanted="hosts", found=f"the plugin {shown(value['plugin'])}", line=1)
        problems.end(hint=_LISTING.format(shlex.quote(str(path))))
    elif is_ansible_yaml(value):
        document = read_ansible_yaml(text, problems, name=name, group=group)
    elif of_ansible:
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
    cluster = build(document, problems)
    if notes is not None:
        notes.extend(problems.notes)
    return cluster


def _listed_by_ansible(path: Path, problems: Problems) -> object:
    """Return what Ansible itself lists; None: it is not installed here, or fails."""
    program = shutil.which(LISTER)
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program, "-i", str(path), "--list"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=LISTER_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError) as error:
        problems.note(f"{LISTER} cannot be used ({error}): read without it", line=1)
        return None
    found = _json(done.stdout) if done.returncode == 0 else None
    if not is_listing(found):
        why = printable(" ".join(done.stderr.split())) or f"exit code {done.returncode}"
        problems.note(f"{LISTER} failed ({why}): read without it", line=1)
        return None
    return found


def _json(text: str) -> object:
    """Return what JSON stands for, its numbers as `read_yaml` gives them; None: it is none."""
    try:
        found: object = json.loads(text, parse_int=Plain, parse_float=Plain)
        json.dumps(found, ensure_ascii=False).encode()  # fails for half a character
    except (ValueError, RecursionError):
        return None
    return found


def _refuse_other(path: Path, text: str) -> None:
    """Refuse files that list no hosts, with the command that does what is meant."""
    if SBATCH.search(text):
        raise UsageError(
            f"--from {path}: expected a list of hosts, found a script for sbatch",
            hint="Slurm chooses the nodes: clusterctl launch --launcher slurm -- train.py\n"
            "in the shell of salloc: clusterctl init --from slurm",
        )
    hosts = [
        word
        for line in _HOST_LINE.findall(text)
        for word in line.split()
        if not {"*", "?", "!"} & set(word)
    ]
    if hosts and _HOST_NAME.search(text):
        names = shlex.join(hosts[:_SHOWN_HOSTS]) + (" ..." if len(hosts) > _SHOWN_HOSTS else "")
        include = "" if path.name == "config" else f" (with `Include {path.absolute()}` in it)"
        raise UsageError(
            f"--from {path}: expected a list of hosts, found an ssh_config",
            hint=f"name its hosts; ~/.ssh/config{include} is read: clusterctl init {names}",
        )


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
