"""Collectives that `job_ladder` tries with the job's own torch: on CPUs or on GPUs.

The sum is of numbers that differ by rank, so that a wrong answer shows, then of the largest block
for which there is memory and time: NCCL reaches its bandwidth from 256 MiB on. Each sum is checked.
In the exchange each rank meets each other one, until the time is up. Slow pairs meet again while
the others wait, since nodes that share a switch or a CPU slow each other down.

Pairs use `batch_isend_irecv`: it sends through the communicator of the first all-reduce. A plain
send makes NCCL build a communicator for each pair, which takes up to a second.
"""

from __future__ import annotations

import math
import statistics
import time
from datetime import timedelta
from typing import Any, Dict, List, Optional, Tuple

from clusterctl.node.probe.trial.device_time import WARM_SECONDS, seconds_of

BLOCKS = {"cuda": (1 << 20, 1 << 24, 1 << 28, 1 << 30), "cpu": (1 << 20, 1 << 24)}
"""Bytes of the sums, from small to large."""
MEMORY_SHARE = 8
"""A block takes at most one part in so many of the free memory: its check needs room as well."""
SUM_SECONDS = 0.5
"""A block is summed only if that will take no longer."""
WARM_ROUNDS = (2, 50)
TRIES = 2
"""Sums of a smaller block, which tell whether there is time for the next one."""
ROUNDS = 5
"""Timed sums and sends, of which the best counts."""
ECHOES = 20
PROBE = 1 << 20
"""Bytes that a pair exchanges first; how long they take decides on the block that is timed."""
SENDS = {"cuda": (1 << 26, 1 << 23), "cpu": (1 << 23,)}
SEND_SECONDS = 0.2
SUSPECT = 0.5
"""Part of a usual pair's bandwidth below which a pair is tried again."""
RETESTS, OF_ONE = 32, 3
"""Pairs that are tried again at most, in all and of one rank."""
EXCHANGE_SHARE = 0.7
"""Part of the limit after which no further round of pairs begins."""
UNKNOWN = -1.0
"""The rate of a pair that was not tried."""

Rates = List[List[float]]
"""Gb/s from each rank (row) to each other (column)."""


