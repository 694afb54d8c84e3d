"""The ranks of one node: started, watched, and known how they ended, under any launcher."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Protocol, Tuple

from clusterctl.node.event_loop import EventLoop, Timer
from clusterctl.node.launcher_reaction import is_reaction
from clusterctl.node.run.files.node_job import NodeJob
from clusterctl.node.run.files.run_files import RunFiles
from clusterctl.node.run.files.run_paths import LAUNCHER_LOG, RANK_LOG
from clusterctl.node.run.processes import processes
from clusterctl.node.run.processes.processes import ProcessKey
from clusterctl.node.supervisor.ranks.child_watcher import ChildWatcher, Status, code_and_signal
from clusterctl.node.supervisor.ranks.rank_state import ONLY_RANK, Rank, failures_in, oom_kills
from clusterctl.node.supervisor.ranks.spawn import Spawner
from clusterctl.node.supervisor.ranks.stop_signals import signal_ranks
from clusterctl.node.supervisor.shutdown import Cause
from clusterctl.node.supervisor.worlds.gathering import Gathering

EXIT_CODE_POLL = 0.1
EXIT_CODE_SECONDS = 2.0
"""How long to look for an end in the launcher's log: it takes a moment to notice it too."""
LOG_TAIL = 65536
LAST_LINES = 200
"""The lines of a rank that failed which tell whether it only echoes another's end."""
LINE_LIMIT, LINE_SHOWN = 2000, 300
"""Characters of each: a longer line would take seconds to judge. And of one that is passed on."""


class Unknown(NamedTuple):
    """A rank's end whose exit code is not known yet."""

    ordered: bool
    """We had ordered it."""
    until: float
    """When to look for it no longer, on the clock that no one sets."""


class RankEvents(Protocol):
    """Who hears what becomes of the ranks: the supervisor."""

    def rank_failed(self, cause: Cause) -> None:
        """A rank, or their launcher, failed by itself."""

    def rank_ended(self) -> None:
        """A rank or the launcher has ended, and that is recorded."""

    def ranks_succeeded(self) -> None:
        """Every rank has ended well."""


