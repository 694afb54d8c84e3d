"""Reads the hosts of an Ansible inventory, INI or YAML: groups, children, variables, ranges.

Only what SSH needs is taken: address, user, port, private key and jump hosts. As in Ansible, a
host's own variables go before those of its groups, and a group's before those of its parents.
"""

import re
import shlex
import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

from clusterctl.inventory.addresses import split_login
from clusterctl.inventory.build import document_of
from clusterctl.inventory.document import Document, read_yaml
from clusterctl.inventory.other_programs.ansible_variables import (
    Value,
    Variables,
    node_of,
    variables_beside,
    yaml_variables,
)
from clusterctl.inventory.problems import Path, Problems, printable, shown
from clusterctl.inventory.ranges import LIMIT

ALL = "all"
_UNGROUPED = "ungrouped"
_SECTION = re.compile(r"\[([^\[\]:]+)(?::([^\[\]]*))?\]\s*(?:[#;].*)?")
_VARIABLE = re.compile(r"([A-Za-z_]\w*)\s*=\s*(.*)")
_PORT = re.compile(r"(?P<host>(?:[^:\[\]]|\[[^\[\]]*\])+):(?P<port>[0-9]+)")
_RANGE = re.compile(r"\[([^\[\]:]*):([^\[\]:]*)(?::([^\[\]:]*))?\]")
_LITERAL = re.compile(r"""(?:(['"])(.*?)\1|(\d+))\s*(?:\#.*)?""")
_A_RANGE = re.compile(r"\[\w*:\w+(:\d+)?\]")
"""A range for certain; the brackets of an IPv6 address hold two colons in a row."""
_DIGITS = 9
_NAMED = 3
"""Most names in a note."""
_NO_GROUPS = frozenset({ALL, _UNGROUPED})


@dataclass(slots=True)
class _Group:
    hosts: dict[str, None] = field(default_factory=dict)
    children: dict[str, int] = field(default_factory=dict)
    """Their names, and the lines that name them."""
    variables: Variables = field(default_factory=dict)


@dataclass(slots=True)
class _Inventory:
    """What the file says, before it is worked out what that means for a host."""

    problems: Problems
    groups: dict[str, _Group] = field(default_factory=lambda: {ALL: _Group()})
    hosts: dict[str, Variables] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)

    def group(self, name: str) -> _Group:
        return self.groups.setdefault(name, _Group())

    def add(self, pattern: str, group: str, variables: Variables, line: int) -> None:
        """Add the hosts of a pattern such as `gpu[01:04]:2222` to a group."""
        found = _PORT.fullmatch(pattern)
        if found:
            pattern = found["host"]
            variables = {"ansible_port": Value(found["port"], line), **variables}
        for name in _expanded(pattern, line, self.problems):
            if len(self.hosts) >= LIMIT and name not in self.hosts:
                wanted = f"at most {LIMIT} hosts"
                self.problems.add((), wanted=wanted, found="more", line=line)
                return
            self.group(group).hosts[name] = None
            self.lines.setdefault(name, line)
            self.hosts.setdefault(name, {}).update(variables)


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
    return any({"hosts", "children"} & group.keys() for group in groups)


def is_listing(value: object) -> bool:
    """Tell what `ansible-inventory --list` prints."""
    meta = value.get("_meta") if isinstance(value, dict) else None
    return isinstance(meta, dict) and isinstance(meta.get("hostvars"), dict)


def read_ansible_ini(
    text: str, problems: Problems, *, name: str, group: str | None
) -> Document | None:
    """Return the document of the hosts of a group; None if there is none.

    Args:
        text: the file's.
        problems: what is wrong is added here.
        name: of the cluster.
        group: whose hosts; None: of all.
    """
    if template := re.search(r"(?m)^[ \t]*(\{%[^%\n]*%\})", text):
        place = text[: template.start()].count("\n") + 1
        shown_template = f'a Jinja template: "{printable(template[1])}"'
        problems.add((), wanted="an inventory", found=shown_template, line=place)
        return None
    found = _Inventory(problems)
    current, kind = _UNGROUPED, ""
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith(("#", ";")):
            continue
        section = _SECTION.fullmatch(line)
        if section:
            current, kind = section[1].strip(), (section[2] or "hosts").strip()
            found.group(current)
            if kind not in {"hosts", "vars", "children"}:
                wanted = "[GROUP], [GROUP:vars] or [GROUP:children]"
                problems.add((), wanted=wanted, found=f'"{printable(line)}"', line=number)
        elif kind == "vars":
            _ini_variable(line, found.group(current).variables, number, problems)
        elif kind == "children":
            found.group(current).children[line.split()[0]] = number
        else:
            _ini_host(line, current, number, found)
    _read_beside(found)
    return _document(found, name, group)


def _ini_variable(line: str, variables: Variables, number: int, problems: Problems) -> None:
    matched = _VARIABLE.fullmatch(line)
    if matched is None:
        problems.add((), wanted="NAME=VALUE", found=f'"{printable(line)}"', line=number)
        return
    value = matched[2].strip()
    if literal := _LITERAL.fullmatch(value):
        value = literal[2] if literal[1] else literal[3]
    variables[matched[1]] = Value(value, number)


