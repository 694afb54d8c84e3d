"""Prints a plan: the exact command line of each node, and the origin of each value."""

from __future__ import annotations

import shlex

from clusterctl.checks.wording import counted
from clusterctl.logs import ranks
from clusterctl.plan.plan import NodePlan, Plan, Variable
from clusterctl.report.console import Screen, safe_text


def show_plan(screen: Screen, plan: Plan) -> None:
    """Print a plan on stdout."""
    console = screen.out
    nodes = counted(len(plan.nodes), "node")
    console.print(safe_text(f"run {plan.run}: {counted(plan.world_size, 'rank')} on {nodes}"))
    for setting in plan.settings:
        text = f"  {setting.name} = {setting.value}"
        console.print(safe_text(f"{text}  ({setting.origin})"), soft_wrap=True)
    for node in plan.nodes:
        _show_node(screen, node)


def _show_node(screen: Screen, node: NodePlan) -> None:
    console = screen.out
    console.print()
    where = f"{node.address} on {node.interface}"
    console.print(
        safe_text(f"{node.node}: {ranks.name_ranks(node.ranks)} ({node.device}), {where}")
    )
    console.print(safe_text(f"  processes: {node.procs} ({node.procs_origin})"), soft_wrap=True)
    console.print(safe_text(f"  in {node.workdir}"), soft_wrap=True)
    console.print(safe_text(f"  {shlex.join(node.command_line)}"), soft_wrap=True)
    # Not in columns: the values must stay exact on a narrow terminal and in a file, too.
    for variable in node.env:
        text = f"  {variable.name}={_value(variable)}  ({variable.origin})"
        console.print(safe_text(text), soft_wrap=True)


def _value(variable: Variable) -> str:
    if variable.value is None:
        return "<set at start>"
    return shlex.quote(variable.value) if variable.value else ""
