"""Prints why a run stands still, and where its ranks are."""

from collections.abc import Sequence

from rich.console import Console

from clusterctl.hang.fold import fold
from clusterctl.hang.verdict import verdict
from clusterctl.model.dump import NodeDump
from clusterctl.report.console import safe_text


def show_verdict(console: Console, dumps: Sequence[NodeDump], missing: Sequence[str] = ()) -> None:
    """Print the stacks of all ranks, equal ones once, then the verdict and what to type.

    Args:
        console: where.
        dumps: what the nodes answered, of all ranks of the run.
        missing: nodes that did not answer.
    """
    found = verdict(dumps, missing)
    for line in fold(dumps):
        console.print(safe_text(f"[{line.label}] {line.line.text}"), soft_wrap=True)
    console.print(safe_text(found.text, "bold yellow"), soft_wrap=True)
    if found.remedy:
        console.print(safe_text(f"hint: {found.remedy}"), soft_wrap=True)