def _ini_host(line: str, group: str, number: int, found: _Inventory) -> None:
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        found.problems.add((), wanted="quotes in pairs", found=f'"{printable(line)}"', line=number)
        return
    variables: Variables = {}
    for word in words[1:]:
        _ini_variable(word, variables, number, found.problems)
    if words:
        found.add(words[0], group, variables, number)


def read_ansible_yaml(
    text: str, problems: Problems, *, name: str, group: str | None
) -> Document | None:
    """Return the document of the hosts of a group, as `read_ansible_ini` does."""
    document = read_yaml(text, problems, foreign=True)
    if document is None or not isinstance(document.value, dict):
        return None
    problems.lines = document.lines
    found = _Inventory(problems)
    for key, value in document.value.items():
        _yaml_group(key, value, (key,), found)
    problems.lines = {}
    _read_beside(found)
    return _document(found, name, group)


def read_listing(
    value: Mapping[str, Any], problems: Problems, *, name: str, group: str | None
) -> Document | None:
    """Return the document of what `ansible-inventory --list` printed, as `read_ansible_ini`."""
    found = _Inventory(problems)
    variables = value["_meta"]["hostvars"]
    for key, content in value.items():
        members = content if isinstance(content, dict) and key != "_meta" else {}
        for child in members.get("children") or ():
            found.group(key).children[str(child)] = 1
            found.group(str(child))
        for host in members.get("hosts") or ():
            own = variables.get(host)
            texts = yaml_variables(own if isinstance(own, dict) else {}, (), problems)
            found.add(str(host), key, texts, 1)
    return _document(found, name, group)


def _read_beside(found: _Inventory) -> None:
    """Add the variables of `group_vars/` and `host_vars/` next to the inventory, which go first."""
    file = FilePath(found.problems.file)
    for group, content in found.groups.items():
        content.variables.update(variables_beside(file, "group_vars", group, found.problems))
    for host, variables in found.hosts.items():
        variables.update(variables_beside(file, "host_vars", host, found.problems))


def _yaml_group(name: str, value: object, path: Path, found: _Inventory) -> None:
    group = found.group(name)
    sections = _mapping(value, path, found.problems)
    for key in ("hosts", "vars", "children"):
        content = sections.get(key)
        if isinstance(content, str) and key != "vars":
            content = {content: None}  # one host, as Ansible takes it
        inner = _mapping(content, (*path, key), found.problems)
        for item, content in inner.items():
            place = (*path, key, item)
            line = found.problems.line(place)
            if key == "hosts":
                variables = _mapping(content, place, found.problems)
                found.add(item, name, yaml_variables(variables, place, found.problems), line)
            elif key == "vars":
                group.variables.update(yaml_variables({item: content}, path, found.problems))
            else:
                group.children[item] = line
                _yaml_group(item, content, place, found)


def _mapping(value: object, path: Path, problems: Problems) -> dict[str, object]:
    """Return a mapping, empty for nothing."""
    if isinstance(value, dict):
        return value
    if value is not None:
        problems.add(path, wanted="a mapping", found=shown(value))
    return {}


def _expanded(pattern: str, line: int, problems: Problems) -> Sequence[str]:
    """Return the names of a pattern with ranges such as `[01:10]`, `[1:9:2]` and `[a:f]`."""
    names = [""]
    rest = pattern
    while found := _RANGE.search(rest):
        members = _members(found[1], found[2], found[3])
        if members is None or len(names) * len(members) > LIMIT:
            wanted = f"a range such as [01:16] or [a:f], of at most {LIMIT} hosts"
            problems.add((), wanted=wanted, found=f'"{printable(pattern)}"', line=line)
            return ()
        names = [f"{name}{rest[: found.start()]}{member}" for name in names for member in members]
        rest = rest[found.end() :]
    return [name + rest for name in names]


def _members(first: str, last: str, step: str | None) -> Sequence[str] | None:
    """Return what a range stands for; None if it is not one, or too long."""
    stride = step or "1"
    if not stride.isdecimal() or len(stride) > _DIGITS or int(stride) == 0:
        return None
    letters = string.ascii_letters
    if len(first) == 1 and len(last) == 1 and first in letters and last in letters:
        return letters[letters.index(first) : letters.index(last) + 1 : int(stride)] or None
    first = first or "0"
    if not (first.isascii() and first.isdecimal() and last.isascii() and last.isdecimal()):
        return None
    if max(len(first), len(last)) > _DIGITS:
        return None
    numbers = range(int(first), int(last) + 1, int(stride))
    if not 0 < len(numbers) <= LIMIT:
        return None
    width = len(first) if first[0] == "0" else 0
    return [str(number).zfill(width) for number in numbers]


