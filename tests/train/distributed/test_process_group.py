"""Ranks that meet: what must be the same on all, and time limits that notice one that hangs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, cast

import pytest

from tests.train.world import World

pytestmark = pytest.mark.torch


def test_a_rank_that_hangs_is_noticed_within_the_step_timeout(world: World) -> None:
    run = world.start(nodes=(2,), max_steps=10_000, step_timeout=5.0)
    run.wait_for("Step 3/")
    run.send(signal.SIGSTOP, 1)
    began = time.monotonic()
    run.processes[0].join(60)
    assert run.processes[0].exitcode == 1
    assert time.monotonic() - began < 40
    assert "Timed out" in run.status()["reason"]


def in_detail(_rank: int) -> None:
    """Have torch wrap each backend, as `clusterctl launch --debug` does, and print the limits."""
    import torch.distributed as dist

    from train.distributed.process_group import Ranks

    vars(dist)["set_debug_level"](vars(dist)["DebugLevel"].DETAIL)
    real = Ranks.shorten_timeouts

    def shorten(ranks: Ranks, seconds: float, mesh: Any) -> None:
        real(ranks, seconds, mesh)
        for group in (dist.group.WORLD, ranks.control, *mesh.get_all_groups()):
            backend = cast("Any", group)._get_backend(ranks.device)
            print(f"limit {backend.wrapped_pg.options._timeout.total_seconds()}")

    Ranks.shorten_timeouts = shorten  # type: ignore[method-assign, assignment]


def test_the_limit_of_a_step_holds_while_debugging(world: World) -> None:
    run = world.run(nodes=(2,), max_steps=2, step_timeout=37.0, before=in_detail)
    limits = [line for line in run.said().splitlines() if line.startswith("limit ")]
    assert limits == ["limit 37.0"] * 3


def another_package(rank: int) -> None:
    """Have rank 1 find another transformers."""
    from train.checkpoint import provenance

    found = provenance.versions()
    provenance.versions = lambda: found | {"transformers": f"5.2{rank}.0"}


def test_the_package_that_differs_is_named(world: World) -> None:
    run = world.start(nodes=(2,), max_steps=1, before=another_package)
    assert set(run.wait()) == {3}
    assert "the installed transformers: expected the same on every node (5.20.0)" in run.said()
    assert "has 5.21.0" in run.said()
    assert "hint: clusterctl sync" in run.said()


def another_python(rank: int) -> None:
    """Have rank 1 run another Python."""
    from train.checkpoint import provenance

    found = provenance.versions()
    provenance.versions = lambda: found | {"python": ("3.12.1", "3.12.4", "3.13.1")[rank]}


def test_another_patch_of_python_is_said_and_that_is_all(world: World) -> None:
    run = world.run(nodes=(1, 1), max_steps=1, before=another_python)
    assert "Python differs: 3.12.1 on " in run.said()
    refused = world.start(nodes=(1, 1, 1), max_steps=1, before=another_python)
    assert set(refused.wait()) == {3}
    assert "the installed python: expected the same on every node (3.12), found" in refused.said()


def test_a_rank_that_is_no_number_ends_without_a_traceback(tmp_path: Path) -> None:
    config = ["--name-or-path=m", "--dataset-path=d", f"--output-dir={tmp_path}"]
    done = subprocess.run(
        [sys.executable, "-m", "train", *config],
        env=os.environ | {"RANK": "abc", "WORLD_SIZE": "1", "MASTER_ADDR": "a", "MASTER_PORT": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith(
        "error: RANK: expected a whole number from 0 on, found 'abc'\nhint: "
    )


def test_a_python_without_torch_is_said(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['torch'] = None; from train.__main__ import main; "
        f"sys.exit(main(['--name-or-path=m', '--dataset-path=d', '--output-dir={tmp_path}']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "torch" in done.stderr
    assert done.stderr.endswith(
        f": every node needs it\nhint: {sys.executable} -m pip install torch\n"
    )
    assert json.loads((tmp_path / "status.json").read_text())["state"] == "failed"


def test_shards_may_be_empty(world: World) -> None:
    how: dict[str, Any] = {"lora_r": 2, "max_steps": 3}
    alone, three = (world.run(nodes=nodes, **how) for nodes in ((1,), (3,)))
    assert alone.losses()[3] == pytest.approx(three.losses()[3], rel=1e-5)
