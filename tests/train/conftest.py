"""A tiny model, a corpus, and trainings of them, made once for all tests of a process."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.train.tiny import LONGEST, make_corpus, make_model
from tests.train.world import Training, World, context
from train.config.config import Config


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Let torch compute in one thread a process: those of several would wait for each other."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a model (`model`, `tied`) and data (`train.jsonl`, `eval.jsonl`)."""
    folder = tmp_path_factory.mktemp("tiny")
    make_model(folder / "model")
    make_model(folder / "tied", tied=True)
    make_corpus(folder / "train.jsonl", 60)
    make_corpus(folder / "eval.jsonl", 13, seed=1)
    return folder


@pytest.fixture(scope="session")
def base(tiny: Path) -> Config:
    """Return a training of six steps that learns something, and evaluates nothing."""
    return Config(
        name_or_path=str(tiny / "model"),
        dataset_path=str(tiny / "train.jsonl"),
        cache_dir=str(tiny / "tokens"),
        seq_len=LONGEST,
        global_batch_size=12,
        per_device_train_batch_size=4,
        learning_rate=2e-2,
        warmup_steps=1,
        max_steps=6,
        save_minutes=0,
    )


@pytest.fixture
def world(tmp_path: Path, base: Config) -> Iterator[World]:
    """Return what starts trainings in this test's folder."""
    world = World(tmp_path, base)
    yield world
    world.close()


@pytest.fixture(scope="session")
def usual(tmp_path_factory: pytest.TempPathFactory, base: Config) -> Callable[..., Training]:
    """Return what runs a training that tests compare with, each once: they change nothing of it."""
    return functools.cache(World(tmp_path_factory.mktemp("usual"), base).run)


@pytest.fixture(scope="session")
def on_device() -> Iterator[Callable[..., None]]:
    """Return what calls a function with a device: for a GPU in another process.

    One that has used CUDA cannot fork children that use it, and pytest's process forks many.
    """
    with ProcessPoolExecutor(1, mp_context=context()) as pool:

        def call(function: Callable[..., Any], device: str, *args: Any) -> None:
            if device == "cpu":
                function(device, *args)
            else:
                pool.submit(function, device, *args).result()

        yield call
