"""Prints what a command did on the nodes: equal output once, or lines as they come."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from clusterctl.checks.wording import counted
from clusterctl.inventory.ranges import fold_hosts
from clusterctl.report.console import Screen, safe_line, safe_text
from clusterctl.safe_text import strip_controls
from clusterctl.verbs.events import Event
from clusterctl.verbs.exec import ExecResult, NodeExec, Printed, equal_outputs

LONGEST_LINE = 64 * 1024
"""Bytes after which an unfinished line is printed as it is."""


@dataclass(slots=True)
class LinePrinter:
    """Prints each line as it comes, with its node in front; stderr's on stderr."""

    unfinished: dict[tuple[str, str], bytes] = field(default_factory=dict)

    def show(self, event: Event) -> None:
        """Print the lines that are whole now."""
        if not isinstance(event, Printed):
            return
        key = (event.node, event.stream)
        *lines, rest = (self.unfinished.pop(key, b"") + event.data).split(b"\n")
        if len(rest) > LONGEST_LINE:
            lines, rest = [*lines, rest], b""
        for line in lines:
            self._print(key, line)
        if rest:
            self.unfinished[key] = rest
        sys.stdout.flush()

    def close(self) -> None:
        """Print what no line break ended."""
        for key, rest in self.unfinished.items():
            self._print(key, rest)
        self.unfinished.clear()

    def _print(self, key: tuple[str, str], line: bytes) -> None:
        node, stream = key
        text = strip_controls(line.decode("utf-8", "replace").rstrip("\r"))
        target = sys.stdout if stream == "stdout" else sys.stderr
        target.write(f"[{node}] {text}\n")


def show_outputs(screen: Screen, result: ExecResult) -> None:
    """Print each output once, below the nodes that printed it."""
    groups = equal_outputs(result.nodes)
    for names, node in groups:
        if node.error is None and (node.output or len(groups) > 1):
            screen.out.print(safe_text(_title(names, node), "" if node.ok else "bold red"))
            for line in node.text().splitlines():
                sys.stdout.write(strip_controls(line) + "\n")
            if node.truncated:
                sys.stdout.write(f"… and {node.truncated} bytes more: --stream prints all\n")
            sys.stdout.flush()  # before what follows on stderr


def show_ends(screen: Screen, result: ExecResult, *, cwd: str | None = None) -> None:
    """Print on stderr where it did not end well, and a summary; `cwd`: the folder asked for."""
    for names, node in equal_outputs(result.nodes):
        if node.error is not None:
            where = safe_line(fold_hosts(names))
            screen.err.print(safe_text(f"error: {where}: {node.error}", "bold red"))
            if node.error.hint:
                screen.err.print(safe_text(f"hint: {node.error.hint}"), soft_wrap=True)
    if any("sudo: a " in node.text("stderr") for node in result.nodes if not node.ok):
        hint = "the command has no terminal: allow it without a password, or set `user: root`"
        screen.err.print(safe_text(f"hint: {hint}"))
    missing = "No such file or directory"
    if not cwd and any(missing in node.text("stderr") for node in result.nodes if not node.ok):
        screen.err.print("hint: the command ran in the home folder: --cwd DIR names another one")
    ends: dict[str, list[str]] = {}
    for node in result.nodes:
        ends.setdefault(_end(node), []).append(node.node)
    total = len(result.nodes)
    for end, names in ends.items():
        text = f"{end} on {len(names)} of {counted(total, 'node')}"
        if len(names) < total:
            text += f": {safe_line(fold_hosts(names))}"
        screen.err.print(safe_text(text, "green" if end == "exit code 0" else "bold red"))


def _title(names: Sequence[str], node: NodeExec) -> str:
    title = fold_hosts(names)
    if len(names) > 1:
        title += f" ({counted(len(names), 'node')})"
    return title if node.ok else f"{title}: {_end(node)}"


def _end(node: NodeExec) -> str:
    if node.error is not None:
        return "not run" if node.error.answered else "unknown"
    if node.timed_out:
        return "ended after the time limit"
    return f"exit code {node.exit_code}"
