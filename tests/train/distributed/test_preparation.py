"""Ranks that prepare: a slow one is waited for, one that fails or falls silent ends the others."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.train.world import World
from tests.waiting import BUSY
from train.distributed.env import RankEnv
from train.errors import AnotherRankFailed, ConfigError

pytestmark = pytest.mark.torch

PATIENCE = 0.6


def ranks(*works: Callable[[], None]) -> list[BaseException | None]:
    """Prepare with so many ranks, a thread each; return what each ended with."""
    from train.distributed.preparation import Preparation
    from train.distributed.process_group import local_store

    store = local_store()
    ended: list[BaseException | None] = [None] * len(works)

    def be(rank: int) -> None:
        env = RankEnv(rank=rank, world_size=len(works), launched=True)
        try:
            with Preparation(store, env, patience=PATIENCE) as preparation:
                works[rank]()
                preparation.wait()
        except Exception as error:  # noqa: BLE001  (the test looks at it)
            ended[rank] = error

    threads = [threading.Thread(target=be, args=(rank,)) for rank in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    return ended


def nothing() -> None:
    """Be ready at once."""


@pytest.mark.parametrize("slow", [0, 1])
def test_a_slow_rank_is_waited_for_beyond_all_patience(slow: int) -> None:
    works: list[Callable[[], None]] = [nothing, nothing, nothing]
    works[slow] = lambda: time.sleep(3 * PATIENCE)
    assert ranks(*works) == [None, None, None]


def test_a_failed_rank_ends_the_others_with_its_reason() -> None:
    def fail() -> None:
        raise ConfigError("data.jsonl:3: expected text")

    first, second = ranks(nothing, fail)
    assert isinstance(second, ConfigError)
    assert isinstance(first, AnotherRankFailed)
    assert "rank 1 on " in str(first)
    assert "ConfigError: data.jsonl:3: expected text" in str(first)


@pytest.mark.parametrize("gone", [0, 1])
def test_a_silent_rank_is_named(gone: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from train.distributed.preparation import Preparation

    beat: Any = Preparation._beat

    def beat_unless_gone(self: Preparation) -> None:
        if self._env.rank == gone:
            self._store.set(f"beat-{gone}", "the only one")
        else:
            beat(self)

    monkeypatch.setattr(Preparation, "_beat", beat_unless_gone)
    works: list[Callable[[], None]] = [nothing, nothing]
    works[gone] = lambda: time.sleep(3 * PATIENCE)
    ended = ranks(*works)
    assert f"no sign of life for 1 s from rank {gone} on " in str(ended[1 - gone])


def slow_on_the_second_node(rank: int) -> None:
    """Tokenize for longer than collectives may take."""
    from unittest.mock import patch

    from train.data import dataset

    real = dataset.prepare

    def prepare(*words: Any, **how: Any) -> Any:
        time.sleep(25.0 * rank)
        return real(*words, **how)

    patch.object(dataset, "prepare", prepare).start()


def ends_in_tokenizing(rank: int) -> None:
    """Have rank 0 fail, or be killed as by the kernel for want of memory, as the file says."""
    from unittest.mock import patch

    from train.data import token_cache

    def end(*_: Any) -> None:
        time.sleep(2.0)  # its neighbor waits by now
        if Path("killed").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        raise ConfigError("data.jsonl:3: expected text")

    if rank == 0:
        patch.object(token_cache.Maker, "_make", end).start()


@pytest.mark.parametrize("way", ["failed", "killed"])
def test_a_neighbor_does_not_wait_for_tokens_that_nobody_makes(
    world: World, tmp_path: Path, way: str
) -> None:
    apart = tmp_path / "apart"
    (apart / "node-0").mkdir(parents=True)
    (apart / "node-0" / way).touch()
    how: dict[str, Any] = {"nodes": (2,), "apart": apart, "before": ends_in_tokenizing}
    run = world.start(**how, cache_dir=str(tmp_path / "tokens"))
    run.processes[0].join(BUSY)
    began = time.monotonic()
    codes = run.wait()
    assert time.monotonic() - began < 15
    if way == "failed":
        assert codes == [2, 1]
        assert "ConfigError: data.jsonl:3: expected text" in run.said(1)
    else:
        assert codes == [-signal.SIGKILL, 1]
        assert f"expected process {run.processes[0].pid} on " in run.said(1)
        assert "Traceback" not in run.said(1)


@pytest.mark.soak
def test_a_training_waits_for_a_node_that_tokenizes_beyond_start_timeout(world: World) -> None:
    run = world.start(nodes=(1, 1), before=slow_on_the_second_node, start_timeout=15, max_steps=2)
    assert run.wait() == [0, 0], run.said()
