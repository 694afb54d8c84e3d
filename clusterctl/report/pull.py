"""Prints a pull: one line for all nodes with the same outcome, then the summary."""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Callable

from rich.console import Console

from clusterctl.checks.wording import counted, size_of
from clusterctl.inventory.ranges import fold_hosts
from clusterctl.report.console import failure, safe_text
from clusterctl.verbs.pull.result import NodePull, PullResult

_STYLES = {"pulled": "green", "failed": "bold red", "unreachable": "red"}


def show_pull(console: Console, result: PullResult, complete: Callable[[str], str]) -> None:
    """Print what became of each path; `complete` makes a flag in a hint the whole command."""
    for path in result.paths:
        alike: dict[tuple[str, str, str], list[str]] = {}
        nodes = path.nodes
        if {node.state for node in nodes} == {"absent"}:
            console.print(safe_text(f"{path.path}: no node has it", "bold red"))
            folder = posixpath.dirname(nodes[0].path.rstrip("/")) or "/"
            look = ("clusterctl", "exec", "--nodes", nodes[0].node, "--", "ls", "-la", folder)
            hint = shlex.join(look)
            console.print(safe_text(f"hint: {hint}"), soft_wrap=True)
            continue
        for node in nodes:
            alike.setdefault((_outcome(node), node.hint, node.state), []).append(node.node)
        for (text, hint, state), names in alike.items():
            line = f"{path.path}: {fold_hosts(names)}: {text}"
            console.print(safe_text(line, _STYLES.get(state, "")))
            for words in hint.splitlines():
                console.print(safe_text(f"hint: {complete(words)}"), soft_wrap=True)
    console.print(safe_text(_summary(result)))


def _outcome(node: NodePull) -> str:
    much = f"{size_of(node.bytes)} in {counted(node.files, 'file')}"
    left_out = f"; left out: {', '.join(node.left_out)}" if node.left_out else ""
    match node.state:
        case "pulled":
            return f"{much} in {node.to}, verified{left_out}"
        case "unchanged":
            return f"{node.to} has it already{left_out}"
        case "same":
            return f"the same as {node.to}"
        case "absent":
            return "does not have it"
        case "failed" | "unreachable":
            return failure(node.state, node.words)


def _summary(result: PullResult) -> str:
    received = sum(node.received for path in result.paths for node in path.nodes)
    rate = received / result.seconds if result.seconds else 0.0
    return f"{size_of(received)} received in {result.seconds:.1f} s ({size_of(rate)}/s)"
