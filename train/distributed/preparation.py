"""Ranks that wait for each other while data is tokenized or a model downloaded, even for hours.

Each rank beats in the store as long as it prepares. So a slow node is waited for, however long it
takes, and one that fails or falls silent ends the others, with its reason.
"""

from __future__ import annotations

import threading
import time
from typing import Self

from torch.distributed import DistError
from torch.distributed.distributed_c10d import PrefixStore, Store

from train.distributed.env import RankEnv, node_name
from train.errors import AnotherRankFailed
from train.lock import Process

BEAT = 5.0
"""Seconds between two signs of life, or a quarter of the patience if that is less."""
LOOK = 1.0
"""Most seconds until a change in the store is seen."""
REPORT = 60.0
"""Seconds between two lines that name who is waited for."""
SHOWN = 5


class Preparation:
    """What the ranks do before their groups exist; within a `with` statement."""

    def __init__(self, store: Store, env: RankEnv, *, patience: float) -> None:
        """Take part; a rank without a sign of life for `patience` seconds is given up."""
        self._store = PrefixStore("preparation", store)
        self._env = env
        self._patience = patience
        self._over = threading.Event()
        self._beating = threading.Thread(target=self._beat, daemon=True)
        self._seen: dict[int, tuple[bytes, float]] = {}
        self._checked = 0.0

    def __enter__(self) -> Self:
        if self._env.world_size > 1:
            self._store.set(f"host-{self._env.rank}", node_name())
            if self._env.local_rank == 0:
                self._store.set(f"first-{self._env.node_rank}", Process.here().text())
            self._beating.start()
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """End the beat, and report an error to the others; a stop reaches them by a signal."""
        if self._env.world_size == 1:
            return
        self._over.set()
        self._beating.join(LOOK)
        if isinstance(error, Exception) and not isinstance(error, AnotherRankFailed):
            host = node_name()
            text = f"rank {self._env.rank} on {host}: {type(error).__name__}: {error}"
            self._store.compare_set("failed", "", text)

    def agree(self, text: str) -> str:
        """Return, on all ranks, the text of the one that comes first."""
        if self._env.world_size == 1:
            return text
        return bytes(self._store.compare_set("agreed", "", text)).decode()

    def check(self) -> None:
        """Look for a failure, at most once a second; call it while others are waited for.

        Raises:
            AnotherRankFailed: A rank has failed, rank 0 is silent, or the process that prepares for
                this node has exited.
        """
        now = time.monotonic()
        if self._env.world_size == 1 or now - self._checked < LOOK:
            return
        self._checked = now
        self._refuse_failed()
        if self._env.rank:
            self._refuse_silent([0])
        key = f"first-{self._env.node_rank}"
        first = Process.parse(self._store.get(key)) if self._store.check([key]) else None
        if first and first.machine == Process.here().machine and not first.lives():
            message = f"expected process {first.pid} on {first.host} to prepare, found it gone"
            raise AnotherRankFailed(f"{message}\nhint: its own log says why")

    def wait(self) -> None:
        """Wait until all ranks are prepared; raise if one has failed or falls silent."""
        if self._env.world_size == 1:
            return
        self._store.set(f"ready-{self._env.rank}", "")
        missing = list(range(self._env.world_size))
        reported, pause = time.monotonic(), LOOK / 64
        while missing:
            self._refuse_failed()
            if self._env.rank == 0:
                missing = [rank for rank in missing if not self._store.check([f"ready-{rank}"])]
                self._refuse_silent(missing)
                if missing and time.monotonic() - reported > REPORT:
                    reported = time.monotonic()
                    print(f"waiting for {self._names(missing)}, still preparing", flush=True)
            elif self._store.check(["all"]):
                missing = []
            else:
                self._refuse_silent([0])
            if missing:
                time.sleep(pause)
                pause = min(LOOK, pause * 2)
        if self._env.rank == 0:
            self._store.set("all", "")

    def _beat(self) -> None:
        every = min(BEAT, self._patience / 4)
        count = 0
        try:
            while True:
                self._store.set(f"beat-{self._env.rank}", str(count))
                count += 1
                if self._over.wait(every):
                    return
        except RuntimeError:  # (torch's own are of this kind) the main thread finds out by itself
            return

    def _refuse_failed(self) -> None:
        try:
            cause = self._store.get("failed").decode() if self._store.check(["failed"]) else ""
        except DistError as error:
            found = "found the process that holds the ranks' store gone"
            message = f"expected all {self._env.world_size} ranks to prepare, {found}"
            raise AnotherRankFailed(f"{message}\nhint: the log of rank 0 says why") from error
        if cause:
            raise AnotherRankFailed(cause)

    def _refuse_silent(self, ranks: list[int]) -> None:
        """Refuse ranks whose beat has not changed for too long, by this process's clock alone."""
        now = time.monotonic()
        silent = []
        for rank in ranks:
            key = f"beat-{rank}"
            beat = self._store.get(key) if self._store.check([key]) else b""
            last, since = self._seen.setdefault(rank, (beat, now))
            if last != beat:
                self._seen[rank] = (beat, now)
            elif now - since > self._patience:
                silent.append(rank)
        if away := [str(rank) for rank in silent if not self._seen[rank][0]]:
            said = f"within start_timeout, found no process for rank {', '.join(away)}"
        elif silent:
            who = self._names(silent)
            said = f"to prepare, found no sign of life for {self._patience:.0f} s from {who}"
        else:
            return
        message = f"expected all {self._env.world_size} ranks {said}"
        raise AnotherRankFailed(f"{message}\nhint: their own logs say why")

    def _names(self, ranks: list[int]) -> str:
        names = []
        for rank in ranks[:SHOWN]:
            key = f"host-{rank}"
            here = self._store.check([key])
            names.append(f"rank {rank}" + (f" on {self._store.get(key).decode()}" if here else ""))
        more = f" and {len(ranks) - SHOWN} more" if len(ranks) > SHOWN else ""
        return ", ".join(names) + more
