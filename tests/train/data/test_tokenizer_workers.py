"""Several processes tokenize as one does, and end with the one that started them."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from contextlib import suppress
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.train.world import context
from tests.waiting import wait_until
from train.config.config import Config
from train.data import dataset, token_cache, tokenizer_workers
from train.distributed import host_memory
from train.distributed.env import RankEnv
from train.errors import ConfigError

pytestmark = pytest.mark.torch

SHARD = 2000
CLAIM_OR_HALF = ("*.claim*", "*.tmp-*")


def lines_of(count: int) -> list[str]:
    return [json.dumps({"text": f"line {n} " * (n % 7 + 1)}) for n in range(count)]


def configured(tiny: Path, folder: Path, lines: list[str]) -> Config:
    """Return a training on these lines."""
    (folder / "data.jsonl").write_text("\n".join(lines) + "\n")
    return Config(
        name_or_path=str(tiny / "model"),
        dataset_path=str(folder / "data.jsonl"),
        output_dir=str(folder / "output"),
        seq_len=48,
        max_bad_lines=5,
    )


def use_workers(cpus: int) -> None:
    """Have many small shards, as many CPUs, and rows that are worth a worker."""
    token_cache.SHARD_BYTES = SHARD
    tokenizer_workers.ROW_SECONDS = 1.0
    os.sched_getaffinity = lambda _: set(range(cpus))


@pytest.fixture
def cpus(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what sets the number of CPUs."""
    monkeypatch.setattr(token_cache, "SHARD_BYTES", SHARD)
    monkeypatch.setattr(tokenizer_workers, "ROW_SECONDS", 1.0)
    monkeypatch.setattr(os, "sched_getaffinity", None)
    return use_workers


