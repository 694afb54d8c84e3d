"""What a node uses now and used a moment ago, from the samples that it has sent. Pure."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence

from clusterctl.model.samples import Column, GpuSamples, RankSamples, Samples
from clusterctl.values import dataclass

KEPT = 60
"""Samples of a node that are kept: five minutes of them."""
_SLOWED = ((0x08, "hardware"), (0x40, "too hot"), (0x20, "too hot"), (0x80, "power supply"))
"""Bits of nvml.h for what should not slow a GPU down; a power limit is usual."""

Trend = tuple[float | None, ...]
"""Percent, the newest last; None: unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankNow:
    """A rank and its GPU, or one of both: which belong together may be unknown."""

    rank: int | None = None
    """The global rank."""
    gpu: int | None = None
    """The GPU's index."""
    percent: float | None = None
    """How busy the GPU is."""
    memory_bytes: float | None = None
    """Of the GPU, or else of the processes."""
    memory_total_bytes: float | None = None
    """All memory of the GPU."""
    watts: float | None = None
    """The GPU's power."""
    celsius: float | None = None
    """The GPU's temperature."""
    slowed: str = ""
    """Why the GPU's clocks are low, if that is not usual."""
    cpu_percent: float | None = None
    """100 is one core."""
    trend: Trend = ()
    """Of the GPU, or else of the CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeNow:
    """A node."""

    time: float
    """Of the newest sample, by the node's clock."""
    percent: float | None = None
    """The mean of its GPUs."""
    cpu_percent: float | None = None
    """Of all its cores: 100 is all of them."""
    memory_bytes: float | None = None
    """The node's memory in use."""
    memory_total_bytes: float | None = None
    """All memory of the node."""
    gpu_memory_bytes: float | None = None
    """Of the GPU that has the most in use."""
    gpu_memory_total_bytes: float | None = None
    """All memory of that GPU."""
    watts: float | None = None
    """Of all its GPUs."""
    celsius: float | None = None
    """Of the hottest one."""
    slowed: str = ""
    """Why the clocks of one of them are low, if that is not usual."""
    receive_bytes_s: float | None = None
    """By network cards and RDMA."""
    send_bytes_s: float | None = None
    """By network cards."""
    read_bytes_s: float | None = None
    """From its disks."""
    write_bytes_s: float | None = None
    """To its disks."""
    trend: Trend = ()
    """Of its GPUs, or else of its cores."""
    ranks: tuple[RankNow, ...] = ()
    """Its ranks and GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chunk:
    """Samples that came together, with the use of each GPU and rank by its number."""

    whole: Samples
    gpus: dict[int, Column]
    ranks: dict[int, Column]

    def __len__(self) -> int:
        return len(self.whole.time)


class NodeUse:
    """The samples of a node; `now` is made of the last ones."""

    def __init__(self) -> None:
        self._chunks: deque[_Chunk] = deque()
        self.now: NodeNow | None = None

    def take(self, new: Samples) -> None:
        """Add samples that follow those before."""
        if not new.time:
            return
        gpus = {one.index: one.percent for one in new.gpus}
        ranks = {one.rank: one.cpu_percent for one in new.ranks}
        self._chunks.append(_Chunk(whole=new, gpus=gpus, ranks=ranks))
        while sum(map(len, self._chunks)) - len(self._chunks[0]) >= KEPT:
            self._chunks.popleft()
        self.now = self._now(new)

    def _now(self, last: Samples) -> NodeNow:
        ranks = tuple(self._ranks(last))
        gpus = [one for one in ranks if one.gpu is not None]
        fullest = max(gpus, key=lambda one: one.memory_bytes or 0.0, default=RankNow())
        all_cores = 100.0 * (last.cpus or 1)
        cpu = _last(last.cpu_percent)
        trend = (
            _means([one.trend for one in gpus])
            if gpus
            else self._trend(lambda one: one.whole.cpu_percent, 100.0 / all_cores)
        )
        return NodeNow(
            time=last.time[-1],
            percent=_mean(one.percent for one in gpus),
            cpu_percent=None if cpu is None else 100.0 * cpu / all_cores,
            memory_bytes=_last(last.memory_bytes),
            memory_total_bytes=last.memory_total_bytes,
            gpu_memory_bytes=fullest.memory_bytes,
            gpu_memory_total_bytes=fullest.memory_total_bytes,
            watts=_sum(one.watts for one in gpus),
            celsius=max((one.celsius for one in gpus if one.celsius is not None), default=None),
            slowed=next((one.slowed for one in gpus if one.slowed), ""),
            receive_bytes_s=_sum((_last(last.receive_bytes_s), _last(last.rdma_receive_bytes_s))),
            send_bytes_s=_last(last.send_bytes_s),
            read_bytes_s=_last(last.read_bytes_s),
            write_bytes_s=_last(last.write_bytes_s),
            trend=trend,
            ranks=ranks,
        )

    def _ranks(self, last: Samples) -> Iterable[RankNow]:
        gpus = {one.index: one for one in last.gpus}
        of_rank = defaultdict(list)
        for one in gpus.values():
            of_rank[one.rank].append(one)
        for cpu in last.ranks:
            own = of_rank.get(cpu.rank)
            if not own:
                yield self._rank(None, cpu)
            for gpu in own or ():
                yield self._rank(gpu, cpu)
                gpus.pop(gpu.index, None)
        # Others are those of other runs, unless a container hides which rank computes where.
        if len(gpus) == len(last.gpus):
            for gpu in gpus.values():
                yield self._rank(gpu, None)

    def _rank(self, gpu: GpuSamples | None, cpu: RankSamples | None) -> RankNow:
        busy = None if cpu is None else _last(cpu.cpu_percent)
        rank = None if cpu is None else cpu.rank
        if gpu is None:
            assert cpu is not None
            return RankNow(
                rank=rank,
                memory_bytes=_last(cpu.memory_bytes),
                cpu_percent=busy,
                trend=self._trend(lambda one: one.ranks.get(cpu.rank, ())),
            )
        number = gpu.index
        bits = int(_last(gpu.slowed) or 0)
        return RankNow(
            rank=rank,
            gpu=number,
            percent=_last(gpu.percent),
            memory_bytes=_last(gpu.memory_used_bytes),
            memory_total_bytes=gpu.memory_total_bytes,
            watts=_last(gpu.watts),
            celsius=_last(gpu.celsius),
            slowed=next((words for bit, words in _SLOWED if bits & bit), ""),
            cpu_percent=busy,
            trend=self._trend(lambda one: one.gpus.get(number, ())),
        )

    def _trend(self, column: Callable[[_Chunk], Column], factor: float = 1.0) -> Trend:
        found: list[float | None] = []
        for chunk in self._chunks:
            found += column(chunk) or [None] * len(chunk)
        return tuple(None if value is None else factor * value for value in found[-KEPT:])


def _last(column: Sequence[float | None]) -> float | None:
    return column[-1] if column else None


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _means(trends: Sequence[Trend]) -> Trend:
    longest = max(map(len, trends))
    padded = [(None,) * (longest - len(trend)) + trend for trend in trends]
    return tuple(map(_mean, zip(*padded, strict=True)))
