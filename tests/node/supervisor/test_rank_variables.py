"""Every launcher gives each rank the variables that docs/reference/launch.md promises."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterctl.inventory.cluster import LauncherName
from clusterctl.plan.launchers import LAUNCHERS
from tests.node.conftest import Run

RANK = """
import json, os
print(json.dumps(dict(os.environ)), flush=True)
"""


@pytest.mark.parametrize(
    "launcher",
    [
        pytest.param(name, marks=[pytest.mark.torch] if launcher.packages else [])
        for name, launcher in LAUNCHERS.items()
        if not launcher.one_driver
    ],
)
def test_every_rank_has_all_variables(make_run: Callable[..., Run], launcher: LauncherName) -> None:
    last = 2 if LAUNCHERS[launcher].equal_nodes else 1
    run = make_run(RANK, nodes=2, procs=(2, last), launcher=launcher).start()
    for rank, local, node, procs in ((0, 0, 0, 2), (1, 1, 0, 2), (2, 0, 1, last)):
        run.wait_for_log(rank, b"\n", n=node, seconds=120)
        found = json.loads(run.log(rank, n=node))
        expected = {
            "RANK": str(rank),
            "LOCAL_RANK": str(local),
            "WORLD_SIZE": str(2 + last),
            "LOCAL_WORLD_SIZE": str(procs),
            "GROUP_RANK": str(node),
            "NODE_RANK": str(node),
            "NNODES": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": found["MASTER_PORT"],
        }
        assert {name: found.get(name) for name in expected} == expected
        assert 0 < int(found["MASTER_PORT"]) < 1 << 16
        hosts = Path(found["CLUSTERCTL_HOSTFILE"]).read_text()
        assert hosts == f"127.0.0.1 slots=2\n127.0.0.2 slots={last}\n"
    assert [run.ended(n)["state"] for n in (0, 1)] == ["finished", "finished"]
