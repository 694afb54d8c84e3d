"""Watches for ranks that keep the others waiting, and says on their node why.

Each supervisor tells the master what its ranks have done. The master's judges them all, and tells
each node about its own.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

from clusterctl.node.event_loop import EventLoop
from clusterctl.node.hang import life, sample
from clusterctl.node.hang.sample import Halts, OwnTime, RankSample
from clusterctl.node.hang.slow_reasons import NONE, find_reason
from clusterctl.node.hang.stragglers import Stragglers, Work
from clusterctl.node.run.files.node_job import NodeJob
from clusterctl.node.run.files.run_files import RunFiles
from clusterctl.node.run.files.run_paths import NodePaths
from clusterctl.node.run.processes.processes import Process
from clusterctl.node.supervisor.apart import Helper

LOOK_SECONDS = 20.0
"""How long a look may take."""
MOST_LOOKS = 12
"""At one suspect: where its stacks cannot be read, more would not help."""

Judged = List[Dict[str, Any]]
"""Of each slow rank of a node: `rank`, `lost`, and whether it is `sure`; else it is a suspect."""


class _Rank:
    """What is known of one rank's process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.work = Work(0.0, 0.0, 0.0)
        self.own = OwnTime()
        """Of what `work` sums up."""
        self.where = ""
        """The line at which the last look found it."""


class _Slow:
    """A rank of this node that is slow, or suspected."""

    def __init__(self, rank: _Rank) -> None:
        self.began, self.own = rank.work, rank.own
        self.since = time.time()
        self.lost = 0.0
        self.looks = 0
        self.asked = False
        """Its reason is looked for."""
        self.told: Optional[Dict[str, Any]] = None
        """What the event said, once it is written."""

    def share(self, rank: _Rank) -> OwnTime:
        """Return for which shares of the time it ran, and so on, since it was suspected."""
        seconds = max(0.001, rank.work.seen - self.began.seen)
        return OwnTime(*((now - then) / seconds for now, then in zip(rank.own, self.own)))


