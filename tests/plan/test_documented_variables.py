"""docs/reference/launchers.md lists every variable that a plan sets, by launcher."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.facts.network.routes import Route
from clusterctl.inventory.cluster import Job, LauncherName
from clusterctl.plan.launchers import LAUNCHERS
from clusterctl.plan.options import Options
from tests.plan.conftest import Planner, facts, infiniband, node

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "launchers.md"


def documented() -> dict[str, set[str]]:
    """Return launcher → the variables that its column of the page has."""
    header, rows, found = [], False, dict[str, set[str]]()
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] == "variable":
            header, rows = cells, True
            found = {name: set() for name in header[1:-1]}
        elif rows and line.startswith("| `"):
            for name, told in zip(header[1:-1], cells[1:-1], strict=True):
                if told == "yes":
                    found[name] |= set(re.findall(r"`(\w+)`", cells[0]))
    return found


WIRELESS = Route(destination="0.0.0.0/0", interface="wlan0")


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_page_lists_every_variable_of_a_plan_and_no_other(
    plan: Planner, launcher: LauncherName
) -> None:
    job = Job(command=("x.py",), debug=True)
    known = {f"n{n}": facts(n, 4, rdma=infiniband(), routes=(WIRELESS,)) for n in range(3)}
    alone = (node(0),)
    plans = [
        plan(job=job, options=Options(launcher=launcher), known=known),
        plan(job=job, options=Options(launcher=launcher, gpus=0), known=known, nodes=alone),
    ]
    if launcher == "torchrun":
        elastic = replace(job, launcher_args=("--nnodes=2:3",))
        plans.append(plan(job=elastic, known=known))
    if not LAUNCHERS[launcher].one_driver:
        one_each = Options(launcher=launcher, procs_per_node=1)
        plans.append(plan(job=job, options=one_each, known=known))
    found = {one.name for made in plans for planned in made.nodes for one in planned.env}
    assert found == documented()[launcher]
    assert set(documented()) == set(LAUNCHERS)
