"""Prints a plan: the exact command line of each node, and the origin of each value."""

import shlex
from collections.abc import Sequence

from rich.console import Console

from clusterctl.checks.wording import counted
from clusterctl.logs import ranks
from clusterctl.plan.plan import NodePlan, Plan, Variable
from clusterctl.report.console import Screen, safe_text


def show_plan(screen: Screen, plan: Plan) -> None:
    """Print a plan on stdout."""
    console = screen.out
    nodes = counted(len(plan.nodes), "node")
    everywhere = (*plan.nodes, *plan.spares)
    console.print(safe_text(f"run {plan.run}: {counted(plan.world_size, 'rank')} on {nodes}"))
    for setting in plan.settings:
        text = f"  {setting.name} = {setting.value}"
        console.print(safe_text(f"{text}  ({setting.origin})"), soft_wrap=True)
    described = {node.node: _lines(node) for node in everywhere}
    common = [
        line
        for line in described[plan.nodes[0].node]
        if len(everywhere) > 1 and all(line in lines for lines in described.values())
    ]
    if common:
        _show(console, "every node", common)
    for node in everywhere:
        where = f"{node.address} on {node.interface}"
        whose = "a spare node" if node in plan.spares else ranks.name_ranks(node.ranks)
        title = f"{node.node}: {whose} ({node.device}), {where}"
        _show(console, title, [line for line in described[node.node] if line not in common])


def _show(console: Console, title: str, lines: Sequence[str]) -> None:
    console.print()
    console.print(safe_text(title))
    # Not in columns: the values must stay exact on a narrow terminal and in a file, too.
    for line in lines:
        console.print(safe_text(f"  {line}"), soft_wrap=True)


def _lines(node: NodePlan) -> list[str]:
    return [
        f"processes: {node.procs} ({node.procs_origin})",
        f"in {node.workdir}",
        shlex.join(node.command_line),
        *(f"{variable.name}={_value(variable)}  ({variable.origin})" for variable in node.env),
    ]


def _value(variable: Variable) -> str:
    if variable.value is None:
        return "<set at start>"
    return shlex.quote(variable.value) if variable.value else ""
