"""One sample of a node while a run lives there, and how several become one. Pure."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

Number = Optional[float]
"""None: unknown."""


class Machine(NamedTuple):
    """The whole node; bytes are per second, but for the memory."""

    cpu_percent: Number = None
    """100 is one core."""
    memory_bytes: Number = None
    receive_bytes_s: Number = None
    send_bytes_s: Number = None
    read_bytes_s: Number = None
    """From its disks."""
    write_bytes_s: Number = None
    rdma_receive_bytes_s: Number = None
    """By RDMA, which the other counters do not see."""


class GpuUse(NamedTuple):
    """A GPU."""

    number: int
    rank: Optional[int]
    """The rank that computes on it; None: unknown, or several."""
    memory_total_bytes: Number
    percent: Number
    memory_used_bytes: Number
    watts: Number
    celsius: Number
    slowed: Optional[int]
    """Bits of why its clocks are low, as in nvml.h."""


class RankUse(NamedTuple):
    """A rank with the processes that it started."""

    rank: int
    cpu_percent: Number
    """100 is one core."""
    memory_bytes: Number
    """Without what they share."""


class Row(NamedTuple):
    """What was seen at a moment, of the time since the row before."""

    time: float
    """By the node's clock."""
    seconds: float
    machine: Machine
    gpus: Tuple[GpuUse, ...] = ()
    ranks: Tuple[RankUse, ...] = ()

    def packed(self) -> List[Any]:
        """Return it as a line of the file holds it."""
        return [self.time, self.seconds, self.machine, self.gpus, self.ranks]


def unpacked(line: Any) -> Row:  # noqa: ANN401  (what JSON carries)
    """Return the row of a line; raise TypeError, ValueError if it is none."""
    time, seconds, machine, gpus, ranks = line
    return Row(
        float(time),
        float(seconds),
        Machine(*machine),
        tuple(GpuUse(*one) for one in gpus),
        tuple(RankUse(*one) for one in ranks),
    )


def merged(rows: Sequence[Row]) -> Row:
    """Return rows that follow each other as one: means, weighted by their time."""
    if len(rows) == 1:
        return rows[0]
    gpus: Dict[int, List[Tuple[float, GpuUse]]] = {}
    ranks: Dict[int, List[Tuple[float, RankUse]]] = {}
    for row in rows:
        for gpu in row.gpus:
            gpus.setdefault(gpu.number, []).append((row.seconds, gpu))
        for rank in row.ranks:
            ranks.setdefault(rank.rank, []).append((row.seconds, rank))
    return Row(
        rows[-1].time,
        round(sum(row.seconds for row in rows), 1),
        Machine(*_means([(row.seconds, row.machine) for row in rows])),
        tuple(_merged_gpu(known) for _, known in sorted(gpus.items())),
        tuple(
            RankUse(rank, *_means([(seconds, one[1:]) for seconds, one in known]))
            for rank, known in sorted(ranks.items())
        ),
    )


def thinned(rows: Sequence[Row], now: float, precision: float) -> List[Row]:
    """Return rows of which each lasts at most that part of its age; the newest stay as they are."""
    found: List[Row] = []
    group: List[Row] = []
    for row in rows:
        lasts = sum(one.seconds for one in group) + row.seconds
        if group and lasts > (now - group[0].time) * precision:
            found.append(merged(group))
            group = []
        group.append(row)
    return found + ([merged(group)] if group else [])


def at_most(rows: Sequence[Row], count: int) -> List[Row]:
    """Return the rows as at most so many, each of about the same time."""
    if len(rows) <= count:
        return list(rows)
    step = sum(row.seconds for row in rows) / count
    groups: Dict[int, List[Row]] = {}
    passed = 0.0
    for row in rows:
        groups.setdefault(min(count - 1, int(passed / step)), []).append(row)
        passed += row.seconds
    return [merged(group) for group in groups.values()]


def series(rows: Sequence[Row]) -> Dict[str, Any]:
    """Return the rows as columns, each as long as `time`; None where a value is unknown."""
    gpus = {
        (row_number, one.number): one for row_number, row in enumerate(rows) for one in row.gpus
    }
    ranks = {
        (row_number, one.rank): one for row_number, row in enumerate(rows) for one in row.ranks
    }
    last_of = {one.number: one for row in rows for one in row.gpus}

    def column(known: Dict[Tuple[int, int], Any], number: int, field: str) -> List[Number]:
        return [getattr(known.get((at, number)), field, None) for at in range(len(rows))]

    return {
        "time": [row.time for row in rows],
        "seconds": [row.seconds for row in rows],
        **{name: [getattr(row.machine, name) for row in rows] for name in Machine._fields},
        "gpus": [
            {
                "index": number,
                "rank": last_of[number].rank,
                "memory_total_bytes": last_of[number].memory_total_bytes,
                **{field: column(gpus, number, field) for field in GpuUse._fields[3:]},
            }
            for number in sorted(last_of)
        ],
        "ranks": [
            {"rank": rank, **{field: column(ranks, rank, field) for field in RankUse._fields[1:]}}
            for rank in sorted({rank for _, rank in ranks})
        ],
    }


def _merged_gpu(known: Sequence[Tuple[float, GpuUse]]) -> GpuUse:
    last = known[-1][1]
    means = _means([(seconds, one[3:-1]) for seconds, one in known])
    slowed = 0
    for _, one in known:
        slowed |= one.slowed or 0
    percent, used, watts, celsius = means
    told = None if last.slowed is None else slowed
    return last._replace(
        percent=percent, memory_used_bytes=used, watts=watts, celsius=celsius, slowed=told
    )


def _means(known: Sequence[Tuple[float, Sequence[Number]]]) -> List[Number]:
    found: List[Number] = []
    for place in range(len(known[0][1])):
        values = [(each[place], s) for s, each in known]
        told = [(value, seconds or 0.001) for value, seconds in values if value is not None]
        total = sum(seconds for _, seconds in told)
        mean = sum(value * seconds for value, seconds in told) / total if told else None
        found.append(None if mean is None else round(mean, 1))
    return found
