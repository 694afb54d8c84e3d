"""A sharded base is read in slices: no rank has all of it, and the losses stay the same."""

# ruff: noqa: PLC0415  (collecting tests must not wait for torch)
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.train.outcome import close
from tests.train.world import World

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]


def nobody_has_it_whole(_rank: int) -> None:
    """Refuse to load the base whole."""
    from train.model import model

    def loaded(*_: Any) -> None:
        raise AssertionError("the base was read whole")

    vars(model)["_loaded"] = loaded


@pytest.mark.parametrize("name", ["model", "tied"])
def test_no_rank_reads_the_whole_base(world: World, tiny: Path, name: str) -> None:
    how: dict[str, Any] = {"name_or_path": str(tiny / name), "max_steps": 2, "method": "full"}
    alone = world.run(**how)
    sliced = world.run(**how, nodes=(2, 1), parallel="fsdp", before=nobody_has_it_whole)
    assert close(alone.losses(), sliced.losses())
    assert "read whole" not in sliced.said()
