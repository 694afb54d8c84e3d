"""Samples for tests: one each five seconds."""

from __future__ import annotations

from collections.abc import Sequence

from clusterctl.node.run.samples.row import GpuUse, Machine, RankUse, Row

BEGAN = 1_790_000_000.0


def row(number: int, *, percent: Sequence[float | None] = (), cpu: Sequence[float] = ()) -> Row:
    """Return the sample of that number of a node whose GPUs, or ranks, were so busy."""
    gpus = (GpuUse(n, n, 80e9, busy, 71e9, 500, 61, 4) for n, busy in enumerate(percent))
    ranks = (RankUse(n, busy, 2e9) for n, busy in enumerate(cpu))
    machine = Machine(800 + number % 2, 90e9, 1e8, 2e8, 0, 5e7)
    return Row(BEGAN + 5 * (number + 1), 5.0, machine, tuple(gpus), tuple(ranks))
