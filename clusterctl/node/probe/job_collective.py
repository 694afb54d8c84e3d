"""Collectives that `job_ladder` tries with the job's own torch: on CPUs or on GPUs.

The sum is of numbers that differ by rank, so that a wrong answer shows, then of a block that is
large enough to tell a bandwidth. In the exchange each rank meets each other one. Slow pairs meet
again while the others wait, since nodes that share a switch or a CPU slow each other down.
"""

from __future__ import annotations

import statistics
import time
from datetime import timedelta
from typing import Any, Dict, List, Optional, Tuple

BLOCK = 1 << 22
"""Numbers of four bytes in the large block of the sum."""
ECHOES = 20
SMALL, LARGE = 1 << 18, 1 << 21
"""Numbers of four bytes that a pair exchanges; the large block only if the small one was fast."""
FAST_SECONDS = 0.1
SUSPECT = 0.5
"""Part of a usual pair's bandwidth below which a pair is tried again."""
RETESTS, OF_ONE = 32, 3
"""Pairs that are tried again at most, in all and of one rank."""

Rates = List[List[float]]
"""Gb/s from each rank (row) to each other (column)."""


class Exchange:
    """This rank's part in the exchanges of pairs."""

    def __init__(self, rank: int, world: int, device: Any) -> None:  # noqa: ANN401  (torch's)
        import torch  # noqa: PLC0415
        import torch.distributed as dist  # noqa: PLC0415

        self.torch, self.dist, self.rank, self.world = torch, dist, rank, world
        self.device = device
        self.signal = torch.zeros(1, device=device)
        self.block = torch.ones(LARGE, device=device)

    def with_peer(self, peer: int) -> Tuple[float, float]:
        """Return seconds of a round trip and Gb/s to the peer, which does the same in turn."""
        first = self.rank < peer
        self._echo(peer, first=first)  # connects
        trips = [self._echo(peer, first=first) for _ in range(ECHOES)]
        gbps = 0.0
        for sender in (min(self.rank, peer), max(self.rank, peer)):
            rate = self._send(peer) if sender == self.rank else self._receive(peer)
            gbps = rate or gbps
        return statistics.median(trips), gbps

    def _echo(self, peer: int, *, first: bool) -> float:
        began = time.monotonic()
        if first:
            self.dist.send(self.signal, peer)
            self.dist.recv(self.signal, peer)
        else:
            self.dist.recv(self.signal, peer)
            self.dist.send(self.signal, peer)
        self.signal[0].item()  # waits for the device
        return time.monotonic() - began

    def _send(self, peer: int) -> float:
        """Send blocks; the peer confirms each. Return Gb/s of the last one."""
        rate = 0.0
        for count in (SMALL, SMALL, LARGE):
            began = time.monotonic()
            self.dist.send(self.block[:count], peer)
            self.dist.recv(self.signal, peer)
            self.signal[0].item()
            took = time.monotonic() - began
            rate = 32 * count / took / 1e9  # of the largest: buffers and shapers let small ones by
            go_on = self.torch.tensor([float(took < FAST_SECONDS)], device=self.device)
            self.dist.send(go_on, peer)
            if took >= FAST_SECONDS:
                break
        return rate

    def _receive(self, peer: int) -> float:
        for count in (SMALL, SMALL, LARGE):
            self.dist.recv(self.block[:count], peer)
            self.dist.send(self.signal, peer)
            go_on = self.torch.zeros(1, device=self.device)
            self.dist.recv(go_on, peer)
            if not go_on.item():
                break
        return 0.0


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


def best_rates(rates: Rates) -> List[float]:
    """Return for each rank the Gb/s with the partner with which it is fastest, both ways."""
    return [
        max(min(rates[a][b], rates[b][a]) for b in range(len(rates)) if b != a)
        for a in range(len(rates))
    ]


def retests(rates: Rates) -> List[Tuple[int, int]]:
    """Return the slow pairs to try again, those with a good partner first."""
    best = best_rates(rates)
    limit = SUSPECT * statistics.median(best)
    ranks = range(len(rates))
    slow = [(a, b) for a in ranks for b in ranks[a + 1 :] if min(rates[a][b], rates[b][a]) < limit]
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


def exchange(rank: int, world: int, device: Any) -> Dict[str, Any]:  # noqa: ANN401  (torch's)
    """Exchange data with each rank; return seconds of a round trip and Gb/s to each."""
    mine = Exchange(rank, world, device)
    found: List[Optional[Tuple[float, float]]] = [None] * world
    for pairs in tournament(world):
        for a, b in pairs:
            if rank in (a, b):
                peer = b if rank == a else a
                found[peer] = mine.with_peer(peer)
        mine.dist.barrier()
    rates: List[Any] = [None] * world
    mine.dist.all_gather_object(rates, [one[1] if one else 0.0 for one in found])
    for pair in retests(rates):
        if rank in pair:
            peer = pair[1] if rank == pair[0] else pair[0]
            again, before = mine.with_peer(peer), found[peer] or (float("inf"), 0.0)
            found[peer] = (min(again[0], before[0]), max(again[1], before[1]))
        mine.dist.barrier()
    return {"pairs": [list(one) if one else None for one in found]}


def join(group: Dict[str, Any]) -> Any:  # noqa: ANN401  (a torch device)
    """Join the others of a group; return the device on which this rank keeps its data."""
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
        "nccl" if device.type == "cuda" else "gloo",
        store=dist.PrefixStore(group["name"], server),
        rank=group["rank"],
        world_size=group["world"],
        timeout=limit,
    )
    return device


def all_reduce(group: Dict[str, Any]) -> Dict[str, Any]:
    """Join the others, sum, and tell how it went; with `pairs`, exchange data with each one."""
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    device, rank, world = join(group), group["rank"], group["world"]
    total = torch.tensor([float(rank + 1)], device=device)
    dist.all_reduce(total)
    gbps, summed = 0.0, True
    for count in (SMALL, BLOCK, BLOCK, BLOCK):
        block = torch.ones(count, device=device)
        dist.barrier()
        began = time.monotonic()
        dist.all_reduce(block)
        block[0].item()  # waits for the device
        took = time.monotonic() - began
        gbps = 32 * count * 2 * (world - 1) / world / took / 1e9
        summed = summed and bool((block == world).all())
        slowest = torch.tensor([took], device=device)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        if slowest.item() >= FAST_SECONDS:
            break
    right = summed and total.item() == world * (world + 1) / 2
    between = exchange(rank, world, device) if right and group.get("pairs") else {}
    return {"backend": str(dist.get_backend()), "right": right, "gbps": gbps, **between}
