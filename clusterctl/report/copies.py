"""Prints a sync, a push or a pull: one line for all nodes with the same outcome, then a summary."""

import posixpath
import shlex
from collections.abc import Callable, Iterable
from typing import TypeVar

from rich.console import Console

from clusterctl.checks.wording import counted, size_of
from clusterctl.inventory.ranges import fold_hosts
from clusterctl.report.console import failure, safe_text
from clusterctl.verbs.pull.result import NodePull, PathPull, PullResult
from clusterctl.verbs.push.result import NodePush, PushResult
from clusterctl.verbs.sync.result import NodeSync, SyncResult

Node = TypeVar("Node", NodeSync, NodePush, NodePull)

_SHOWN_NAMES = 5
_STYLES = {"updated": "green", "pulled": "green", "failed": "bold red", "unreachable": "red"}


def show_sync(console: Console, result: SyncResult) -> None:
    """Print the outcome of each node."""
    _print_alike(console, result.nodes, _synced)
    good = sum(node.ok for node in result.nodes)
    verb = "has" if len(result.nodes) == 1 else "have"
    code = f"commit {result.commit[:12]}" if result.commit else "no commit"
    dirty = ", with uncommitted changes" if result.dirty else ""
    summary = (
        f"{good} of {counted(len(result.nodes), 'node')} {verb} the tree {result.tree[:12]} "
        f"({counted(result.files, 'file')}, {code}{dirty}) in {result.seconds:.1f} s"
    )
    console.print(safe_text(summary))


def show_push(console: Console, result: PushResult) -> None:
    """Print what became of each path."""
    for path in result.paths:
        files = counted(path.files, "file")
        headline = f"{path.path}: {size_of(path.bytes)} in {files}, from {path.source}"
        console.print(safe_text(headline))
        _print_alike(console, path.nodes, _pushed, before="  ")
    if result.dry_run:
        return
    same_node = zip(*(path.nodes for path in result.paths), strict=True)
    good = sum(all(node.ok for node in group) for group in same_node)
    total = len(result.paths[0].nodes)
    verb = "has" if total == 1 else "have"
    received = sum(path.received for path in result.paths)
    summary = (
        f"{good} of {counted(total, 'node')} {verb} {counted(len(result.paths), 'path')}, verified;"
        f" {size_of(received)} sent {_pace(received, result.seconds)}"
    )
    console.print(safe_text(summary))


def show_pull(console: Console, result: PullResult, complete: Callable[[str], str]) -> None:
    """Print what became of each path; `complete` makes a flag in a hint the whole command."""
    for path in result.paths:
        if {node.state for node in path.nodes} == {"absent"}:
            _print_missing(console, path)
        else:
            _print_alike(console, path.nodes, _pulled, before=f"{path.path}: ", complete=complete)
    received = sum(node.received for path in result.paths for node in path.nodes)
    console.print(safe_text(f"{size_of(received)} received {_pace(received, result.seconds)}"))


def _print_missing(console: Console, path: PathPull) -> None:
    console.print(safe_text(f"{path.path}: no node has it", "bold red"))
    first = path.nodes[0]
    folder = posixpath.dirname(first.path.rstrip("/")) or "/"
    look = ("clusterctl", "exec", "--nodes", first.node, "--", "ls", "-la", folder)
    console.print(safe_text(f"hint: {shlex.join(look)}"), soft_wrap=True)


def deletions(result: SyncResult) -> list[str]:
    """Return a line for all nodes on which the same files were deleted."""
    alike: dict[str, list[str]] = {}
    for node in result.nodes:
        if node.deleted:
            alike.setdefault(f"{node.workdir}: {_deleted(node)}", []).append(node.node)
    return [f"{fold_hosts(names)}: {text}" for text, names in alike.items()]


def _print_alike(
    console: Console,
    nodes: Iterable[Node],
    outcome: Callable[[Node], str],
    *,
    before: str = "",
    complete: Callable[[str], str] = str,
) -> None:
    """Print each outcome once, with the nodes that have it and the hints."""
    alike: dict[tuple[str, str, str], list[str]] = {}
    for node in nodes:
        alike.setdefault((outcome(node), node.hint, node.state), []).append(node.node)
    indent = " " * (len(before) - len(before.lstrip()))
    for (text, hint, state), names in alike.items():
        line = f"{before}{fold_hosts(names)}: {text}"
        console.print(safe_text(line, _STYLES.get(state, "")))
        for words in hint.splitlines():
            # Never wrapped: you may copy it.
            console.print(safe_text(f"{indent}hint: {complete(words)}"), soft_wrap=True)


def _synced(node: NodeSync) -> str:
    match node.state:
        case "unchanged":
            return f"{node.workdir} is up to date"
        case "updated":
            return f"{node.workdir}: {counted(node.sent, 'file')} sent, {_deleted(node)}"
        case "shared":
            return f"{node.workdir} is shared with another node, and up to date"
        case "source":
            return f"{node.workdir} is the source folder"
        case "failed" | "unreachable":
            return failure(node.state, node.words)


def _pushed(node: NodePush) -> str:
    match node.state:
        case "unchanged":
            return f"{node.path} is equal already"
        case "updated":
            words = f", {node.words}" if node.words else ""
            return f"{node.path}: received {size_of(node.received)}{words}"
        case "shared":
            return f"{node.path} is {node.words}"
        case "source":
            return f"{node.path} is the source"
        case "would-update":
            return f"{node.path} would be sent"
        case "failed" | "unreachable":
            return failure(node.state, node.words)


def _pulled(node: NodePull) -> str:
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


def _deleted(node: NodeSync) -> str:
    """Return the count of deleted files and their first names."""
    first = node.deleted_paths[:_SHOWN_NAMES]
    more = node.deleted - len(first)
    names = ", ".join(first) + (f" and {more} more" if more > 0 else "")
    return f"{node.deleted} deleted" + (f" ({names})" if first else "")


def _pace(received: int, seconds: float) -> str:
    rate = received / seconds if seconds else 0.0
    return f"in {seconds:.1f} s ({size_of(rate)}/s)"