class Ranks:
    """All ranks of this node, and their launcher where they have one."""

    def __init__(
        self,
        loop: EventLoop,
        job: NodeJob,
        spawner: Spawner,
        record: RunFiles,
        events: RankEvents,
    ) -> None:
        """Expect the job's ranks, and report what becomes of them."""
        self._loop, self._job, self._spawner, self._record = loop, job, spawner, record
        self._events = events
        self._children = ChildWatcher(loop)
        first = job["first_rank"]
        self._ranks = {n: Rank(first + n, n) for n in range(job["procs"])}
        """By local rank: the launcher may give out other ranks than planned, and again others."""
        self._oom_before = oom_kills()
        self._launcher: Optional[ProcessKey] = None
        self.gathering = Gathering(loop, job, record, self._ranks, self._elsewhere)
        self._unknown: Dict[int, Unknown] = {}
        """Ranks that ended we do not know how."""
        self._with_launcher: List[Tuple[Rank, Status]] = []
        """Ranks that were killed as their launcher died, which is not known to have ended."""
        self._next_look: Optional[Timer] = None
        """When the launcher's log is read for them again."""
        self.stopping = False
        """We are ending them: no end says anything of the job any more."""

    def start(self) -> None:
        """Start the launcher or the ranks; raise OSError if they cannot be started."""
        if self._job["launcher_argv"]:
            pid = self._spawner.launcher()
            self._launcher = processes.key_of(pid)
            self.gathering.launcher = pid
            self._children.watch_child(pid, self._launcher_ended)
        else:
            for rank in self._ranks.values():
                self._start_rank(rank)
        self.gathering.watch()

    def watch_child(self, pid: int, callback: Callable[[Status], None]) -> None:
        """Call back when another child of this process has ended."""
        self._children.watch_child(pid, callback)

    @property
    def all_started(self) -> bool:
        """Every expected rank has been there; of a node without ranks, its launcher."""
        if not self._ranks:
            return bool(self.gathering.launcher_joined)
        return all(rank.state != "starting" for rank in self._ranks.values())

    def snapshots(self) -> List[Dict[str, Any]]:
        """Return the ranks as the controller sees them."""
        return [self._ranks[number].snapshot() for number in sorted(self._ranks)]

    def request_end(self, cause: Cause) -> bool:
        """Ask those that run to end by themselves; False: none runs.

        After a failure a launcher ends its ranks itself, and its log then says why: the one whose
        rank failed has seen that, the others get the signal.
        """
        running = [rank.key for rank in self._ranks.values() if rank.running]
        if self._launcher is None or cause.ordered:
            own = self._job["stop"]["signal"] if cause.ordered else "TERM"
            signal_ranks(self._loop, running, own)
            # What serves the master is needed until that has ended.
            return bool(running) or bool(self._job.get("ends_with_master"))
        if cause.by not in ("rank", "launcher"):
            processes.send(self._launcher, signal.SIGTERM)
            processes.send(self._launcher, signal.SIGCONT)
        return True

    def end_launcher(self) -> None:
        """KILL a launcher that has no rank left and would only report; it takes a second to exit.

        Its log is read before for how the ranks ended. A container's client and Ray end in order.
        """
        job = self._job
        in_order = job["container"] or job.get("launcher_program")
        if self._launcher and self._ranks and self._all_ended and not (self._unknown or in_order):
            processes.send(self._launcher, signal.SIGKILL)

    def end_older(self, moment: float, lost: str) -> None:
        """KILL the ranks that began before, so that an elastic launcher starts all without a node.

        A host without power closes no connection: they would wait for it until a timeout of theirs.
        """
        running = [rank for rank in self._ranks.values() if rank.running]
        old = [rank.key[0] for rank in running if (rank.began or moment) < moment]
        if self.stopping or not old:
            return
        words = "%s is lost: its peers here are killed, and the launcher starts again without it\n"
        with contextlib.suppress(OSError):  # a full disk, or it cannot be checked now
            os.write(1, (words % lost).encode())
            table = processes.process_table()
            # The ranks first: one whose helper has ended may exit with 0 by itself.
            both = [*old, *processes.descendants(old, table)]
            processes.send_all([table[pid] for pid in both if pid in table], signal.SIGKILL)

    def report(self, request: Dict[str, Any], pid: int) -> Dict[str, Any]:
        """Take a rank's own report, from the shim just before it becomes the rank."""
        if self.stopping:
            return {"ending": True}
        other = self._other_world(request)
        if other:
            self._elsewhere(None, other)
            return {"error": other}
        number, local_rank = int(request["rank"]), int(request["local_rank"])
        rank = self._ranks.setdefault(local_rank, Rank(number, local_rank))
        key = processes.key_of(pid)
        if rank.running and rank.key == key:
            return {"watched": True}  # it asks again: our first answer came too late for it
        if local_rank in self._unknown:  # started again, before it was known how the last one ended
            self._handle_end(rank, ordered=self._unknown.pop(local_rank).ordered)
        rank.rank, rank.restarts = number, int(request["restarts"])
        if self._job["launcher_argv"]:
            self._children.watch_other(key, lambda status: self._rank_ended(rank, status))
        rank.has_started(key)
        self._record.event(
            "rank-started",
            rank=number,
            local_rank=local_rank,
            pid=pid,
            restarts=request["restarts"],
        )
        if self._job["launcher"] == "ray":
            self.gathering.has_joined(rank)  # the driver starts once all nodes have joined
        self._record.record_processes([key])
        return {"watched": True}

    def _other_world(self, request: Dict[str, Any]) -> str:
        """Say what a launcher gave a process that is no rank of the plan; empty: it is one."""
        size = self._job["world_size"]
        if request["rank"] is None:
            return "a process without RANK: expected %d ranks, found one alone" % size
        given = request.get("world_size")
        if given is None or self._job.get("elastic") or given == size:
            return ""
        return "expected WORLD_SIZE=%d, found %d for rank %d" % (size, given, request["rank"])

    def _elsewhere(self, rank: Optional[Rank], found: str) -> None:
        """End the run: a rank is not in the world that was planned."""
        if self.stopping:
            return
        who = "" if rank is None else "rank %d does not meet the other nodes: " % rank.rank
        number = None if rank is None else rank.rank
        self._events.rank_failed(Cause("world", who + found, self._job["node"], rank=number))

    def restore(self, snapshots: Iterable[Dict[str, Any]]) -> None:
        """Take the ranks as a supervisor that died last knew them; what ran then was killed."""
        for snapshot in snapshots:
            rank = Rank(snapshot["rank"], snapshot["local_rank"])
            vars(rank).update(snapshot)
            self._ranks[rank.local_rank] = rank
            if rank.running:
                rank.has_ended(None)
                self._unknown[rank.local_rank] = Unknown(ordered=True, until=0.0)

    def resolve_exit_codes(self) -> None:
        """Account for every end: no process is left, so no news will come by itself."""
        self._children.reap()
        self._read_exit_codes(last=True)

    def _start_rank(self, rank: Rank) -> None:
        pid = self._spawner.rank(rank.local_rank)
        self._children.watch_child(pid, lambda status: self._rank_ended(rank, status))

    def _rank_ended(self, rank: Rank, status: Status) -> None:
        # A launcher's death kills its ranks, whose ends may be known before its own.
        killed = status is None or code_and_signal(status)[1] == signal.SIGKILL
        if killed and self._launcher is not None and self._has_died(self._launcher):
            self._with_launcher.append((rank, status))
            self._loop.call_later(EXIT_CODE_SECONDS, self._take_killed)
            return
        self._take_end(rank, status)

    @staticmethod
    def _has_died(key: ProcessKey) -> bool:
        """Tell whether a process's first thread has ended; what others do cannot keep its ranks."""
        process = processes.read(key[0])
        return process is None or process.start != key[1] or process.state in "ZXx"

    def _take_killed(self) -> None:
        while self._with_launcher:
            self._take_end(*self._with_launcher.pop(0))

    def _take_end(self, rank: Rank, status: Status) -> None:
        rank.has_ended(status)
        ordered = self.stopping
        if rank.exit_code is None:
            until = time.monotonic() + EXIT_CODE_SECONDS
            self._unknown[rank.local_rank] = Unknown(ordered, until)
            self._read_exit_codes()
        else:
            self._handle_end(rank, ordered=ordered)

    def _handle_end(self, rank: Rank, *, ordered: bool) -> None:
        """Act on an end whose code is known, or will never be."""
        decided = self.stopping or self._job["launcher_decides"] or self._terminated_after(rank)
        if rank.exit_code and not decided:
            self._events.rank_failed(self._cause_of(rank))
        killed = self._if_killed(rank.signal)
        self._record.event(
            "rank-ended",
            **killed,
            time=rank.ended,
            rank=rank.rank,
            pid=rank.pid,
            exit_code=rank.exit_code,
            signal=rank.signal,
            ordered=ordered,
        )
        if not self.stopping and self._all_ended and not self._job["launcher_argv"]:
            self._events.ranks_succeeded()
        self._events.rank_ended()

    def _if_killed(self, number: Optional[int]) -> Dict[str, Optional[int]]:
        if number not in (signal.SIGKILL, signal.SIGXCPU):
            return {}
        found = {"oom_kills": self.oom_kills()} if number == signal.SIGKILL else {}
        limit = resource.getrlimit(resource.RLIMIT_CPU)[1]
        return found if limit == resource.RLIM_INFINITY else {**found, "cpu_limit_s": limit}

    def oom_kills(self) -> Optional[int]:
        """Return how many processes the out-of-memory killer ended since the start."""
        now = oom_kills()
        return None if now is None or self._oom_before is None else now - self._oom_before

    @property
    def _all_ended(self) -> bool:
        return all(rank.state == "ended" for rank in self._ranks.values())

    def _read_exit_codes(self, *, last: bool = False) -> None:
        """Learn from the launcher's log the ends that it saw before us, as long as it may tell."""
        if self._next_look is not None:
            self._next_look.cancel()
            self._next_look = None
        log = self._record.log_end(LAUNCHER_LOG, LOG_TAIL)
        failures = failures_in(log.decode("utf-8", "replace"))
        now = time.monotonic()
        for rank in [self._ranks[number] for number in self._unknown]:
            if rank.exit_code is None:
                rank.exit_code, rank.signal = (
                    failures.get(rank.pid or ONLY_RANK) or failures.get(ONLY_RANK) or (None, None)
                )
            end = self._unknown[rank.local_rank]
            if rank.exit_code is not None or last or self._launcher is None or now > end.until:
                del self._unknown[rank.local_rank]
                self._handle_end(rank, ordered=end.ordered)
        if self._unknown:
            self._next_look = self._loop.call_later(EXIT_CODE_POLL, self._read_exit_codes)

    def _launcher_ended(self, status: Status) -> None:
        code, number = code_and_signal(status or 0)
        ordered = self.stopping
        self._launcher = self.gathering.launcher = None
        if code == 0:
            for rank in self._ranks.values():
                rank.exit_code = rank.exit_code or 0
        if number is None:  # it ended because of its ranks
            self._take_killed()
        self._read_exit_codes(last=True)
        if not self.stopping:
            self._explain_launcher_end(code, number)
        self._take_killed()
        killed = self._if_killed(number)
        self._record.event(
            "launcher-ended", exit_code=code, signal=number, ordered=ordered, **killed
        )
        self._events.rank_ended()

    def _explain_launcher_end(self, code: int, number: Optional[int]) -> None:
        """Find out what the launcher's end means: the ranks' end, or its own."""
        if code == 0 and not self._job.get("ends_with_master"):
            self._events.ranks_succeeded()
            return
        ended = [r for r in self._ranks.values() if r.state == "ended" and r.exit_code]
        failed = [rank for rank in ended if not self._terminated_after(rank)]
        if failed:
            self._events.rank_failed(self._cause_of(min(failed, key=lambda rank: rank.ended or 0)))
        else:
            how = "ended with exit code %d" % code
            how = how if number is None else "was killed by signal %d" % number
            reason, node = "the launcher " + how, self._job["node"]
            self._events.rank_failed(
                Cause("launcher", reason, node, exit_code=code, killed_by=number)
            )

    def _cause_of(self, rank: Rank) -> Cause:
        from clusterctl.node.printed_error import last_error, lines_grace  # noqa: PLC0415  (start-up counts)

        cause = Cause("rank", rank.describe_end(), self._job["node"], rank=rank.rank)
        end = self._record.log_end(RANK_LOG % rank.rank, LOG_TAIL)
        text = end.decode("utf-8", "backslashreplace").splitlines()
        lines = [line[:LINE_LIMIT] for line in text[-LAST_LINES:]]
        return cause._replace(
            exit_code=rank.exit_code,
            killed_by=rank.signal,
            lines_grace=lines_grace(lines),
            line=last_error(lines).line[:LINE_SHOWN] or None,
        )

    @property
    def all_over(self) -> bool:
        """Nothing of them can print any more."""
        return self._launcher is None and not any(rank.running for rank in self._ranks.values())

    def _terminated_after(self, rank: Rank) -> bool:
        """Say if the launcher ended this rank, as another had ended whose exit code is lost."""
        if not self._job["launcher_argv"]:
            return False
        ended = [each for each in self._ranks.values() if each.state == "ended"]
        unknown = [each.ended or 0 for each in ended if each.exit_code is None]
        return is_reaction(rank.signal, rank.ended or 0, unknown)
