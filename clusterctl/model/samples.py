"""What a node and the ranks on it used over time, as `samples` answers it: columns of samples.

Each list is as long as `time`; null in it is unknown.
"""

from __future__ import annotations

import dataclasses
from typing import TypeAlias

from clusterctl.model.from_json import Amount, Count, Rank, Seconds
from clusterctl.values import dataclass

Column: TypeAlias = tuple[Amount | None, ...]
MOST, MOST_PARTS = 10_000, 1024
"""Samples of a node, and its GPUs or ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSamples:
    """A GPU."""

    index: Count
    """The GPU's index."""
    rank: Rank | None = None
    """The rank that computes on it; null: unknown, or several."""
    memory_total_bytes: Amount | None = None
    """All of its memory."""
    percent: Column = ()
    """How busy it was."""
    memory_used_bytes: Column = ()
    """Memory in use, by any process."""
    watts: Column = ()
    """Power."""
    celsius: Column = ()
    """Temperature."""
    slowed: tuple[Count | None, ...] = ()
    """Bits of why its clocks were low, as in nvml.h."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSamples:
    """A rank, with the processes that it started."""

    rank: Rank
    """The global rank."""
    cpu_percent: Column = ()
    """100 is one core."""
    memory_bytes: Column = ()
    """Without what its processes share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """A node, its GPUs and the ranks on it."""

    cpus: Count | None = None
    """How many cores it has."""
    memory_total_bytes: Count | None = None
    """All of its memory."""
    time: tuple[Seconds, ...] = ()
    """When each sample ended, by the node's clock."""
    seconds: tuple[Seconds, ...] = ()
    """How long each lasted: older ones are means of several."""
    cpu_percent: Column = ()
    """Of the whole node; 100 is one core."""
    memory_bytes: Column = ()
    """In use, of the whole node."""
    receive_bytes_s: Column = ()
    """By its network cards."""
    send_bytes_s: Column = ()
    """By its network cards."""
    read_bytes_s: Column = ()
    """From its disks."""
    write_bytes_s: Column = ()
    """To its disks."""
    rdma_receive_bytes_s: Column = ()
    """By RDMA, which the network cards do not count."""
    gpus: tuple[GpuSamples, ...] = ()
    """The node's GPUs."""
    ranks: tuple[RankSamples, ...] = ()
    """The ranks that ran."""

    def __post_init__(self) -> None:
        """Refuse columns of other lengths than `time`, and too many of them."""
        parts: tuple[Samples | GpuSamples | RankSamples, ...] = (self, *self.gpus, *self.ranks)
        for each in parts:
            for name in (one.name for one in dataclasses.fields(each)):
                column = getattr(each, name)
                of_samples = isinstance(column, tuple) and name not in {"gpus", "ranks"}
                if of_samples and len(column) not in {0, len(self.time)}:
                    text = f"{name}: expected {len(self.time)} values, found {len(column)}"
                    raise ValueError(text)
        if len(self.time) > MOST or max(len(self.gpus), len(self.ranks)) > MOST_PARTS:
            raise ValueError(f"expected at most {MOST} samples, {MOST_PARTS} GPUs and ranks")