@pytest.fixture
def quick_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the workers from a process that has their libraries, which they import for seconds."""
    server = context()
    monkeypatch.setattr(multiprocessing, "get_context", lambda _spawn: server)


def files_in(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith("scan-")  # has the time in it
    }


@pytest.mark.parametrize(
    "start", ["quick_start", pytest.param("", id="spawn", marks=pytest.mark.soak)]
)
def test_the_cache_of_several_processes_is_that_of_one_to_the_byte(
    tiny: Path, tmp_path: Path, cpus: Any, request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch, start: str,
) -> None:  # fmt: skip
    if start:
        request.getfixturevalue(start)
    bad = ["no JSON", json.dumps({"other": 1})]
    lines = lines_of(300)
    config = configured(tiny, tmp_path, [*lines[:7], bad[0], *lines[7:290], bad[1], *lines[290:]])
    cpus(1)
    alone = dataset.prepare(replace(config, cache_dir=str(tmp_path / "alone")), RankEnv())
    cpus(2)

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("this process tokenizes nothing itself")

    monkeypatch.setattr(dataset, "load_tokenizer", never)
    shared = dataset.prepare(replace(config, cache_dir=str(tmp_path / "shared")), RankEnv())
    assert shared.notes == alone.notes
    assert [note.split(":")[1] for note in shared.notes] == ["8", "292"]
    assert files_in(tmp_path / "shared") == files_in(tmp_path / "alone")
    assert not workers_of(psutil.Process())
    assert not multiprocessing.active_children()


def workers_of(process: psutil.Process) -> list[psutil.Process]:
    """Return the processes that tokenize for a process."""
    found = []
    for child in process.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if "spawn_main" in " ".join(child.cmdline()):
                found.append(child)
    return found


@pytest.mark.usefixtures("quick_start")
def test_an_error_of_a_worker_is_that_of_one_process(tiny: Path, tmp_path: Path, cpus: Any) -> None:
    config = configured(tiny, tmp_path, ['{"txt": "words"}'] * 2000)
    told = []
    for count in (1, 2):
        cpus(count)
        with pytest.raises(ConfigError) as error:
            dataset.prepare(replace(config, cache_dir=str(tmp_path / f"{count}")), RankEnv())
        told.append(str(error.value))
    assert told[0] == told[1]
    assert "data.jsonl:1: expected text, messages, " in told[0]
    assert not multiprocessing.active_children()


@pytest.mark.usefixtures("quick_start")
def test_a_killed_worker_is_an_error_and_ends_the_others(
    tiny: Path, tmp_path: Path, cpus: Any
) -> None:
    # So many that the other worker is not done with them before this process looks.
    config = configured(tiny, tmp_path, lines_of(3000))
    cpus(2)
    killed: list[BaseProcess] = []

    def kill_one() -> None:
        if workers := multiprocessing.active_children():
            killed.append(workers[0])
            workers[0].kill()

    with pytest.raises(RuntimeError, match="a process that tokenizes ended with code -9"):
        dataset.prepare(config, RankEnv(), check=kill_one)
    assert killed
    assert not multiprocessing.active_children()


def tokenize(config: Config) -> None:
    """Be a training that tokenizes, with workers that need not import its libraries again."""
    from train.lifecycle.signals import EarlySignals, Stopped

    use_workers(2)
    forks = multiprocessing.get_context("fork")
    vars(multiprocessing)["get_context"] = lambda _spawn: forks
    with suppress(Stopped), EarlySignals(lambda _: None):
        dataset.prepare(config, RankEnv())


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.soak)]
)
def test_workers_end_with_the_process_that_started_them(
    tiny: Path, tmp_path: Path, number: signal.Signals
) -> None:
    config = configured(tiny, tmp_path, lines_of(60_000))
    parent = context().Process(target=tokenize, args=(config,))
    parent.start()
    assert parent.pid
    try:
        cache = Path(config.output_dir) / "tokens"
        wait_until(lambda: list(cache.glob("*/shard-*/shard.json")))
        workers = psutil.Process(parent.pid).children()
        assert len(workers) == 2
        os.kill(parent.pid, number)
        parent.join(60)
        assert not parent.is_alive()
        assert not psutil.wait_procs(workers, 60)[1]
    finally:
        parent.kill()
    assert not list(cache.glob("*/COMPLETE")), "it was stopped in the middle"
    if number != signal.SIGKILL:
        assert not [path for what in CLAIM_OR_HALF for path in cache.glob(f"*/{what}")]


def test_few_data_few_cpus_little_memory_and_few_shards_are_worth_no_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worth, plenty = tokenizer_workers.worker_count, 300_000
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(32)))
    monkeypatch.setattr(host_memory, "available", lambda: 1 << 40)
    assert worth(1000, 1 << 20, 100) == 1
    assert worth(plenty, 100 << 20, 100) == 32
    assert worth(plenty, 20 << 20, 21) == 21
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(512)))
    assert worth(plenty, 100 << 20, 256) == tokenizer_workers.MOST
    monkeypatch.setattr(host_memory, "available", lambda: 8 << 30)
    assert worth(plenty, 100 << 20, 256) == 8
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {7})
    assert worth(plenty, 100 << 20, 256) == 1


def test_the_threads_that_torchrun_gives_a_rank_do_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(32)))
    monkeypatch.setattr(host_memory, "available", lambda: 1 << 40)
    assert tokenizer_workers.worker_count(300_000, 100 << 20, 100) == 32


@pytest.mark.parametrize(
    ("quota", "count"),
    [("max 100000", 8), ("250000 100000", 3), ("50000 100000", 1), ("900000 100000", 8), ("", 8)],
)
def test_a_container_with_fewer_cpus_than_its_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, count: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    (tmp_path / "cpu.max").write_text(quota)
    assert tokenizer_workers.cpus(tmp_path / "cpu.max") == count
    assert tokenizer_workers.cpus(tmp_path / "none") == 8


def test_short_chats_are_in_shards_for_many_cpus(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 20,000 chats of 400 bytes, as people have them: a shard of 16 MiB would be work for one CPU.
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(host_memory, "available", lambda: 1 << 40)
    config = configured(tiny, tmp_path, ["x" * 400] * 20_000)
    source = token_cache.source(config, RankEnv(), tiny / "model", (tmp_path / "data.jsonl",))
    assert tokenizer_workers.worker_count(source.scan.lines, 8_000_000, source.shards) == 8
    assert sum(source.lines_of(number) for number in range(source.shards)) == 20_000
