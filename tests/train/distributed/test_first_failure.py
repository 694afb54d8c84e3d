"""Of a run that failed, status.json says what went wrong first, on whichever rank that was."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests.train.world import World, context
from tests.waiting import BUSY

pytestmark = pytest.mark.torch

LONG: dict[str, Any] = {"nodes": (1, 1), "max_steps": 400}


def broken(rank: int) -> None:
    """Have rank 1 fail in its third step."""
    from train.trainer import Trainer

    real, calls = Trainer.update, iter(range(9))

    def update(*args: Any) -> Any:
        if next(calls) == 2:
            raise ValueError("the sun has set")
        return real(*args)

    if rank == 1:
        patch.object(Trainer, "update", update).start()


@pytest.mark.parametrize("storage", ["shared", "per-node"])
def test_the_first_ranks_own_words_are_kept(world: World, tmp_path: Path, storage: str) -> None:
    apart = tmp_path / "apart" if storage == "per-node" else None
    run = world.start(**LONG, before=broken, apart=apart)
    assert run.wait() == [1, 1]
    reason = f"rank 1 on {socket.gethostname()}: ValueError: the sun has set"
    assert (run.status()["state"], run.status()["reason"]) == ("failed", reason)
    assert f"error: {reason}" in run.said()
    assert "Traceback" not in run.said(), "the one of rank 1 is what is worth reading"
    assert "Traceback" in run.said(1)


def would_hang_at_exit(rank: int) -> None:
    """Have rank 1 fail, and no rank end by Python's own way out, as with NCCL's groups."""
    broken(rank)
    threading.Thread(target=time.sleep, args=(BUSY * 2,), daemon=False).start()


def test_a_failed_rank_exits_although_its_groups_could_not_be_destroyed(world: World) -> None:
    run = world.start(**LONG, before=would_hang_at_exit)
    assert run.wait() == [1, 1]
    assert "[rank1]: ValueError: the sun has set" in run.said(1).splitlines()
    assert run.said().splitlines()[-1].endswith("ValueError: the sun has set")


def fails_and_stays(rank: int) -> None:
    """Have rank 1 fail as `broken`, but keep its connections: as NCCL, gloo then sees nothing."""
    from train.distributed import first_failure

    first_failure.GRACE = 1.0
    broken(rank)
    if rank == 1:
        real = first_failure.FirstFailure.cause_of

        def behind(*args: Any) -> Any:
            real(*args)
            time.sleep(200)

        patch.object(first_failure.FirstFailure, "cause_of", behind).start()


def test_a_rank_that_blocks_in_a_collective_hears_of_it(world: World) -> None:
    run = world.start(**LONG, before=fails_and_stays, step_timeout=300.0)
    run.processes[0].join(100)
    assert run.processes[0].exitcode == 1, "long before the collective's own limit"
    reason = f"rank 1 on {socket.gethostname()}: ValueError: the sun has set"
    assert (run.status()["state"], run.status()["reason"]) == ("failed", reason)
    assert f"error: {reason}" in run.said()
    assert run.processes[1].is_alive()
    assert not (run.output / ".owner").exists(), "another machine would wait for a sign of life"


def test_a_rank_that_could_say_nothing_leaves_what_was_seen_of_it(world: World) -> None:
    run = world.start(**LONG)
    run.wait_for("Step 3/")
    run.send(signal.SIGKILL, 1)
    assert run.wait() == [1, -signal.SIGKILL]
    assert run.status()["state"] == "failed"
    assert run.status()["reason"].startswith("RuntimeError: ")


def test_only_what_another_rank_may_have_caused_is_a_consequence() -> None:
    from torch.distributed import DistNetworkError

    from train.distributed.first_failure import is_consequence

    assert is_consequence(DistNetworkError("anything"))
    assert is_consequence(RuntimeError("[gloo/pair.cc] Connection closed by peer [10.0.0.1]"))
    assert not is_consequence(RuntimeError("shape mismatch"))
    assert not is_consequence(ValueError("timed out"))


NCCL = "NCCL error in: NCCLUtils.cpp:77, {}, NCCL version 2.30.7\n{}\nLast error:\n{}"


@pytest.mark.parametrize(
    ("said", "consequence"),
    [
        (("unhandled system error", "ncclSystemError: System call failed",
          "Call to ibv_modify_qp failed with 22 Invalid argument"), False),
        (("unhandled system error", "ncclSystemError: System call failed",
          "Call to ibv_modify_qp failed with 110 Connection timed out"), False),
        (("unhandled cuda error", "ncclUnhandledCudaError: Call to CUDA function failed.",
          "Cuda failure 2 'out of memory'"), False),
        (("invalid usage", "ncclInvalidUsage: invalid usage",
          "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1b000"), False),
        (("remote process exited or there was a network error", "ncclRemoteError: A call failed",
          "socketProgress: Connection closed by remote peer gpu2"), True),
        (("unhandled system error", "ncclSystemError: System call failed",
          "socketPollConnect: connect returned Connection refused"), True),
    ],
)  # fmt: skip
def test_an_error_of_nccl_may_be_the_cause(said: tuple[str, ...], *, consequence: bool) -> None:
    from torch.distributed import DistBackendError

    from train.distributed.first_failure import is_consequence

    assert is_consequence(DistBackendError(NCCL.format(*said))) is consequence


def test_an_aborted_communicator_is_a_consequence() -> None:
    from torch.distributed import DistBackendError

    from train.distributed.first_failure import is_consequence

    assert is_consequence(DistBackendError("NCCL communicator was aborted on rank 1."))
    assert is_consequence(DistBackendError("Watchdog caught collective operation timeout"))


def meets(port: Any, ending: Any, *, says_why: bool) -> None:
    """Be rank 0, which keeps the store, and fail when told to."""
    from datetime import timedelta

    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    from train.distributed.first_failure import FirstFailure

    store = TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=30), False)
    port.put(store.port)
    ending.wait()
    if says_why:
        FirstFailure(store, 0, 2).cause_of(ValueError("the sun has set"))
    os._exit(1)


@pytest.mark.parametrize("says_why", [True, False])
def test_the_others_end_if_the_first_rank_fails_and_the_store_with_it(*, says_why: bool) -> None:
    """Under srun rank 0 keeps the store; the others may block in NCCL, which hears nothing."""
    from datetime import timedelta

    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    from train.distributed.first_failure import FirstFailure

    port, ending = context().Queue(), context().Event()
    how = {"says_why": says_why}
    first = context().Process(target=meets, args=(port, ending), kwargs=how, daemon=True)
    first.start()
    store = TCPStore("127.0.0.1", port.get(timeout=BUSY), None, False, timedelta(seconds=30))
    heard: list[str] = []

    def hear(cause: str) -> None:
        heard.append(cause)
        unwatch()

    unwatch = FirstFailure(store, 1, 2).watch(hear)
    ending.set()
    first.join()
    until = time.monotonic() + BUSY
    while not heard and time.monotonic() < until:
        time.sleep(0.05)
    why = f"rank 0 on {socket.gethostname()}: ValueError: the sun has set"
    assert heard == [why if says_why else "rank 0, where the ranks met, has exited"]
