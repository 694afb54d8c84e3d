"""Prints which nodes joined a run, and why others did not."""

from clusterctl.report.console import Screen, safe_text
from clusterctl.verbs.events import Notice
from clusterctl.verbs.join.result import JoinResult


def show_join(screen: Screen, result: JoinResult) -> None:
    """Print those that joined on stdout; errors and hints on stderr."""
    for standby, what in (
        (False, "joined; the launcher starts the ranks again"),
        (True, "joined and stands by: the next restart gives it the place of a lost node"),
    ):
        found = [n.node for n in result.nodes if n.state == "joined" and n.standby == standby]
        if found:
            screen.out.print(safe_text(f"{result.run}: {', '.join(found)} {what}"))
    for node in result.nodes:
        if node.state == "joined":
            continue
        for line in node.message.splitlines() or [node.state]:
            screen.say(Notice(text=line, node=node.node, level="error"))
        if node.hint:
            # Never wrapped: you may copy it.
            screen.err.print(safe_text(f"hint: {node.hint}"), soft_wrap=True)