class Ranks:
    """This rank among the others of its group."""

    def __init__(self, rank: int, world: int, device: Any) -> None:  # noqa: ANN401  (torch's)
        import torch  # noqa: PLC0415  (seconds, and only here)
        import torch.distributed as dist  # noqa: PLC0415

        self.torch, self.dist, self.rank, self.world = torch, dist, rank, world
        self.device = device

    def largest(self, number: float) -> float:
        """Return the largest number of all ranks; each waits for the others."""
        held = self.torch.tensor([number], dtype=self.torch.float64, device=self.device)
        self.dist.all_reduce(held, op=self.dist.ReduceOp.MAX)
        return float(held.item())

    def sum(self) -> Dict[str, Any]:
        """Sum over all ranks: is it right, and how fast is it at best."""
        total = self.torch.tensor([float(self.rank + 1)], device=self.device)
        self.dist.all_reduce(total)
        right = total.item() == self.world * (self.world + 1) / 2
        room = -self.largest(-self._room())
        size, took, block = 0, 0.0, total
        for wanted in BLOCKS[self.device.type]:
            if size and (wanted > room or took * wanted / size > SUM_SECONDS):
                break
            size = wanted
            block = self.torch.empty(size // 4, device=self.device)
            took, right = self._best_sum(block, 1, right=right)  # connects what this size needs
            if took <= SUM_SECONDS:
                took, right = self._best_sum(block, TRIES, right=right)
        # A network may let small blocks pass in a burst, and take seconds for this one.
        if took <= SUM_SECONDS:
            few, many = WARM_ROUNDS
            for _ in range(min(max(few, math.ceil(WARM_SECONDS[self.device.type] / took)), many)):
                self._sum(block)
            took, right = self._best_sum(block, ROUNDS, right=right)
        moved = 2 * (self.world - 1) / self.world * size
        gbps = 8 * moved / took / 1e9
        # The blocks of the exchange need the room.
        del block
        return {"right": self.largest(float(not right)) == 0, "gbps": gbps, "block_bytes": size}

    def _room(self) -> float:
        if self.device.type != "cuda":
            return math.inf
        return float(self.torch.cuda.mem_get_info(self.device)[0] // MEMORY_SHARE)

    def _sum(self, block: Any) -> float:  # noqa: ANN401  (torch's)
        block.fill_(1.0)
        return seconds_of(self.torch, self.device, lambda: self.dist.all_reduce(block))

    def _best_sum(self, block: Any, rounds: int, *, right: bool) -> Tuple[float, bool]:  # noqa: ANN401
        """Return the seconds of the best round, by its slowest rank, and if all sums were right."""
        best = math.inf
        for _ in range(rounds):
            self.largest(0.0)
            best = min(best, self.largest(self._sum(block)))
            right = right and bool((block == self.world).all())
        return best, right


class Exchange:
    """This rank's part in the exchanges of pairs."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks, self.torch, self.dist = ranks, ranks.torch, ranks.dist
        self.signal = self.torch.zeros(1, device=ranks.device)
        self.blocks = {
            size: self.torch.ones(size // 4, device=ranks.device)
            for size in (PROBE, *SENDS[ranks.device.type])
        }

    def with_peer(self, peer: int) -> Tuple[float, float]:
        """Return seconds of a round trip and Gb/s to the peer, which does the same in turn."""
        rank = self.ranks.rank
        first = rank < peer
        self._echo(peer, first=first)  # connects
        trips = [self._echo(peer, first=first) for _ in range(ECHOES)]
        gbps = 0.0
        for sender in (min(rank, peer), max(rank, peer)):
            if sender == rank:
                gbps = self._send(peer)
            else:
                self._receive(peer)
        return statistics.median(trips), gbps

    def _echo(self, peer: int, *, first: bool) -> float:
        def there_and_back() -> None:
            self._give(self.signal, peer)
            self._take(self.signal, peer)

        def back_and_there() -> None:
            self._take(self.signal, peer)
            self._give(self.signal, peer)

        work = there_and_back if first else back_and_there
        return seconds_of(self.torch, self.ranks.device, work)

    def _send(self, peer: int) -> float:
        """Send blocks, each of which the peer confirms; return Gb/s of the best large one."""
        took = min(self._confirmed(PROBE, peer) for _ in range(2))
        size = next(
            (size for size in SENDS[self.ranks.device.type] if took * size / PROBE < SEND_SECONDS),
            0,
        )
        large: List[float] = []
        # Fewer blocks if they take longer than the first ones let expect, as after a burst.
        while size and len(large) <= ROUNDS and sum(large) < ROUNDS * SEND_SECONDS:
            self._give(self._number(size), peer)
            large.append(self._confirmed(size, peer))
        self._give(self._number(0), peer)
        if large:  # the first one connects
            took = min(large[1:] or large)
        return 8 * (size or PROBE) / took / 1e9

    def _confirmed(self, size: int, peer: int) -> float:
        def work() -> None:
            self._give(self.blocks[size], peer)
            self._take(self.signal, peer)

        return seconds_of(self.torch, self.ranks.device, work)

    def _receive(self, peer: int) -> None:
        for _ in range(2):
            self._confirm(PROBE, peer)
        asked = self._number(1)
        while asked.item():
            self._take(asked, peer)
            if asked.item():
                self._confirm(int(asked.item()), peer)

    def _confirm(self, size: int, peer: int) -> None:
        self._take(self.blocks[size], peer)
        self._give(self.signal, peer)

    def _number(self, number: int) -> Any:  # noqa: ANN401  (torch's)
        return self.torch.tensor([number], dtype=self.torch.int64, device=self.ranks.device)

    def _give(self, tensor: Any, peer: int) -> None:  # noqa: ANN401  (torch's)
        self._batch(self.dist.P2POp(self.dist.isend, tensor, peer))

    def _take(self, tensor: Any, peer: int) -> None:  # noqa: ANN401  (torch's)
        self._batch(self.dist.P2POp(self.dist.irecv, tensor, peer))

    def _batch(self, operation: Any) -> None:  # noqa: ANN401  (torch's)
        for work in self.dist.batch_isend_irecv([operation]):
            work.wait()


def tournament(world: int) -> List[List[Tuple[int, int]]]:
    """Return rounds of disjoint pairs, in which each rank meets each other one once."""
    places: List[Optional[int]] = [*range(world), *([None] if world % 2 else [])]
    rounds = []
    for _ in range(len(places) - 1):
        half = len(places) // 2
        pairs = zip(places[:half], reversed(places[half:]))
        rounds.append([(a, b) for a, b in pairs if a is not None and b is not None])
        places = [places[0], places[-1], *places[1:-1]]
    return rounds


def both_ways(rates: Rates, a: int, b: int) -> float:
    """Return the Gb/s of a pair, the slower direction; UNKNOWN if it was not tried."""
    return min(rates[a][b], rates[b][a])


def best_rates(rates: Rates) -> List[float]:
    """Return for each rank the Gb/s with the partner with which it is fastest, both ways."""
    return [
        max(both_ways(rates, a, b) for b in range(len(rates)) if b != a) for a in range(len(rates))
    ]


def retests(rates: Rates) -> List[Tuple[int, int]]:
    """Return the slow pairs to try again, those with a good partner first."""
    best = best_rates(rates)
    limit = SUSPECT * statistics.median(best)
    ranks = range(len(rates))
    slow = [
        (a, b) for a in ranks for b in ranks[a + 1 :] if UNKNOWN < both_ways(rates, a, b) < limit
    ]
    slow.sort(key=lambda pair: -max(best[pair[0]], best[pair[1]]))
    left = [OF_ONE] * len(rates)
    chosen: List[Tuple[int, int]] = []
    for a, b in slow:
        # A slow node is in every one of its pairs, a good one in few.
        worse = min(a, b, key=lambda rank: best[rank])
        if left[worse] and len(chosen) < RETESTS:
            left[worse] -= 1
            chosen.append((a, b))
    return chosen


def exchange(ranks: Ranks, end: float) -> Dict[str, Any]:
    """Exchange data with each rank, or with some if `end` comes (by the monotonic clock).

    Returns:
        `pairs`: for each rank the seconds of a round trip and Gb/s to it, or None.
    """
    mine = Exchange(ranks)
    found: List[Optional[Tuple[float, float]]] = [None] * ranks.world
    for pairs in tournament(ranks.world):
        # All ranks continue or none does: the rank with the slowest clock decides.
        if ranks.largest(float(time.monotonic() > end)):
            break
        for pair in pairs:
            if ranks.rank in pair:
                peer = sum(pair) - ranks.rank
                found[peer] = mine.with_peer(peer)
    torch, device = ranks.torch, ranks.device
    row = [one[1] if one else UNKNOWN for one in found]
    rows = [torch.zeros(ranks.world, dtype=torch.float64, device=device) for _ in found]
    ranks.dist.all_gather(rows, torch.tensor(row, dtype=torch.float64, device=device))
    for pair in retests([one.tolist() for one in rows]):
        if ranks.largest(float(time.monotonic() > end)):
            break
        if ranks.rank in pair:
            peer = sum(pair) - ranks.rank
            again, before = mine.with_peer(peer), found[peer] or (math.inf, 0.0)
            found[peer] = (min(again[0], before[0]), max(again[1], before[1]))
    ranks.largest(0.0)  # no rank leaves while others still exchange
    return {"pairs": [list(one) if one else None for one in found]}


def join(group: Dict[str, Any]) -> Ranks:
    """Join the others of a group.

    No device is bound: torch would split NCCL's communicator for each later group, which ranks
    outside that group wait for in vain.
    """
    import torch  # noqa: PLC0415  (seconds, and only here)
    from torch import distributed  # noqa: PLC0415

    dist: Any = distributed  # its stores are not in its list of names
    device = torch.device(group["device"])
    torch.zeros(1, device=device)  # whatever is wrong with it, this says it best
    if device.type == "cuda":
        torch.cuda.set_device(device)
    limit = timedelta(seconds=group["limit_s"])
    port, address = group["port"], group["address"]
    server = dist.TCPStore(address, port, None, False, limit, wait_for_workers=False)
    dist.init_process_group(
        group.get("backend") or ("nccl" if device.type == "cuda" else "gloo"),
        store=dist.PrefixStore(group["name"], server),
        rank=group["rank"],
        world_size=group["world"],
        timeout=limit,
    )
    return Ranks(group["rank"], group["world"], device)


def all_reduce(group: Dict[str, Any]) -> Dict[str, Any]:
    """Join the others, sum, and tell how it went; with `pairs`, exchange data with each one.

    Args:
        group: `name`, `rank`, `world` and `device` of this rank, `address` and `port` of the
            store, `limit_s` for all of it; `backend`, if not the usual one of the device.
    """
    end = time.monotonic() + EXCHANGE_SHARE * group["limit_s"]
    ranks = join(group)
    found = {"backend": str(ranks.dist.get_backend()), **ranks.sum()}
    if found["right"] and group.get("pairs"):
        found.update(exchange(ranks, end))
    return found
