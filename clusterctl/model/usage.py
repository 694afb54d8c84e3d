"""What a live run uses on a node, as `status` answers it."""

from __future__ import annotations

from clusterctl.model.from_json import Count, Rank
from clusterctl.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RankUsage:
    """What a rank uses, with the processes that it started."""

    rank: Rank
    """The global rank."""
    processes: Count | None = None
    """The number of its processes."""
    memory_bytes: Count
    """Their memory, without what they share."""
    cpu_percent: Count | None = None
    """Their CPU time during the last moment; 100 is one core."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUsage:
    """A GPU as nvidia-smi reports it."""

    index: Count
    """The GPU's index."""
    percent: Count | None = None
    """How busy it is."""
    memory_used_bytes: Count | None = None
    """Memory in use, by any process."""
    memory_total_bytes: Count | None = None
    """All of its memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a live run uses on a node."""

    processes: Count
    """The number of its processes."""
    memory_bytes: Count
    """Their memory, without what they share."""
    cpu_percent: Count | None = None
    """Their CPU time during the last moment; 100 is one core."""
    ranks: tuple[RankUsage, ...] = ()
    """The same for each rank that runs."""
    gpus: tuple[GpuUsage, ...] | None = None
    """All GPUs of the node; null if they could not be read."""
