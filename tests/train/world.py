"""Trainings in real processes, forked from one that has torch already: started in milliseconds."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.waiting import BUSY
from train.config.config import Config


def context() -> multiprocessing.context.ForkServerContext:
    """Return the server that ranks are forked from."""
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(["tests.train.preload"])
    return found


@dataclass(slots=True, kw_only=True)
class Training:
    """A training under way."""

    config: Config
    processes: list[BaseProcess]
    folder: Path
    output: Path
    """The run's folder, as the first node sees it."""

    def wait(self, limit: float = BUSY) -> list[int | None]:
        """Wait for all ranks and return their exit codes."""
        until = time.monotonic() + limit
        for process in self.processes:
            process.join(max(0.0, until - time.monotonic()))
        alive = [p for p in self.processes if p.is_alive()]
        for process in alive:
            process.kill()
            process.join()
        assert not alive, f"did not end: {self.said()}"
        return [process.exitcode for process in self.processes]

    def send(self, number: signal.Signals, *ranks: int) -> None:
        """Send a signal to some ranks, or to all."""
        for rank in ranks or range(len(self.processes)):
            pid = self.processes[rank].pid
            assert pid
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self) -> None:
        """End all ranks as a machine that loses power does."""
        self.send(signal.SIGKILL)
        for process in self.processes:
            process.join()

    def said(self, rank: int = 0) -> str:
        """Return what a rank printed, both streams."""
        path = self.folder / f"rank-{rank}.log"
        return path.read_text() if path.exists() else ""

    def wait_for(self, text: str, limit: float = BUSY) -> None:
        """Wait until rank 0 has printed something."""
        until = time.monotonic() + limit
        while text not in self.said():
            assert time.monotonic() < until, self.said()
            assert any(p.is_alive() for p in self.processes), self.said()
            time.sleep(0.01)

    def status(self) -> dict[str, Any]:
        """Return status.json."""
        found: dict[str, Any] = json.loads((self.output / "status.json").read_text())
        return found

    def losses(self) -> dict[int, float]:
        """Return the loss of each step, in full precision."""
        lines = (self.output / "metrics.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        return {row["step"]: row["loss"] for row in rows if row["kind"] == "step"}

    def evaluations(self, of: str = "eval_loss") -> dict[int, float]:
        """Return the loss of each evaluation, or another of its numbers."""
        lines = (self.output / "metrics.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        found = {row["step"]: row[of] for row in rows if row["kind"] == "eval"}
        assert found, "nothing was evaluated"
        return found


class World:
    """Starts trainings in a folder."""

    def __init__(self, folder: Path, base: Config) -> None:
        self.folder = folder
        self.base = base
        self._context = context()
        self._count = 0
        self.started: list[Training] = []
        self.variables: dict[str, str] = {}
        """What ranks get in their environment: they are not forked from this process."""

    def start(
        self,
        *,
        nodes: tuple[int, ...] = (1,),
        apart: Path | None = None,
        gpu: bool = False,
        before: Callable[[int], None] | None = None,
        **changes: Any,
    ) -> Training:
        """Start a training.

        Args:
            nodes: How many ranks each node has.
            gpu: Whether ranks see the machine's GPUs: two ranks cannot share one.
            apart: Where each node has a folder of its own that the others do not see: the same
                relative output_dir, in another current folder.
            before: Called in each rank with its number before it trains.
            changes: What differs from the base configuration; the tiny model's data is evaluated
                if they say when.
        """
        self._count += 1
        logs = self.folder / f"start-{self._count}"
        logs.mkdir(parents=True)
        changes.setdefault(
            "output_dir", "output" if apart else str(self.folder / f"output-{self._count}")
        )
        if changes.get("eval_steps") or changes.get("eval_epochs"):
            held_out = Path(str(self.base.dataset_path)).with_name("eval.jsonl")
            changes.setdefault("eval_dataset_path", str(held_out))
        config = replace(self.base, **changes)
        padded_tokens = [
            {
                "rank": sum(nodes[:node]) + local,
                "world_size": sum(nodes),
                "local_rank": local,
                "local_world_size": count,
                "node_rank": node,
                "nodes": len(nodes),
                "launched": sum(nodes) > 1,
            }
            for node, count in enumerate(nodes)
            for local in range(count)
        ]
        processes: list[BaseProcess] = []
        for env in padded_tokens:
            log = logs / f"rank-{env['rank']}.log"
            process = self._context.Process(
                target=rank,
                args=(config, env, logs / "rendezvous", log, apart, gpu, before, self.variables),
                daemon=True,
            )
            process.start()
            processes.append(process)
        output = apart / "node-0" / config.output_dir if apart else Path(config.output_dir)
        training = Training(config=config, processes=processes, folder=logs, output=output)
        self.started.append(training)
        return training

    def run(self, **how: Any) -> Training:
        """Run a training to its good end."""
        training = self.start(**how)
        codes = training.wait()
        assert set(codes) == {0}, training.said()
        return training

    def close(self) -> None:
        """Leave nothing running."""
        for training in self.started:
            for process in training.processes:
                if process.is_alive():
                    process.kill()
                    process.join()


def rank(
    config: Config,
    env: dict[str, Any],
    meet: Path,
    log: Path,
    apart: Path | None,
    gpu: bool,  # noqa: FBT001  (a process passes arguments by position only)
    before: Callable[[int], None] | None,
    variables: dict[str, str],
) -> None:
    """Be one rank: what `python -m train` does after its arguments."""
    print_into(log)
    os.environ.update(variables)
    if not gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import torch

    from train.__main__ import exit_with, train
    from train.distributed.env import RankEnv

    torch.set_num_threads(1)
    here = apart / f"node-{env['node_rank']}" if apart else log.parent
    here.mkdir(parents=True, exist_ok=True)
    os.chdir(here)
    if before:
        before(env["rank"])
    exit_with(lambda: train(config, RankEnv(**env), rendezvous=f"file://{meet}"))


def without_workers(_rank: int) -> None:
    """Let a rank make the windows of a stream itself: other processes would import for seconds."""
    from train.data.stream import windows

    patch.object(windows, "worker_count", lambda _: 0).start()


def command(words: list[str], environment: dict[str, str], log: Path) -> None:
    """Be `python -m train WORDS`, but for Python's start and the imports."""
    print_into(log)
    os.environ.clear()
    os.environ.update(environment)
    from train.__main__ import exit_with, main

    exit_with(lambda: main(words))


def print_into(log: Path) -> None:
    """Let this process print into a file."""
    number = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(number, 1)
    os.dup2(number, 2)
    sys.stdout = os.fdopen(1, "w", buffering=1)
    sys.stderr = os.fdopen(2, "w", buffering=1)
