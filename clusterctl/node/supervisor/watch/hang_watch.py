"""Watches the ranks of this node for signs of life, and keeps their stacks once the run is hung.

Each supervisor looks at its own ranks; the master's judges the run by what all tell, with no
controller involved.
"""

from __future__ import annotations

import math
import os
import time
from functools import partial
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Set

from clusterctl.node.event_loop import EventLoop
from clusterctl.node.hang import life, sample
from clusterctl.node.hang.blame import blame
from clusterctl.node.hang.life import RankLife, RunLife
from clusterctl.node.hang.sample import RankSample
from clusterctl.node.hang.saved import save_dump
from clusterctl.node.hang.take import limit_of, take_to_file
from clusterctl.node.run.files.node_job import NodeJob
from clusterctl.node.run.files.run_files import RunFiles
from clusterctl.node.run.files.run_paths import RANK_LOG, NodePaths
from clusterctl.node.run.processes.containers import started_by_client
from clusterctl.node.run.processes.processes import Process, key_of
from clusterctl.node.supervisor.apart import Helper, run_apart
from clusterctl.node.supervisor.watch.gpu_watch import GpuWatch
from clusterctl.node.supervisor.watch.straggler_watch import Judged, StragglerWatch

DUMP_SECONDS = 20.0
"""How long stacks may take: those that take them keep within their own limit."""
MOST_ALARMS = 999
"""Of an attempt: the master of the run may have been taken over, and say anything."""
STALE_SECONDS = 10.0
"""How late a sample may be before nothing is known of the ranks."""

Told = Dict[str, Any]
"""Of a node: `quiet`, the seconds of its liveliest rank (null: unknown), and `printed`; no
`quiet` at all: none of its ranks runs; `work` of each rank. Of the master: `hung`, `quiet_s`, and
`alarm`, a count."""


class _Rank:
    """What is known of one rank's process."""

    def __init__(self, pid: int, first: RankSample, after: float) -> None:
        self.pid, self.sample = pid, first
        self.life = RankLife(first.moment, after)
        self.sockets: Optional[Dict[str, int]] = None
        """None: not read since it last showed a sign of life."""