def _document(found: _Inventory, name: str, group: str | None) -> Document | None:
    problems = found.problems
    parents = _parents(found)
    if group is not None and group not in found.groups:
        known = ", ".join(sorted(found.groups))
        problems.add((), wanted=f"a group of {printable(known)}", found=f'"{group}"', line=1)
        return None
    depths = {one: _depth(one, parents) for one in found.groups}
    direct: dict[str, list[str]] = {}
    for one, content in found.groups.items():
        for host in content.hosts:
            direct.setdefault(host, []).append(one)
    chosen: dict[str, dict[str, object]] = {}
    for host, own in found.hosts.items():
        groups = {ALL, *(above for one in direct[host] for above in _above(one, parents))}
        if group not in {None, *groups}:
            continue
        variables: Variables = {}
        for one in sorted(groups, key=lambda each: (depths[each], each)):
            variables.update(found.groups[one].variables)
        variables.update(own)
        chosen[host] = node_of(host, variables, problems)
    if group is None:
        _note_groups(found, parents)
        jumps = _jump_hosts(chosen.values())
        through = {host for host, node in chosen.items() if node.get("jump")}
        gates = {host for host, node in chosen.items() if {host, node["host"]} & jumps}
        # A head node is in one group with the nodes behind it, and trains, too.
        named = [g.hosts.keys() for name, g in found.groups.items() if name not in _NO_GROUPS]
        heads = {host for hosts in named if hosts & through for host in hosts}
        for host in sorted(gates - heads, key=list(chosen).index):
            text = (
                f"{printable(host)} is left out: others are reached through it (--group takes it)"
            )
            problems.note(text, line=found.lines[host])
            del chosen[host]
    nodes = list(chosen.values())
    lines: dict[Path, int] = {("nodes", n): found.lines[host] for n, host in enumerate(chosen)}
    if not nodes:
        problems.add((), wanted="hosts", found="none", line=1)
        return None
    _note_names(found, chosen)
    return document_of(name, nodes, lines)


def _note_names(found: _Inventory, chosen: Mapping[str, Mapping[str, object]]) -> None:
    """Say that a node is named by its address, if the file has a name for it."""
    renamed = [host for host, node in chosen.items() if node["host"] != host]
    if renamed:
        first = renamed[0]
        listed = ", ".join(map(printable, renamed[:_NAMED]))
        more = f" and {len(renamed) - _NAMED} more" if len(renamed) > _NAMED else ""
        text = (
            f"nodes are named by their ansible_host, not {listed}{more}; to keep a name, write"
            f" `Host {printable(first)}` with `HostName {printable(str(chosen[first]['host']))}`"
            " into ~/.ssh/config, and remove ansible_host"
        )
        found.problems.note(text, line=found.lines[first])


def _note_groups(found: _Inventory, parents: Mapping[str, Sequence[str]]) -> None:
    """Name the groups to choose from, if there are several."""
    sizes: dict[str, set[str]] = {}
    for name, content in found.groups.items():
        for above in _above(name, parents):
            sizes.setdefault(above, set()).update(content.hosts)
    own = {name: len(hosts) for name, hosts in sizes.items() if hosts}
    named = [f"{printable(name)} {size}" for name, size in own.items() if name not in _NO_GROUPS]
    if len(named) > 1:
        text = f"hosts of all groups are taken ({', '.join(named)}); of one: --group NAME"
        found.problems.note(text, line=1)


def _jump_hosts(nodes: Iterable[Mapping[str, object]]) -> set[str]:
    """Return the hosts through which others are reached, without user and port."""
    hops = (hop for node in nodes for hop in str(node.get("jump") or "").split(","))
    logins = (hop.strip().removeprefix("ssh://").removesuffix("/") for hop in hops)
    return {host for login in logins if (host := split_login(login)[1].strip("[]"))}


def _parents(found: _Inventory) -> dict[str, list[str]]:
    """Return the groups that each group is a child of; report circles, and end them."""
    parents: dict[str, list[str]] = {name: [] for name in found.groups}
    for name, group in tuple(found.groups.items()):
        for child, line in group.children.items():
            if child not in found.groups:
                found.problems.add((), wanted="a group", found=f'"{printable(child)}"', line=line)
            elif name == child or child in _above(name, parents):
                wanted, text = "children in no circle", f'"{printable(child)}"'
                found.problems.add((), wanted=wanted, found=text, line=line)
            else:
                parents[child].append(name)
    return parents


def _above(name: str, parents: Mapping[str, Sequence[str]]) -> dict[str, None]:
    """Return a group and all that it is in."""
    found = {name: None}
    waiting = [name]
    while waiting:
        for parent in parents[waiting.pop()]:
            if parent not in found:
                found[parent] = None
                waiting.append(parent)
    return found


def _depth(name: str, parents: Mapping[str, Sequence[str]]) -> int:
    """Return how far a group is below `all`: its variables go before those of fewer steps."""
    if name == ALL:
        return 0
    level, at = 1, {name}
    while at := {parent for one in at for parent in parents[one] if parent != ALL}:
        level += 1
    return level
