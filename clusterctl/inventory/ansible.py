"""Reads the hosts of an Ansible inventory, INI or YAML: groups, children, variables, ranges.

Only what SSH needs is taken: address, user, port, private key and jump hosts. As in Ansible, a
host's own variables go before those of its groups, and a group's before those of its parents.
"""

from __future__ import annotations

import re
import shlex
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from clusterctl.inventory.build import document_of
from clusterctl.inventory.document import Document, Plain, read_yaml
from clusterctl.inventory.problems import Path, Problems, printable, shown
from clusterctl.inventory.ranges import LIMIT

ALL = "all"
_UNGROUPED = "ungrouped"
_SECTION = re.compile(r"\[([^\[\]:]+)(?::([^\[\]]*))?\]\s*(?:[#;].*)?")
_VARIABLE = re.compile(r"([A-Za-z_]\w*)\s*=\s*(.*)")
_PORT = re.compile(r"(?P<host>(?:[^:\[\]]|\[[^\[\]]*\])+):(?P<port>[0-9]+)")
_RANGE = re.compile(r"\[([^\[\]:]*):([^\[\]:]*)(?::([^\[\]:]*))?\]")
_JUMP = re.compile(r"(?:^|\s)(?:-J\s*|-o\s*['\"]?ProxyJump[= ]\s*)([^\s'\"]+)")
_A_RANGE = re.compile(r"\[\w*:\w+(:\d+)?\]")
"""A range for certain; the brackets of an IPv6 address hold two colons in a row."""
_DIGITS = 9
_KEYS = {
    "host": ("ansible_host", "ansible_ssh_host"),
    "user": ("ansible_user", "ansible_ssh_user"),
    "port": ("ansible_port", "ansible_ssh_port"),
    "identity": ("ansible_ssh_private_key_file", "ansible_private_key_file"),
}
"""Ansible's names of our keys, the older name last."""
_ARGUMENTS = ("ansible_ssh_common_args", "ansible_ssh_extra_args")


@dataclass(frozen=True, slots=True)
class _Value:
    """A variable's value, and its line."""

    text: str
    line: int


_Variables = dict[str, _Value]


@dataclass(slots=True)
class _Group:
    hosts: dict[str, None] = field(default_factory=dict)
    children: dict[str, int] = field(default_factory=dict)
    """Their names, and the lines that name them."""
    variables: _Variables = field(default_factory=dict)


@dataclass(slots=True)
class _Inventory:
    """What the file says, before it is worked out what that means for a host."""

    problems: Problems
    groups: dict[str, _Group] = field(default_factory=lambda: {ALL: _Group()})
    hosts: dict[str, _Variables] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)

    def group(self, name: str) -> _Group:
        return self.groups.setdefault(name, _Group())

    def add(self, pattern: str, group: str, variables: _Variables, line: int) -> None:
        """Add the hosts of a pattern such as `gpu[01:04]:2222` to a group."""
        found = _PORT.fullmatch(pattern)
        if found:
            pattern = found["host"]
            variables = {"ansible_port": _Value(found["port"], line), **variables}
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
    """Tell a YAML inventory of Ansible from ours: groups at the top, and no `nodes`."""
    if not isinstance(value, dict) or "nodes" in value or "cluster" in value:
        return False
    groups = [group for group in value.values() if isinstance(group, dict)]
    return any({"hosts", "children"} & group.keys() for group in groups)


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
    return _document(found, name, group)


def _ini_variable(line: str, variables: _Variables, number: int, problems: Problems) -> None:
    matched = _VARIABLE.fullmatch(line)
    if matched is None:
        problems.add((), wanted="NAME=VALUE", found=f'"{printable(line)}"', line=number)
        return
    value = matched[2].strip()
    if value[:1] in {"'", '"'} and value[-1:] == value[:1] and len(value) > 1:
        value = value[1:-1]
    variables[matched[1]] = _Value(value, number)


def _ini_host(line: str, group: str, number: int, found: _Inventory) -> None:
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        found.problems.add((), wanted="quotes in pairs", found=f'"{printable(line)}"', line=number)
        return
    variables: _Variables = {}
    for word in words[1:]:
        _ini_variable(word, variables, number, found.problems)
    if words:
        found.add(words[0], group, variables, number)


def read_ansible_yaml(
    text: str, problems: Problems, *, name: str, group: str | None
) -> Document | None:
    """Return the document of the hosts of a group, as `read_ansible_ini` does."""
    document = read_yaml(text, problems)
    if document is None or not isinstance(document.value, dict):
        return None
    problems.lines = document.lines
    found = _Inventory(problems)
    for key, value in document.value.items():
        _yaml_group(key, value, (key,), found)
    problems.lines = {}
    return _document(found, name, group)


def _yaml_group(name: str, value: object, path: Path, found: _Inventory) -> None:
    group = found.group(name)
    sections = _mapping(value, path, found.problems)
    for key in ("hosts", "vars", "children"):
        inner = _mapping(sections.get(key), (*path, key), found.problems)
        for item, content in inner.items():
            place = (*path, key, item)
            line = found.problems.line(place)
            if key == "hosts":
                variables = _mapping(content, place, found.problems)
                found.add(item, name, _yaml_variables(variables, place, found.problems), line)
            elif key == "vars":
                group.variables.update(_yaml_variables({item: content}, path, found.problems))
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


def _yaml_variables(values: Mapping[str, object], path: Path, problems: Problems) -> _Variables:
    return {
        key: _Value(value, problems.line((*path, key)))
        for key, value in values.items()
        if isinstance(value, str)
    }


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
    nodes: list[dict[str, object]] = []
    lines: dict[Path, int] = {}
    for host, own in found.hosts.items():
        groups = {ALL, *(above for one in direct[host] for above in _above(one, parents))}
        if group not in {None, *groups}:
            continue
        variables: _Variables = {}
        for one in sorted(groups, key=lambda each: (depths[each], each)):
            variables.update(found.groups[one].variables)
        variables.update(own)
        lines["nodes", len(nodes)] = found.lines[host]
        nodes.append(_node(host, variables, problems))
    if not nodes:
        problems.add((), wanted="hosts", found="none", line=1)
        return None
    return document_of(name, nodes, lines)


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


def _node(host: str, variables: _Variables, problems: Problems) -> dict[str, object]:
    node: dict[str, object] = {"host": host}
    for key, value in _settings(variables):
        if "{{" in value.text:
            problems.add((), wanted="a value", found=f'"{printable(value.text)}"', line=value.line)
        else:
            node[key] = Plain(value.text) if key == "port" else value.text
    if variables.get("ansible_connection", _Value("", 0)).text == "local":
        return {"host": "localhost"}
    return node


def _settings(variables: _Variables) -> Iterator[tuple[str, _Value]]:
    """Yield our keys, each with its value."""
    for key, names in _KEYS.items():
        value = next((variables[name] for name in names if name in variables), None)
        if value is not None and value.text:
            yield key, value
    for name in _ARGUMENTS:
        jump = _JUMP.search(variables[name].text) if name in variables else None
        if jump:
            yield "jump", _Value(jump[1], variables[name].line)
            return
