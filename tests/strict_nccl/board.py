"""What each rank did last and whether one broke off: read when a rank does not come."""

from __future__ import annotations

import contextlib
import json
from typing import Any

from torch.distributed.distributed_c10d import PrefixStore


class Board:
    """All ranks of a program."""

    def __init__(self, store: Any, rank: int) -> None:
        # A client of its own, if there is one: another thread may wait in the program's.
        with contextlib.suppress(RuntimeError):
            store = store.clone()
        self._store: Any = PrefixStore("strict", store)
        self.rank = rank
        self._counts: dict[str, int] = {}

    def tell(self, what: str, *, group: str = "", count: int = 0) -> None:
        """Leave what this rank is about to do."""
        if group:
            self._counts[group] = count
        self._store.set(f"at/{self.rank}", json.dumps({"what": what, "counts": self._counts}))

    def count(self, rank: int, group: str) -> int:
        """Return how many calls a rank has issued on a group."""
        return int(self._of(rank).get("counts", {}).get(group, 0))

    def last(self, rank: int) -> str:
        """Return what a rank did last."""
        return str(self._of(rank).get("what", "nothing on any group"))

    def break_off(self, why: str) -> None:
        """Have all ranks end: their calls fail."""
        self._store.compare_set("broken", "", why)

    def broken(self) -> str:
        """Return why a rank broke off; nothing if none did."""
        return str(self._store.get("broken").decode()) if self._store.check(["broken"]) else ""

    def same(self, what: str, mine: str) -> str:
        """Return what the first rank to come says of something."""
        return str(self._store.compare_set(f"same/{what}", "", mine).decode())

    def post(self, key: str, value: bytes) -> None:
        """Leave something for a peer."""
        self._store.set(f"pair/{key}", value)

    def posted(self, key: str) -> bytes:
        """Return what a peer left; nothing if it has not yet."""
        key = f"pair/{key}"
        found: bytes = self._store.get(key) if self._store.check([key]) else b""
        return found

    def _of(self, rank: int) -> dict[str, Any]:
        key = f"at/{rank}"
        found: dict[str, Any] = json.loads(self._store.get(key)) if self._store.check([key]) else {}
        return found
