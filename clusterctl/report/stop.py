"""Prints the result of stopping a run."""

from rich.console import Console

from clusterctl.inventory.ranges import name_hosts
from clusterctl.report.console import safe_text
from clusterctl.verbs.stop import StoppedNode, StopResult

_SHOWN = 10


def show_stop(console: Console, result: StopResult) -> None:
    """Print which nodes are verified as stopped, and what is left on the others."""
    gone: dict[str, list[str]] = {}
    for node in result.nodes:
        if node.gone:
            how = f"had {node.ended} before; verified that nothing is left on"
            what = how if node.ended in {"finished", "failed"} else "stopped and verified on"
            gone.setdefault(what, []).append(node.node)
    for what, names in gone.items():
        console.print(safe_text(f"{result.run}: {what} {name_hosts(names)}"))
    for node in result.nodes:
        for command in node.elsewhere[:_SHOWN]:
            text = f"not verified: what the job started by `{command}`"
            console.print(safe_text(f"{result.run}: {node.node}: {text}", "yellow"))
        if node.failure and node.left_out:
            text = f"not verified, but the run had continued without it: {node.failure}"
            console.print(safe_text(f"{result.run}: {node.node}: {text}", "yellow"))
        for line in _problems(node):
            console.print(safe_text(f"{result.run}: {node.node}: {line}", "red"))
    if silent := [node.node for node in result.nodes if node.failure]:
        when = f"what is left on {name_hosts(silent)} is unknown; nothing is if it was rebooted"
        console.print(safe_text(f"hint: {when}; else again: clusterctl stop {result.run}"))


def _problems(node: StoppedNode) -> list[str]:
    """Return a line for each problem on a node."""
    lines = [f"not verified: {node.failure}"] if node.failure and not node.left_out else []
    lines += [
        f"still running: pid {process.pid} {process.cmd}: {process.why}"
        for process in node.left[:_SHOWN]
    ]
    lines += [
        f"left: pid {process.pid} {process.cmd} {process.why}"
        for process in node.strangers[:_SHOWN]
    ]
    if node.port_free is False:
        holder = node.port_holder
        who = f"pid {holder.pid} {holder.cmd}" if holder else "a process"
        lines.append(f"the master port is not free: {who} holds it")
    return lines
