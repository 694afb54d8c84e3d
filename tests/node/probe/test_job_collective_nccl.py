"""The job of `check --deep` under NCCL's rules."""

# ruff: noqa: PLC0415  (collecting tests must not wait for torch)
from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.strict_nccl.ranks import Place, on, play

pytestmark = pytest.mark.torch


def tries(place: Place) -> None:
    """Be one node: the first one's process has the store, as the ladder's master does."""
    import torch.distributed as dist

    from clusterctl.node.probe.trial.job_collective import BLOCKS, SENDS, all_reduce
    from tests.strict_nccl.cuda import pretend

    pretend(place.world)
    BLOCKS["cuda"], SENDS["cuda"] = (1 << 16, 1 << 18), (1 << 18, 1 << 16)
    stores: Any = dist
    port_file = place.folder / "port"
    server = None
    if place.rank == 0:
        server = stores.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
        (place.folder / "new").write_text(str(server.port))
        (place.folder / "new").rename(port_file)
    from tests.waiting import wait_until

    wait_until(port_file.exists)
    group = {
        "name": "across",
        "rank": place.rank,
        "world": place.world,
        "device": f"cuda:{place.rank}",
        "address": "127.0.0.1",
        "port": int(port_file.read_text()),
        "limit_s": 120.0,
        "pairs": place.arguments[0],
    }
    found = all_reduce(group)
    assert found["right"] is True, found
    assert found["backend"] == "nccl", found
    if place.arguments[0]:
        assert sum(one is not None for one in found["pairs"]) == place.world - 1, found
    dist.barrier()
    dist.destroy_process_group()
    left = [place.folder / f"left-{rank}" for rank in range(place.world)]
    left[place.rank].touch()
    if server:
        wait_until(lambda: all(path.exists() for path in left))


@pytest.mark.parametrize(
    ("world", "pairs"),
    [
        (2, True),
        pytest.param(4, False, marks=pytest.mark.soak),
        pytest.param(4, True, marks=pytest.mark.soak),
        pytest.param(8, True, marks=pytest.mark.soak),
    ],
)
def test_sums_and_exchanges_keep_the_rules(tmp_path: Path, world: int, *, pairs: bool) -> None:
    places = [replace(one, arguments=(pairs,)) for one in on(world, tmp_path)]
    ended = play(tries, places, limit=300)
    assert {one.code for one in ended} == {0}, ended
    assert "strict NCCL: " in ended[0].said
