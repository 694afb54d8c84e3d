"""The programs in examples/ under NCCL's rules."""

# ruff: noqa: PLC0415  (collecting tests must not wait for torch)
from __future__ import annotations

import os
import runpy
import socket
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.strict_nccl.ranks import Place, on, play

pytestmark = pytest.mark.torch

EXAMPLES = Path(__file__).parents[2] / "examples"
WORLDS = (
    pytest.param((1, 2), id="1x2"),
    pytest.param((2, 2), id="2x2", marks=pytest.mark.soak),
    pytest.param((2, 4), id="2x4", marks=pytest.mark.soak),
)
"""Nodes and ranks of each."""


def example(place: Place) -> None:
    """Be a rank of a launcher's."""
    name, port, per_node, gpu, *arguments = place.arguments
    os.environ.update(
        RANK=str(place.rank),
        WORLD_SIZE=str(place.world),
        LOCAL_RANK=str(place.rank % per_node),
        LOCAL_WORLD_SIZE=str(per_node),
        GROUP_RANK=str(place.rank // per_node),
        NNODES=str(place.world // per_node),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        ACCELERATE_USE_CPU=str(not gpu),  # as `accelerate launch --cpu` does
    )
    if gpu:
        from tests.strict_nccl.cuda import pretend

        pretend(per_node)
    home = place.folder / f"node-{place.rank // per_node}"
    home.mkdir(exist_ok=True)
    os.chdir(home)
    sys.argv = ["train.py", *arguments]
    runpy.run_path(str(EXAMPLES / name / "train.py"), run_name="__main__")
    import torch.distributed as dist

    if dist.is_initialized():  # the Trainer leaves that to the end of the process
        dist.destroy_process_group()


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize(
    ("name", "gpu"),
    [("ddp", True), ("shell-script", True), ("accelerate", False), ("hf-trainer-lora", False)],
)
def test_an_example_keeps_the_rules(
    tmp_path: Path, *, name: str, gpu: bool, world: tuple[int, int]
) -> None:
    """Those with `gpu` take their CUDA branch; libraries choose gloo, which then is NCCL."""
    nodes, per_node = world
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    how = {"stands_for": "nccl" if gpu else "gloo"}
    arguments = (name, port, per_node, gpu, "--steps", "4")
    places = [replace(one, arguments=arguments) for one in on(nodes * per_node, tmp_path, **how)]
    ended = play(example, places, limit=300)
    assert {one.code for one in ended} == {0}, ended
    said = ended[0].said
    assert "ended at" in said
    used = [line for line in said.splitlines() if line.startswith("strict NCCL: ")]
    assert sum(int(line.split()[2]) for line in used) >= 4, said
