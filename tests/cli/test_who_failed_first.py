"""The first cause of a run with torch, where the ranks that print an error first only echo it.

test_first_cause_soak.py has the other launchers, moments and losses.
"""

from __future__ import annotations

import pytest

from tests.cli.conftest import MakeProject
from tests.conftest import MakeSandbox

# test_echo_grace.py of tests/node/supervisor has ranks that echo in gloo's words, without torch;
# test_accelerate.py and test_torchrun.py there have ranks of torch of which one fails.
pytestmark = [pytest.mark.netns, pytest.mark.soak]

TRAIN = """
import atexit, os, time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, step = dist.get_rank(), 0
try:
    while True:
        dist.all_reduce(torch.ones(1))
        print("step", step, flush=True)
        step += 1
        if os.environ.get("RAISES") == str(rank) and step == 10:
            atexit.register(time.sleep, 600)  # as a large model that is torn down
            raise ValueError("bad sample 17")
        time.sleep(0.05)
finally:
    dist.destroy_process_group()
"""


def test_the_rank_that_raised_is_named(
    make_sandbox: MakeSandbox, make_project: MakeProject
) -> None:
    project = make_project(make_sandbox(nodes=2))
    (project.folder / "train.py").write_text(TRAIN)
    words = ("--detach", "--no-check", "--env", "RAISES=1", "--", "train.py")
    run = project.launch(*words).stdout.strip()
    assert run
    project.wait_for(run, "failed")
    found = project.status(run)
    cause = found["first_cause"]
    assert (cause["node"], cause["rank"], found["ended_by"]) == ("node2", 1, "job")
    assert "ValueError: bad sample 17" in cause["message"]
