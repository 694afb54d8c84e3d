"""Prints how the nodes' environments were made: one line for all nodes with the same outcome."""

from dataclasses import dataclass, field

from clusterctl.checks.wording import counted
from clusterctl.inventory.ranges import fold_hosts
from clusterctl.report.console import Progressing, Screen, failure, safe_line, safe_text
from clusterctl.verbs.events import Event, Progress
from clusterctl.verbs.setup.setup import Doing, NodeSetup, SetupResult

_STYLES = {"created": "green", "updated": "green", "failed": "bold red", "unreachable": "red"}
_SHOWN = 12
_LONGEST = 60


@dataclass(slots=True)
class Doings:
    """Shows how many nodes are done, and what one of the others prints."""

    progressing: Progressing
    last: Progress | None = field(default=None)

    def show(self, event: Event) -> None:
        """Show one event."""
        if isinstance(event, Progress):
            self.last = event
        if isinstance(event, Doing) and self.last is not None:
            text = f"{event.node}: {event.text[:_LONGEST]}"
            event = Progress(
                phase=self.last.phase,
                done=self.last.done,
                total=self.last.total,
                waiting_for=(text,),
            )
        self.progressing.show(event)


def show_setup(screen: Screen, result: SetupResult) -> None:
    """Print the outcome of each node, what differs, and a summary."""
    alike: dict[tuple[str, str, str], list[str]] = {}
    for node in result.nodes:
        hint = node.error.hint if node.error else ""
        alike.setdefault((node.state, _outcome(node), hint), []).append(node.node)
    for (state, text, hint), names in alike.items():
        first, *more = text.splitlines()
        style = _STYLES.get(state, "")
        screen.err.print(safe_text(f"{fold_hosts(names)}: {first}", style))
        for line in more:
            screen.err.print(safe_text(f"  | {line}"), soft_wrap=True)
        if hint:
            screen.err.print(safe_text(f"hint: {hint}"), soft_wrap=True)
    _show_differences(screen, result)
    ready = sum(node.ok for node in result.nodes)
    total = counted(len(result.nodes), "node")
    screen.err.print(safe_text(f"{result.source}: ready on {ready} of {total}"))


def _show_differences(screen: Screen, result: SetupResult) -> None:
    differences = result.differences
    for name, versions in list(differences.items())[:_SHOWN]:
        groups: dict[str, list[str]] = {}
        for node, version in versions.items():
            groups.setdefault(version, []).append(node)
        found = ", ".join(f"{version} on {fold_hosts(nodes)}" for version, nodes in groups.items())
        screen.err.print(safe_text(f"different {safe_line(name)}: {found}", "bold red"))
    if len(differences) > _SHOWN:
        screen.err.print(safe_text(f"and {len(differences) - _SHOWN} packages more: --json"))
    if differences:
        hint = "name the versions in the file, such as by `uv lock`; then clusterctl setup"
        screen.err.print(safe_text(f"hint: {hint}"))


def _outcome(node: NodeSetup) -> str:
    if node.error is not None:
        return failure(node.state, node.error)
    has = f"Python {node.version}, {counted(len(node.packages), 'package')}"
    match node.state:
        case "unchanged":
            return f"{node.venv} is up to date ({has})"
        case "shared":
            return f"{node.venv} is shared with another node ({has})"
        case _:
            return f"{node.venv} {node.state} ({has})"
