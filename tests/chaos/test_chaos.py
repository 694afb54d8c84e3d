"""Runs under faults by schedule: nine have all there is, two play; any number as a soak."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.schedule import FORMS, HARD, MILD, draw
from tests.conftest import need_netns

pytestmark = pytest.mark.netns

ROOT = Path(__file__).parent.parent.parent
SOAKED = ((4, 656, 2884, 3318, 3847), (1584, 2568))
"""What the first kill or stop, tests/cli has one by one: test_dead_supervisor.py, test_launch.py
(the controller, and a rank), test_quarantine.py and test_spares.py (a node without power);
in tests/node/supervisor test_guard.py kills a guard and halts a supervisor, and test_torchrun.py
kills torchrun. A node that is cut off has test_spares.py there, a deaf job test_stop.py."""
TOGETHER = (1381, 2423)
SEEDS = tuple(sorted({*SOAKED[0], *SOAKED[1], *TOGETHER}))
"""They have every launcher, every form of job and every fault, and of those that end a run one
each, last: the others find their victims. `make soak` has what comes together."""


def play(*words: str) -> None:
    """Play schedules on hosts of their own."""
    need_netns()
    argv = [sys.executable, "-m", "tests.chaos", *words]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_seeds_have_everything_that_can_be_drawn() -> None:
    schedules = [draw(seed) for seed in SEEDS]
    assert {(each.launcher, each.form) for each in schedules} >= {("direct", f) for f in FORMS}
    # accelerate runs torchrun's agent in its own process: the same faults have the same effects.
    # A schedule's job has ranks on every node, a Ray cluster one driver; Slurm needs its own hosts.
    assert {each.launcher for each in schedules} == {"direct", "torchrun"}
    assert any(each.form == "deaf" and each.faults[-1].kind in HARD for each in schedules)
    assert any(each.early and each.faults[0].after > 0.5 for each in schedules)
    # A fault that comes early may find no victim yet.
    kinds = {fault.kind for each in schedules if not each.early for fault in each.faults}
    assert kinds == {*MILD, *HARD}


@pytest.mark.parametrize(
    "seeds", [*(pytest.param(s, marks=pytest.mark.soak) for s in SOAKED), TOGETHER], ids=str
)
def test_schedules_of_faults(seeds: tuple[int, ...], tmp_path: Path) -> None:
    play(*map(str, seeds), "--out", str(tmp_path))


@pytest.mark.soak
def test_many_schedules_of_faults(tmp_path: Path) -> None:
    first = int(os.environ.get("CLUSTERCTL_CHAOS_FIRST", "1"))
    count = int(os.environ.get("CLUSTERCTL_CHAOS_SEEDS", "1000"))
    play(f"{first}-{first + count - 1}", "--jobs", "4", "--out", str(tmp_path))
