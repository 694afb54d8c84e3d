"""Reads the hostfiles of MPI, DeepSpeed and Horovod: `host slots=8` or `host:8`, one host a line.

`slots` are GPUs. A user (`user@host` or `user=`) and a port (`port=`) are read. Any other key of
another launcher is a problem; none is skipped. The cluster gets the file's name.
"""

import re
from collections import Counter
from pathlib import Path as FilePath

from clusterctl.inventory.addresses import split_login
from clusterctl.inventory.document import Document
from clusterctl.inventory.kinds import cluster_name
from clusterctl.inventory.problems import Path, Plain, Problems, nearest, printable

_KEYS = {"slots": "gpus", "user": "user", "port": "port"}
_BRACKETS = re.compile(r"\[[^\[\]]*\]")
_OTHER_FORMS = (
    (r"ssh\s+-p\s*(\d+)\s+(\S+)", r"\2 port=\1"),
    (r"ssh\s+([\w.@-]+)", r"\1"),
    (r"rank\s+\d+\s*=\s*(\S+)\s.*", r"\1"),  # Open MPI's rankfile
    (r"(\S+)\s+(\d+)(?:\s+\S+\s+\S+)?", r"\1 slots=\2"),  # the pe_hostfile of Grid Engine
    (r"([\d.]+|[\da-f:]+::?[\da-f:]+)(?:\s+[A-Za-z][\w.-]*)+", r"\1"),  # /etc/hosts
    (r"([^\s:]+):((?:\s.*)?)", r"\1\2"),
)
"""Lines of other programs' files, and what to write for each."""


def read_hostfile(text: str, problems: Problems) -> Document | None:
    """Return the document that a hosts.yaml with the same meaning has; None if there is no host.

    Add what is wrong to `problems`.
    """
    nodes: list[dict[str, object]] = []
    lines: dict[Path, int] = {}
    texts = text.splitlines()
    rows = [line.partition("#")[0].split() for line in texts]
    alone = Counter(words[0] for words in rows if len(words) == 1)
    for number, (line, words) in enumerate(zip(texts, rows, strict=True), 1):
        if not words:
            continue
        if "," in _BRACKETS.sub("", words[0]):
            wanted = "one host a line, with spaces behind it"
            problems.add((), wanted=wanted, found=f'commas: "{printable(line)}"', line=number)
            continue
        if wanted := _rewritten(" ".join(words)):
            problems.add((), wanted=f'"{wanted}"', found=f'"{printable(line)}"', line=number)
            continue
        if len(words) == 1 and (count := alone[words[0]]) > 1:  # as in PBS_NODEFILE
            if number != rows.index(words) + 1:
                continue
            wanted = f'"{printable(words[0])} slots={count}" once'
            problems.add((), wanted=wanted, found=f"{count} lines", line=number)
        path: Path = ("nodes", len(nodes))
        lines[path] = number
        nodes.append(_node(words, number, problems))
    if not any(rows):
        problems.add((), wanted="an inventory", found="an empty file", line=1)
    if not nodes:
        return None
    return Document(value={"cluster": _name(problems.file), "nodes": nodes}, lines=lines)


def _rewritten(line: str) -> str:
    """Return what to write for a line of another form; empty: it is in none that is known."""
    for pattern, form in _OTHER_FORMS:
        if found := re.fullmatch(pattern, line):
            return printable(found.expand(form))
    return ""


def _node(words: list[str], number: int, problems: Problems) -> dict[str, object]:
    host, *settings = words
    user, name, slots = split_login(host)
    node: dict[str, object] = {"host": name}
    if user is not None:
        node["user"] = user
    if slots is not None:
        node["gpus"] = Plain(slots)
    for setting in settings:
        key, sign, value = setting.partition("=")
        if not sign or key not in _KEYS:
            near = nearest(key, _KEYS)
            wanted = f"{near}=..." if near else "host slots=N, with user= and port= at most"
            problems.add((), wanted=wanted, found=f'"{printable(setting)}"', line=number)
        elif key != "user" and not value.isdecimal():
            wanted = f"a number after {sign}"
            problems.add((), wanted=wanted, found=f'"{printable(setting)}"', line=number)
        elif _KEYS[key] in node:
            wanted = f"{key} once (host:N is slots; of a port: port=N)"
            problems.add((), wanted=wanted, found=f'"{printable(setting)}"', line=number)
        else:
            node[_KEYS[key]] = Plain(value)
    return node


def _name(file: str) -> str:
    """Return a cluster name made of the file's; `hostfile` if that has no letters (/dev/fd/63)."""
    name = cluster_name(FilePath(file).stem)
    return name if re.search("[a-z]", name) else "hostfile"
