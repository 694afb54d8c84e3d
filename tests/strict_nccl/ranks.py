"""Runs a function as several ranks under the strict backend, each in a process of its own."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.train.world import context
from tests.waiting import BUSY


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One rank."""

    rank: int
    world: int
    folder: Path
    patience: float = 60.0
    stands_for: str = "nccl"
    arguments: tuple[Any, ...] = ()
    """Of the program, apart from its place."""

    def join(self, backend: str = "nccl", **how: Any) -> None:
        """Make the default group."""
        import torch.distributed as dist  # noqa: PLC0415  (collecting tests must not wait for it)

        how = {"timeout": timedelta(seconds=60), **how}
        store = dist.FileStore(str(self.folder / "store"), self.world)  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.world, **how)


@dataclass(frozen=True, slots=True)
class Played:
    """How a rank ended."""

    code: int | None
    error: str
    """Class and message of what it raised."""
    said: str
    seconds: float


def play(
    program: Callable[[Place], None], places: list[Place], *, limit: float = BUSY
) -> list[Played]:
    """Run the ranks to their ends."""
    began = time.monotonic()
    processes = [context().Process(target=_be, args=(program, place)) for place in places]
    for process in processes:
        process.start()
    for process in processes:
        process.join(max(0.0, began + limit - time.monotonic()))
    hung = [place.rank for place, p in zip(places, processes, strict=True) if p.is_alive()]
    for process in processes:
        process.kill()
        process.join()
    assert not hung, f"ranks {hung} did not end: {[_read(place) for place in places]}"
    return [
        Played(process.exitcode, *_read(place))
        for place, process in zip(places, processes, strict=True)
    ]


def on(count: int, folder: Path, **how: Any) -> list[Place]:
    """Return the places of a world."""
    return [Place(rank=rank, world=count, folder=folder, **how) for rank in range(count)]


def _be(program: Callable[[Place], None], place: Place) -> None:
    began = time.monotonic()
    number = os.open(place.folder / f"rank-{place.rank}.log", os.O_WRONLY | os.O_CREAT)
    os.dup2(number, 1)
    os.dup2(number, 2)
    sys.stdout, sys.stderr = (os.fdopen(n, "w", buffering=1, closefd=False) for n in (1, 2))
    import torch  # noqa: PLC0415  (as above)

    from tests.strict_nccl.interposed import install  # noqa: PLC0415

    torch.set_num_threads(1)
    install(patience=place.patience, stands_for=place.stands_for)
    error, code = "", 0
    try:
        program(place)
    except BaseException as caught:  # noqa: BLE001  (whatever it is, the test compares it)
        error, code = f"{type(caught).__name__}: {caught}", 1
        traceback.print_exc()
    took = time.monotonic() - began
    (place.folder / f"rank-{place.rank}.end").write_text(f"{took}\n{error}")
    os._exit(code)  # gloo's threads may wait for ranks that ended


def _read(place: Place) -> tuple[str, str, float]:
    said = (place.folder / f"rank-{place.rank}.log").read_text()
    path = place.folder / f"rank-{place.rank}.end"
    if not path.exists():
        return "", said, 0.0
    seconds, _, error = path.read_text().partition("\n")
    return error, said, float(seconds)
