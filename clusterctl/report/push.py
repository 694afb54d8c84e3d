"""Prints a push: how far it is, then one line for all nodes with the same outcome."""

from __future__ import annotations

from rich.console import Console

from clusterctl.checks.wording import counted, size_of
from clusterctl.inventory.ranges import fold_hosts
from clusterctl.report.console import failure, safe_text
from clusterctl.verbs.push.result import NodePush, PathPush, PushResult

_STYLES = {"updated": "green", "failed": "bold red", "unreachable": "red"}


def show_push(console: Console, result: PushResult) -> None:
    """Print what became of each path."""
    for path in result.paths:
        console.print(safe_text(_headline(path)))
        alike: dict[tuple[str, str, str], list[str]] = {}
        for node in path.nodes:
            alike.setdefault((_outcome(node), node.hint, node.state), []).append(node.node)
        for (text, hint, state), names in alike.items():
            console.print(safe_text(f"  {fold_hosts(names)}: {text}", _STYLES.get(state, "")))
            if hint:
                console.print(safe_text(f"  hint: {hint}"), soft_wrap=True)
    if not result.dry_run:
        console.print(safe_text(_summary(result)))


def _headline(path: PathPush) -> str:
    files = counted(path.files, "file")
    return f"{path.path}: {size_of(path.bytes)} in {files}, from {path.source}"


def _outcome(node: NodePush) -> str:
    match node.state:
        case "unchanged":
            return f"{node.path} is equal already"
        case "updated":
            return f"{node.path}: received {size_of(node.received)}"
        case "shared":
            return f"{node.path} is {node.words}"
        case "source":
            return f"{node.path} is the source"
        case "would-update":
            return f"{node.path} would be sent"
        case "failed" | "unreachable":
            return failure(node.state, node.words)


def _summary(result: PushResult) -> str:
    good = sum(
        all(node.ok for node in group)
        for group in zip(*(p.nodes for p in result.paths), strict=True)
    )
    total = len(result.paths[0].nodes)
    verb = "has" if total == 1 else "have"
    received = sum(path.received for path in result.paths)
    rate = received / result.seconds if result.seconds else 0.0
    return (
        f"{good} of {counted(total, 'node')} {verb} {counted(len(result.paths), 'path')}, verified;"
        f" {size_of(received)} sent in {result.seconds:.1f} s ({size_of(int(rate))}/s)"
    )
