"""Waiting for another process of the node ends when nothing moves."""

from __future__ import annotations

from train.data.waiting import wait_until


def test_waiting_ends_when_nothing_moves() -> None:
    assert wait_until(lambda: True, lambda: 1, patience=0.0)
    assert not wait_until(lambda: False, lambda: 1, patience=0.15)