class HangWatch:
    """The ranks of this node, and whether the run is hung, as the master has told."""

    def __init__(
        self,
        loop: EventLoop,
        job: NodeJob,
        record: RunFiles,
        snapshots: Callable[[], List[Dict[str, Any]]],
        on_change: Callable[[], None],
    ) -> None:
        """Watch nothing if the job disables it, or if its processes are not below us."""
        self._loop, self._job, self._record = loop, job, record
        self._snapshots, self._on_change = snapshots, on_change
        hang = job.get("hang") or {"after": 0.0, "action": "report"}
        self.after: float = hang["after"]
        self.stops: bool = hang["action"] != "report"
        unseen = job["launcher"] == "ray" or started_by_client(job)
        self.on = self.after > 0 and not unseen
        self._ranks: Dict[int, _Rank] = {}
        self._due = 0.0
        self.rdma: Optional[int] = None
        self._moved = 0
        """Bytes that RDMA devices have received since the last sample."""
        self._reads = Helper(loop, DUMP_SECONDS)
        self.gpus = GpuWatch(loop, job, life.sample_seconds(self.after))
        self._connections: Optional[Dict[str, int]] = None
        """Of all processes, at this look; None: not needed so far."""
        self._looks = Helper(loop, DUMP_SECONDS)
        self._run = RunLife(self.after)
        self.slow = StragglerWatch(loop, job, record, snapshots, on_change)
        self._hung: Optional[Dict[str, Any]] = None
        self._ended, self._ended_at = 0, -math.inf
        """How many ranks have ended here, and when the last one did."""
        self._alarm = self._alarms = 0
        """The number of the last one, and how many there were."""
        self._before = 1000 * (job.get("attempt", 1) - 1)
        """Who follows all attempts tells their alarms apart: those of attempt 2 begin at 1001."""
        self._false_alarms = 0
        self.blame = ""
        """Why this node alone may keep a rank from running, by the stacks of the last hang."""
        self._keeping = False
        """The stacks of a hang are being taken."""
        self.stacks_kept = False
        """Some tell why a rank has waited in vain."""

    @property
    def hung(self) -> bool:
        """The master has judged that the run is hung."""
        return self._hung is not None

    @property
    def alarm(self) -> int:
        """Which hang it is now; 0: the run is not hung."""
        return self._alarm if self.hung else 0

    @property
    def account(self) -> Dict[str, Any]:
        """Return what supervisor.json has of it."""
        return {"hung": self._hung, "false_alarms": self._false_alarms, **self.slow.account}

    # What this node's ranks do.

    def scan(self, living: Sequence[Process]) -> None:
        """Look at the ranks, if it is time; `living` are this process's descendants."""
        now = time.monotonic()
        if not self.on:
            return
        self.slow.scan(living)
        if now < self._due:
            return
        self._due = now + life.sample_seconds(self.after) - 0.1  # the scans come in steps
        running = {
            one["pid"]: one["rank"] for one in self._snapshots() if one["state"] == "running"
        }
        own = sample.processes_of(running, living)
        pids = {one.pid for mine in own.values() for one in mine}
        seen: Dict[int, _Rank] = {}
        self._connections = None
        others, self._moved = self._moved, 0
        self._read_rdma()
        for pid, rank in running.items():
            if not own[rank]:
                continue  # it has just ended, or is hidden from this user
            log = os.path.join(self._record.paths.folder, RANK_LOG % rank)
            known = self._ranks.get(rank)
            found = sample.sample_rank(now, log, own[rank], known.sample if known else None)
            if known is None or known.pid != pid:
                self.slow.sample(rank, pid, None, found)
                seen[rank] = _Rank(pid, found, self.after)
            else:
                self.slow.sample(rank, pid, known.sample, found)
                self._see(known, found, own[rank], others, pids)
                seen[rank] = known
        self._ranks = seen
        self.slow.sampled(list(seen))
        if any(one.life.silent(now) for one in seen.values()):
            self.gpus.read()
        self._look(now, own)

    def _see(
        self, known: _Rank, found: RankSample, own: List[Process], others: int, run: Set[int]
    ) -> None:
        moved = sample.difference(known.sample, found, others)
        computes = self.gpus.compute([one.pid for one in own], run, since=known.sample.moment)
        moved = moved._replace(computes=computes)
        if moved.shows:
            known.sockets = None
        else:  # only then: this costs more
            if self._connections is None:
                self._connections = sample.tcp_bytes()
            sockets = sample.socket_bytes(self._connections, own)
            more = 0 if known.sockets is None else sample.moved_by(known.sockets, sockets)
            known.sockets = sockets
            moved = moved._replace(bytes=moved.bytes + more)
        known.sample = found
        known.life.see(found.moment, moved)

    def _read_rdma(self) -> None:
        """Have the counters read: a card that does not answer would keep us waiting."""
        if os.path.isdir(sample.RDMA):
            self._reads.start(_rdma_bytes, self._rdma_read)

    def _rdma_read(self, told: Dict[str, Any]) -> None:
        now = told.get("bytes", self.rdma)
        if now is not None:
            self._moved += max(0, now - (now if self.rdma is None else self.rdma))
            self.rdma = now

    def _look(self, now: float, own: Mapping[int, List[Process]]) -> None:
        """Have the stacks taken of ranks of which only these tell what they do."""
        wanted = {
            rank: self.gpus.rest([each.pid for each in own[rank]])
            for rank, one in self._ranks.items()
            if one.life.wants_look(now)
        }
        if wanted:
            pids = {rank: self._ranks[rank].pid for rank in wanted}
            work = partial(_places, self._record.paths, self._snapshots(), wanted)
            self._looks.start(work, partial(self._looked, pids))

    def _looked(self, pids: Mapping[int, int], places: Dict[str, Any]) -> None:
        for rank, pid in pids.items():
            known = self._ranks.get(rank)
            if known is not None and known.pid == pid:
                told = str(rank) in places
                known.life.look(time.monotonic(), places.get(str(rank)), told=told)

    def tell(self, *, unseen: bool) -> Told:
        """Return what to tell the master about this node; `unseen`: ranks run elsewhere."""
        if not self.on or unseen:
            return {"quiet": None, "printed": False}
        snapshots = self._snapshots()
        if any(one["state"] == "starting" for one in snapshots):
            return {"quiet": 0.0, "printed": False}
        running = [one["rank"] for one in snapshots if one["state"] == "running"]
        if not running:
            return {"printed": self._printed}
        now = time.monotonic()
        if self._ranks and now - self._due > STALE_SECONDS:
            return {"quiet": None, "printed": self._printed}
        known = [self._ranks[rank].life.quiet(now) for rank in running if rank in self._ranks]
        quiet = min(known) if len(known) == len(running) else 0.0
        # One that has ended, as after a long save, is what the others have waited for.
        ended = sum(one["state"] == "ended" for one in snapshots)
        if ended != self._ended:
            self._ended, self._ended_at = ended, now
        quiet = min(quiet, now - self._ended_at)
        # Ranks that never met do not wait for each other.
        met = all(one.get("joined") for one in snapshots if one["state"] == "running")
        work = self.slow.told if met else []
        return {"quiet": round(quiet, 1), "printed": self._printed, "work": work}

    @property
    def _printed(self) -> bool:
        sizes = {rank: one.sample.log[0] for rank, one in self._ranks.items()}
        # `!=`: a log that was cut is shorter.
        return any(
            size and size != self._record.begins_at(RANK_LOG % rank) for rank, size in sizes.items()
        )

    # What the master judges.

    def judge(self, told: Mapping[str, Optional[Told]]) -> Optional[Told]:
        """Judge the run by what all its nodes have told; return what is news for all."""
        if not self.on:
            return None
        known = {node: one or {"quiet": None} for node, one in told.items()}
        quiet = {node: one["quiet"] for node, one in known.items() if "quiet" in one}
        printed = any(one.get("printed") for one in known.values())
        if not self._run.judge(time.monotonic(), quiet, printed=printed):
            return None
        alarm = self._before + self._run.false_alarms + self._run.hung
        return {"hung": self._run.hung, "quiet_s": round(self._run.quiet, 1), "alarm": alarm}

    def judge_slow(self, told: Mapping[str, Optional[Told]]) -> Dict[str, Judged]:
        """Return by node which of its ranks the others wait for; none of a run that is hung."""
        works = {node: one["work"] for node, one in told.items() if one and one.get("work")}
        return self.slow.judge({} if self._run.hung else works)

    def take(self, told: Told) -> bool:
        """Take the master's judgement; return whether it is news."""
        quiet = told["quiet_s"]
        if told["hung"]:
            if told["alarm"] <= self._alarm or self._alarms >= MOST_ALARMS:
                return False
            self._alarm, self._alarms = told["alarm"], self._alarms + 1
            self._hung = {"since": time.time() - quiet, "quiet_s": quiet, "alarm": self._alarm}
            self._record.event("hung", **self._hung)
            self.keep_dump()
        else:
            if self._hung is None:
                return False
            since, self._hung = self._hung["since"], None
            self._false_alarms += 1
            self._record.event("running-again", since=since, alarm=self._alarm)
        self._on_change()
        return True

    def finished(self) -> None:
        """Note that the run has finished on all nodes: if it was hung, it ran again since."""
        self.take({"hung": False, "quiet_s": 0.0})

    # The stacks of this node's ranks.

    def quiet(self) -> Dict[int, float]:
        """Return the seconds since the last sign of life of each rank that is watched."""
        now = time.monotonic()
        return {rank: round(one.life.quiet(now), 1) for rank, one in self._ranks.items()}

    def dump(self, order: Mapping[str, Any]) -> Dict[str, Any]:
        """Start to take stacks as they are ordered; return the process that does as `taker`."""
        wanted = {**order, "quiet": self.quiet()}
        work = partial(take_to_file, self._record.paths, wanted, self._snapshots())
        pid = run_apart(self._loop, work, lambda _: None, seconds=limit_of(order))
        return {"taker": key_of(pid)}

    def timed_out(self) -> None:
        """Keep the stacks of the ranks that live while one has waited in vain for another.

        Those of a run that is hung are kept already, and tell more: all its ranks lived.
        """
        if self._hung is None:
            self.keep_dump(timed_out=True)
        else:
            self.stacks_kept = True

    def keep_dump(self, *, timed_out: bool = False) -> None:
        """Keep the stacks of all ranks in the run's folder."""
        quiet = self.quiet()
        work = partial(_save, self._record.paths, self._snapshots(), quiet, timed_out=timed_out)
        kept = partial(self._kept, timed_out=timed_out)
        if self._keeping and not timed_out:
            return  # a master that was taken over may call it hung without end
        try:
            run_apart(self._loop, work, kept, seconds=DUMP_SECONDS)
        except OSError as error:
            self._record.event("dump-failed", message=str(error))
        else:
            self._keeping = self._keeping or not timed_out

    def _kept(self, told: Dict[str, Any], *, timed_out: bool = False) -> None:
        self._keeping = self._keeping and timed_out
        if "saved" not in told:
            message = "the stacks were not taken within %g s, or not written" % DUMP_SECONDS
            self._record.event("dump-failed", message=message)
        elif timed_out:
            self.stacks_kept = True
        else:
            self.blame = told.get("blame", "")


