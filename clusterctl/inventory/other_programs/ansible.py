"""Reads the hosts of an Ansible inventory, as `ansible-inventory --list` prints them.

Only what SSH needs is taken: address, user, port, private key and jump hosts.
"""

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from clusterctl.inventory.addresses import read_names, split_login
from clusterctl.inventory.build import document_of
from clusterctl.inventory.document import Document
from clusterctl.inventory.other_programs.ansible_variables import node_of
from clusterctl.inventory.problems import InvalidValue, Plain, Problems, printable

LISTER = "ansible-inventory"
LISTER_SECONDS = 60.0
_WHOLE = {"ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "true"}
"""Without it, what Ansible cannot read is left out, and the exit code is 0."""
_SECTION = re.compile(r"\[([^\[\]:]+)(?::([^\[\]]*))?\]\s*(?:[#;].*)?")
_A_RANGE = re.compile(r"\[\w*:\w+(:\d+)?\]")
"""A range for certain; the brackets of an IPv6 address hold two colons in a row."""
_NO_GROUPS = frozenset({"all", "ungrouped"})


def has_sections(text: str) -> bool:
    """Tell whether a line is the head of a section: neither YAML nor a hostfile has such lines."""
    return any(_SECTION.fullmatch(line.strip()) for line in text.splitlines())


def is_ansible_ini(text: str) -> bool:
    """Tell an INI inventory of Ansible from a hostfile: by sections, variables or ranges."""
    lines = (line.partition("#")[0] for line in text.splitlines())
    return has_sections(text) or any("ansible_" in line or _A_RANGE.search(line) for line in lines)


def is_ansible_yaml(value: object) -> bool:
    """Tell a YAML inventory of Ansible from ours: groups at the top, maybe named as our keys."""
    if not isinstance(value, dict):
        return False
    if isinstance(value.get("nodes"), list) or isinstance(value.get("cluster"), str):
        return False
    groups = [group for group in value.values() if isinstance(group, dict)]
    return "plugin" in value or any({"hosts", "children"} & group.keys() for group in groups)


def listing_of(text: str) -> dict[str, Any] | None:
    """Return what `ansible-inventory --list` printed; None: the text is something else."""
    try:
        found = json.loads(text, parse_int=Plain, parse_float=Plain)
        json.dumps(found, ensure_ascii=False).encode()  # fails for half a character
    except (ValueError, RecursionError):
        return None
    meta = found.get("_meta") if isinstance(found, dict) else None
    return found if isinstance(meta, dict) and isinstance(meta.get("hostvars"), dict) else None


def list_inventory(path: Path, problems: Problems) -> dict[str, Any]:
    """Return what Ansible lists; raise InventoryError if it is not here, or cannot read it."""
    command = f"{LISTER} -i {shlex.quote(str(path))} --list"
    program = shutil.which(LISTER)
    if program is None:
        _refuse(
            problems,
            "an Ansible inventory, and no Ansible to read it",
            "pip install ansible-core, then the same command; or, where Ansible is:"
            f" {command} > all.json; then --from all.json",
        )
    try:
        done = subprocess.run(
            [program, "-i", str(path), "--list"],
            env={**os.environ, **_WHOLE},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=LISTER_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError) as error:
        _refuse(problems, f"a failure of {LISTER}: {error}", command)
    listing = listing_of(done.stdout) if done.returncode == 0 else None
    if listing is None:
        words = done.stderr.split("[ERROR]:")[-1].split()
        why = printable(" ".join(words)) or f"exit code {done.returncode}"
        _refuse(problems, f"a failure of {LISTER}: {why}", command)
    return listing


def _refuse(problems: Problems, found: str, hint: str) -> NoReturn:
    problems.add((), wanted="hosts", found=found, line=1)
    problems.end(hint=hint)


def read_listing(
    listing: Mapping[str, Any], problems: Problems, *, name: str, group: str | None
) -> Document | None:
    """Return the document of the hosts of a group, or of all; None if there is none."""
    variables: Mapping[str, Any] = listing["_meta"]["hostvars"]
    groups = {key: value for key, value in listing.items() if isinstance(value, dict)}
    del groups["_meta"]
    members = {one: _members(one, groups) for one in groups}
    if group not in {None, *groups}:
        known = ", ".join(sorted(groups))
        wanted = f"a group of {printable(known)}"
        problems.add((), wanted=wanted, found=f'"{printable(str(group))}"', line=1)
        return None
    hosts = members[group] if group else [host for one in groups for host in members[one]]
    chosen: dict[str, dict[str, object]] = {}
    for host in dict.fromkeys(hosts):
        own = variables.get(host)
        chosen[host] = node_of(host, own if isinstance(own, dict) else {}, problems)
    if group is None:
        _note_groups(members, problems)
        _leave_out_gates(chosen, [set(_listed(one, "hosts")) for one in _own(groups)], problems)
    if not chosen:
        problems.add((), wanted="hosts", found="none", line=1)
        return None
    _keep_names(chosen)
    nodes = list(chosen.values())
    return document_of(name, nodes, {("nodes", number): 1 for number in range(len(nodes))})


def _listed(group: Mapping[str, Any], key: str) -> list[str]:
    found = group.get(key)
    return [str(one) for one in found] if isinstance(found, list) else []


def _own(groups: Mapping[str, Any]) -> list[Any]:
    """Return the groups that the file names itself."""
    return [group for name, group in groups.items() if name not in _NO_GROUPS]


def _members(name: str, groups: Mapping[str, Any]) -> list[str]:
    """Return the hosts of a group and of all groups in it; no circle holds this up."""
    found: list[str] = []
    seen, waiting = {name}, [name]
    while waiting:
        group = groups.get(waiting.pop(0), {})
        found += _listed(group, "hosts")
        new = [child for child in _listed(group, "children") if child not in seen]
        seen.update(new)
        waiting += new
    return list(dict.fromkeys(found))


def _leave_out_gates(
    chosen: dict[str, dict[str, object]], groups: Sequence[set[str]], problems: Problems
) -> None:
    """Leave out hosts through which others are reached, and name them."""
    jumps = _jump_hosts(chosen.values())
    through = {host for host, node in chosen.items() if node.get("jump")}
    # A head node is in one group with the nodes behind it, and trains, too.
    heads = {host for hosts in groups if hosts & through for host in hosts}
    for host in [h for h, node in chosen.items() if {h, node["host"]} & jumps and h not in heads]:
        text = f"{printable(host)} is left out: others are reached through it (--group takes it)"
        problems.note(text, line=1)
        del chosen[host]


def _keep_names(chosen: Mapping[str, dict[str, object]]) -> None:
    """Let nodes keep the names of the file, if their hosts are others."""
    for name, node in chosen.items():
        with contextlib.suppress(InvalidValue):
            if node["host"] != name and read_names(name) == (name,):
                node["name"] = name


def _note_groups(members: Mapping[str, Sequence[str]], problems: Problems) -> None:
    """Name the groups to choose from, if there are several."""
    named = [
        f"{printable(name)} {len(hosts)}"
        for name, hosts in members.items()
        if hosts and name not in _NO_GROUPS
    ]
    if len(named) > 1:
        text = f"hosts of all groups are taken ({', '.join(named)}); of one: --group NAME"
        problems.note(text, line=1)


def _jump_hosts(nodes: Iterable[Mapping[str, object]]) -> set[str]:
    """Return the hosts through which others are reached, without user and port."""
    hops = (hop for node in nodes for hop in str(node.get("jump") or "").split(","))
    logins = (hop.strip().removeprefix("ssh://").removesuffix("/") for hop in hops)
    return {host for login in logins if (host := split_login(login)[1].strip("[]"))}
