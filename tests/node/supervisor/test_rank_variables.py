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


def assert_variables(found: dict[str, str], rank: int, local: int, procs: tuple[int, int]) -> None:
    """Check the environment of a rank of two nodes with so many ranks each."""
    node = int(rank >= procs[0])
    expected = {
        "RANK": str(rank),
        "LOCAL_RANK": str(local),
        "WORLD_SIZE": str(sum(procs)),
        "LOCAL_WORLD_SIZE": str(procs[node]),
        "GROUP_RANK": str(node),
        "NODE_RANK": str(node),
        "NNODES": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": found["MASTER_PORT"],
    }
    assert {name: found.get(name) for name in expected} == expected
    assert 0 < int(found["MASTER_PORT"]) < 1 << 16
    hosts = Path(found["CLUSTERCTL_HOSTFILE"]).read_text()
    assert hosts == f"127.0.0.1 slots={procs[0]}\n127.0.0.2 slots={procs[1]}\n"


@pytest.mark.parametrize(
    "launcher",
    [
        pytest.param(name, marks=[pytest.mark.torch] if launcher.packages else [])
        for name, launcher in LAUNCHERS.items()
        # test_torchrun.py and test_accelerate.py look at those of their ranks.
        if not launcher.one_driver and name not in {"torchrun", "accelerate"}
    ],
)
def test_every_rank_has_all_variables(make_run: Callable[..., Run], launcher: LauncherName) -> None:
    procs = (2, 2 if LAUNCHERS[launcher].equal_nodes else 1)
    run = make_run(RANK, nodes=2, procs=procs, launcher=launcher).start()
    for rank, local, node in ((0, 0, 0), (1, 1, 0), (2, 0, 1)):
        run.wait_for_log(rank, b"\n", n=node, seconds=120)
        assert_variables(json.loads(run.log(rank, n=node)), rank, local, procs)
    assert [run.ended(n)["state"] for n in (0, 1)] == ["finished", "finished"]