def _rdma_bytes() -> Dict[str, Any]:
    return {"bytes": sample.rdma_bytes()}


def _places(
    paths: NodePaths, ranks: Sequence[Mapping[str, Any]], wanted: Mapping[int, bool]
) -> Dict[str, Any]:
    """Return where each of these ranks waits; `wanted`: whether its GPUs rest. Runs in a child."""
    from clusterctl.node.hang.stacks import dump_ranks  # noqa: PLC0415  (start-up counts)

    found = dump_ranks(paths, ranks, only=wanted, stacks_only=True)
    return {
        str(one["rank"]): life.place_of(one, on_gpu=wanted[one["rank"]])
        for one in found["ranks"]
        if any(process["source"] == "py-spy" for process in one["processes"][:1])
    }


def _save(
    paths: NodePaths,
    ranks: Sequence[Mapping[str, Any]],
    quiet: Mapping[int, float],
    *,
    timed_out: bool,
) -> Dict[str, Any]:
    """Keep the stacks of all ranks; runs in a child."""
    from clusterctl.node.hang.stacks import dump_ranks  # noqa: PLC0415  (start-up counts)

    dump = {**dump_ranks(paths, ranks, quiet=quiet), "timed_out": timed_out}
    return {"saved": save_dump(paths, dump), "blame": blame(dump)}
