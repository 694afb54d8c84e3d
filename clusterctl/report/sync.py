"""Prints the result of a sync: one line for all nodes with the same outcome, then the summary."""

from __future__ import annotations

from rich.console import Console

from clusterctl.checks.wording import counted
from clusterctl.inventory.ranges import fold_hosts
from clusterctl.report.console import failure, safe_text
from clusterctl.verbs.sync.result import NodeSync, SyncResult

_SHOWN_NAMES = 5
_STYLES = {"updated": "green", "failed": "bold red", "unreachable": "red"}


def show_sync(console: Console, result: SyncResult) -> None:
    """Print the outcome of each node."""
    alike: dict[tuple[str, str, str], list[str]] = {}
    for node in result.nodes:
        alike.setdefault((_outcome(node), node.hint, node.state), []).append(node.node)
    for (text, hint, state), names in alike.items():
        console.print(safe_text(f"{fold_hosts(names)}: {text}", _STYLES.get(state, "")))
        if hint:
            # Never wrapped: you may copy it.
            console.print(safe_text(f"hint: {hint}"), soft_wrap=True)
    console.print(safe_text(_summary(result)))


def deletions(result: SyncResult) -> list[str]:
    """Return a line for all nodes on which the same files were deleted."""
    alike: dict[str, list[str]] = {}
    for node in result.nodes:
        if node.deleted:
            alike.setdefault(f"{node.workdir}: {_deleted(node)}", []).append(node.node)
    return [f"{fold_hosts(names)}: {text}" for text, names in alike.items()]


def _deleted(node: NodeSync) -> str:
    """Return the count of deleted files and their first names."""
    first = node.deleted_paths[:_SHOWN_NAMES]
    more = node.deleted - len(first)
    names = ", ".join(first) + (f" and {more} more" if more > 0 else "")
    return f"{node.deleted} deleted" + (f" ({names})" if first else "")


def _outcome(node: NodeSync) -> str:
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


def _summary(result: SyncResult) -> str:
    good = sum(node.ok for node in result.nodes)
    verb = "has" if len(result.nodes) == 1 else "have"
    code = f"commit {result.commit[:12]}" if result.commit else "no commit"
    dirty = ", with uncommitted changes" if result.dirty else ""
    return (
        f"{good} of {counted(len(result.nodes), 'node')} {verb} the tree {result.tree[:12]} "
        f"({counted(result.files, 'file')}, {code}{dirty}) in {result.seconds:.1f} s"
    )
