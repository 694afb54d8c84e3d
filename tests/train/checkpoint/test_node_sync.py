"""Files go from node to node, and a disk that fails on one of them hangs none."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests.train.outcome import steps_of
from tests.train.world import World, context
from train.files import Entry

pytestmark = pytest.mark.torch

SIZE = 1000
WANTED = Entry(SIZE, hashlib.sha256(b"x" * SIZE).hexdigest())


def exchange(rank: int, folder: Path) -> None:
    """Be one of two nodes; the first has both files and cannot read one of them."""
    from train.checkpoint.node_sync import copy_to_nodes
    from train.distributed.env import RankEnv
    from train.distributed.process_group import Ranks

    env = RankEnv(
        rank=rank, world_size=2, local_rank=0, local_world_size=1, node_rank=rank, nodes=2,
        launched=True,
    )  # fmt: skip
    ranks = Ranks.join(env, timeout=60, rendezvous=f"file://{folder}/meet")
    here = folder / f"node-{rank}"
    here.mkdir()
    if rank == 0:
        (here / "bad").symlink_to("/proc/self/mem")  # opens, and every read fails
        (here / "good").write_bytes(b"x" * SIZE)
    said = ""
    try:
        copy_to_nodes(ranks, here, dict.fromkeys(("bad", "good"), WANTED), {"bad": 0, "good": 0})
    except OSError as error:
        said = str(error)
    (folder / f"said-{rank}").write_text(json.dumps(ranks.gather(said)))
    sys.exit(0)


def test_a_file_that_cannot_be_read_keeps_nobody_waiting(tmp_path: Path) -> None:
    nodes = [context().Process(target=exchange, args=(n, tmp_path), daemon=True) for n in (0, 1)]
    for node in nodes:
        node.start()
    for node in nodes:
        node.join(60)
    hung = [node for node in nodes if node.is_alive()]
    for node in hung:
        node.kill()
    assert not hung
    first, second = json.loads((tmp_path / "said-0").read_text())
    assert "Input/output error" in first
    assert "bad: expected what " in second, "zeros came in its place"
    assert (tmp_path / "node-1/good").read_bytes() == b"x" * SIZE


def other_bytes_once(rank: int) -> None:
    """Let rank 1 keep something else than what it was sent, the first time."""
    from train.checkpoint import node_sync

    real, tries = node_sync._write, iter("x")

    def write(file: Any, chunk: Any) -> None:
        if rank == 1 and next(tries, None):
            chunk[0] ^= 1
        real(file, chunk)

    patch.object(node_sync, "_write", write).start()


def test_a_copy_with_other_bytes_is_not_sealed(world: World, tmp_path: Path) -> None:
    apart = tmp_path / "apart"
    run = world.run(
        nodes=(1, 1), apart=apart, before=other_bytes_once, save_steps=1, max_steps=2,
    )  # fmt: skip
    assert "checkpoint not written: rank 1 on " in run.said()
    assert "found other bytes" in run.said()
    for node in (0, 1):
        assert steps_of(apart / f"node-{node}/output") == [2]


def test_a_copy_with_other_bytes_is_not_gone_on_from(world: World, tmp_path: Path) -> None:
    import shutil

    apart = tmp_path / "apart"
    how: dict[str, Any] = {"nodes": (1, 1), "apart": apart}
    world.run(**how, max_steps=1)
    shutil.rmtree(apart / "node-1/output/step-000001")
    again = world.start(**how, before=other_bytes_once, resume_from_checkpoint="latest")
    assert again.wait() == [4, 4]
    assert "expected it copied to every node, found rank 1 on " in again.said()
