"""Claims: one worker at a time, and work of the dead is taken over."""

from __future__ import annotations

import os
import time
from pathlib import Path

from train.data.claims import Claims, wait_until


def test_a_claim_is_one_workers(tmp_path: Path) -> None:
    with Claims(tmp_path).take("shard") as first:
        assert first
        with Claims(tmp_path).take("shard") as second:
            assert not second
    with Claims(tmp_path).take("shard") as third:
        assert third
    assert list(tmp_path.iterdir()) == []


def test_a_claim_that_nobody_touches_is_taken_over(tmp_path: Path) -> None:
    claims = Claims(tmp_path, lost=0.2)
    (tmp_path / "shard.claim").write_text("host 1\n")
    with claims.take("shard") as taken:
        assert not taken
    time.sleep(0.3)
    with claims.take("shard") as taken:
        assert taken


def test_a_claim_that_is_touched_stays_whatever_its_clock_says(tmp_path: Path) -> None:
    claims = Claims(tmp_path, lost=0.2)
    path = tmp_path / "shard.claim"
    path.write_text("host 1\n")
    for day in range(3):
        os.utime(path, (day * 86400.0, day * 86400.0))
        with claims.take("shard") as taken:
            assert not taken
        time.sleep(0.15)


def test_waiting_ends_when_nothing_moves() -> None:
    assert wait_until(lambda: True, lambda: 1, patience=0.0)
    assert not wait_until(lambda: False, lambda: 1, patience=0.15)