class StragglerWatch:
    """The ranks of this node, and which of the run's are slow."""

    def __init__(
        self,
        loop: EventLoop,
        job: NodeJob,
        record: RunFiles,
        snapshots: Callable[[], List[Dict[str, Any]]],
        on_change: Callable[[], None],
    ) -> None:
        """Know of no rank so far."""
        self._record = record
        self._snapshots, self._on_change = snapshots, on_change
        self._on_gpu = job["device"] == "cuda"
        self._ranks: Dict[int, _Rank] = {}
        self._slow: Dict[int, _Slow] = {}
        self._halts = Halts()
        self._looks, self._reasons = (Helper(loop, LOOK_SECONDS) for _ in range(2))
        period = life.sample_seconds((job.get("hang") or {"after": 0.0})["after"])
        self._run = Stragglers(period)

    @property
    def account(self) -> Dict[str, Any]:
        """Return what supervisor.json has of it."""
        return {"stragglers": [one.told for _, one in sorted(self._slow.items()) if one.told]}

    # What this node's ranks do.

    def scan(self, living: Sequence[Process]) -> None:
        """Look at the states of all processes; this is done more often than they are sampled."""
        self._halts.see(living)

    def sample(self, rank: int, pid: int, before: Optional[RankSample], now: RankSample) -> None:
        """Take a sample of a rank; `before`: that of the same process."""
        known = self._ranks.get(rank)
        if known is None or known.pid != pid or before is None:
            self._ranks[rank] = _Rank(pid)
            return
        did = sample.own_time(before, now, self._halts)
        known.own = OwnTime(*(then + more for then, more in zip(known.own, did)))
        seen = known.work.seen + max(0.0, now.moment - before.moment)
        own, ran = known.work.own + did.all, known.work.ran + did.ran
        known.work = known.work._replace(seen=seen, own=own, ran=ran)

    def sampled(self, ranks: Sequence[int]) -> None:
        """All ranks that run have been sampled: forget the others, and look at suspects."""
        self._ranks = {rank: self._ranks[rank] for rank in ranks if rank in self._ranks}
        self._halts = Halts()
        wanted = {
            rank: self._ranks[rank].pid
            for rank, one in self._slow.items()
            if rank in self._ranks and not one.asked and one.looks < MOST_LOOKS
        }
        if not wanted:
            return
        work = partial(_looks, self._record.paths, self._snapshots(), list(wanted))
        if self._looks.start(work, partial(self._looked, wanted)):
            for rank in wanted:
                self._slow[rank].looks += 1

    def _looked(self, pids: Mapping[int, int], found: Dict[str, Any]) -> None:
        for rank, pid in pids.items():
            known, look = self._ranks.get(rank), found.get(str(rank))
            if known is not None and known.pid == pid and look is not None:
                known.where = look["where"] or known.where
                looks, waits = known.work.looks + 1, known.work.waits + look["waits"]
                known.work = known.work._replace(looks=looks, waits=waits)

    @property
    def told(self) -> List[List[float]]:
        """Return what to tell the master: of each rank its number and its `Work`."""
        return [
            [rank, *(round(each, 3) for each in one.work)]
            for rank, one in sorted(self._ranks.items())
        ]

    # What the master judges.

    def judge(self, told: Mapping[str, Sequence[Sequence[float]]]) -> Dict[str, Judged]:
        """Judge all ranks by what their nodes have told; return it by node."""
        works = {
            (node, int(rank)): Work(seen, own, ran, int(looks), int(waits))
            for node, ranks in told.items()
            for rank, seen, own, ran, looks, waits in ranks
        }
        self._run.see(works, polls=self._on_gpu)
        found: Dict[str, Judged] = {}
        for (node, rank), one in self._run.slow.items():
            if not one.refuted:
                judged = {"rank": rank, "lost": round(one.lost, 3), "sure": one.sure}
                found.setdefault(node, []).append(judged)
        return found

    def take(self, judged: Judged) -> None:
        """Take the master's judgement of this node's ranks."""
        now = {one["rank"]: one for one in judged if one["rank"] in self._ranks}
        for rank in [rank for rank in self._slow if rank not in now]:
            self._over(rank)
        for rank, one in now.items():
            known = self._slow.setdefault(rank, _Slow(self._ranks[rank]))
            known.lost = one["lost"]
            if one["sure"] and not known.asked:
                root, share = self._ranks[rank].pid, known.share(self._ranks[rank])
                work = partial(_reason, root, share, on_gpu=self._on_gpu)
                # One at a time, else later: another node decides how often it is slow.
                known.asked = self._reasons.start(work, partial(self._found, rank, known))

    def _over(self, rank: int) -> None:
        one = self._slow.pop(rank)
        if one.told is not None:
            seconds = round(time.time() - one.since, 1)
            self._record.event("straggler-over", rank=rank, seconds=seconds)
            self._on_change()

    def _found(self, rank: int, one: _Slow, told: Dict[str, Any]) -> None:
        """Say that a rank is slow, unless it no longer is."""
        why = told.get("reason") or NONE
        # Who polls for a GPU may seem busy to any look: there, something else must be wrong, too.
        if self._slow.get(rank) is not one or (self._on_gpu and why == NONE):
            return
        known = self._ranks.get(rank)
        one.told = {
            "rank": rank,
            "since": one.since,
            "lost_percent": round(100 * one.lost),
            "reason": why,
            "where": known.where if known is not None else "",
        }
        self._record.event("straggler", **one.told)
        self._on_change()


def _looks(
    paths: NodePaths, ranks: Sequence[Mapping[str, Any]], wanted: List[int]
) -> Dict[str, Any]:
    """Tell of each of these ranks whether it waits for others, and where it is; in a child."""
    from clusterctl.node.hang.stacks import dump_ranks  # noqa: PLC0415  (start-up counts)

    found = dump_ranks(paths, ranks, only=wanted, stacks_only=True)
    looks = ((str(one["rank"]), life.look_of(one)) for one in found["ranks"])
    return {rank: look for rank, look in looks if look is not None}


def _reason(root: int, share: OwnTime, *, on_gpu: bool) -> Dict[str, Any]:
    return {"reason": find_reason(root, share, on_gpu=on_gpu)}
