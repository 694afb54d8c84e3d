"""Ends a run on this node: its processes, then what the other nodes must hear, then the record."""

from __future__ import annotations

import contextlib
import re
import signal
import time
from functools import partial
from typing import Any, Callable, Dict, List, Optional

from clusterctl.node.event_loop import EventLoop
from clusterctl.node.run.files import ray_folder, stop_file
from clusterctl.node.run.processes import processes
from clusterctl.node.run.processes.containers import started_by_client
from clusterctl.node.run.processes.processes import Process, living_descendants, send_all
from clusterctl.node.supervisor.around.commands import AroundCommands
from clusterctl.node.supervisor.around.folder_note import FolderNote
from clusterctl.node.supervisor.around.notifier import Notifier
from clusterctl.node.supervisor.housekeeping import HEARTBEAT_SECONDS
from clusterctl.node.supervisor.next_attempt import GO, OVER, Attempt, NextAttempt
from clusterctl.node.supervisor.ranks.node_ranks import Ranks
from clusterctl.node.supervisor.ranks.spawn import Spawner
from clusterctl.node.supervisor.shutdown import (
    FAILURE_GRACE,
    LEFTOVER_GRACE,
    Cause,
    Phases,
    Shutdown,
)
from clusterctl.node.supervisor.watch.hang_watch import HangWatch

SETTLE_POLL = 0.05
RELAY_SECONDS = 5.0
"""How long a failure waits until the other nodes have heard of it."""
MOST_COMMANDS, COMMAND_LIMIT = 4, 100
"""Processes left running that are named, and characters of each command."""
OF_RAY = re.compile(
    r"^ray::|/ray/(?:_private|autoscaler|core|dashboard)/|^ray[.](?:scripts[.]scripts|util[.]client)"
)
"""In the command of a process of Ray's own."""
RECORD_SECONDS = 60.0
"""How long an end that no disk takes is kept and answered from memory."""


class Ending:
    """The end of a run on this node. Once begun, it may be hastened, never taken back."""

    def __init__(
        self,
        attempt: Attempt,
        spawner: Spawner,
        ranks: Ranks,
        hang: HangWatch,
        next_attempt: NextAttempt,
        around: AroundCommands,
        notify: Notifier,
        note: FolderNote,
    ) -> None:
        """Wait for a reason to end."""
        self._loop, self._job, self._record = attempt.loop, attempt.job, attempt.record
        self._peers, self._save = attempt.peers, attempt.on_change
        self._spawner, self._ranks, self._hang = spawner, ranks, hang
        self._next, self._around, self._notify = next_attempt, around, notify
        self._folder_note = note
        self._echo = EchoGrace(self._loop, self.begin, hang.timed_out)
        self._failure_grace: float = self._job["stop"].get("failure_grace", FAILURE_GRACE)
        self._shutdown: Optional[Shutdown] = None
        self.account: Dict[str, Any] = {}
        """What is known of it, as the record has it; empty: it has not begun."""
        self.stop_file = ""
        """The file that asks the program to stop, once it is there."""
        self.settled = False
        """The run is over on all nodes, as far as they tell: what is left is done alone."""
        self.over = False
        """All is done: the supervisor may leave."""
        self.takes_over = False
        """Another supervisor died amid it: nodes that heard of it before do not come again."""

    @property
    def begun(self) -> bool:
        """Whether the run is being ended here."""
        return self._shutdown is not None

    @property
    def certain(self) -> bool:
        """Whether it is, or will be in some seconds."""
        return self.begun or self._echo.cause is not None

    def begin(self, cause: Cause, *, late: bool = False) -> None:
        """End the run on this node; act first, write later: a disk may be slow.

        `late`: by the start timeout, so the record says what was missing here.
        """
        if self._shutdown is None:
            if self._echo.delays(cause, over=self._ranks.all_over):
                return
            if cause.ordered and self._echo.cause is not None:
                self.begin(self._echo.cause)  # it failed before
        own = self._job["stop"]["grace"] if cause.ordered else self._failure_grace
        phases = cause.phases(own)
        if self._shutdown is not None:
            self._shutdown.hasten(phases)
            return
        self._ranks.stopping = True
        why_late = self._ranks.gathering.lateness() if late else ""
        requested = self._ranks.request_end(cause)
        problem = ""
        if cause.ordered:
            name = self._job["stop"]["file"]
            self.stop_file, problem = stop_file.try_create(self._job["workdir"], name)
        if not requested:
            phases = Phases(term=0.0, kill=self._failure_grace)
        self._note(cause.state, cause.by, cause.reason, cause.exit_code)
        self._shut_down(phases)
        if cause.ordered:
            self._record.event("stop-ordered", message=cause.reason, problem=problem)
        if why_late:
            self._record.event("late", message=why_late)
        self._save()

    def ranks_succeeded(self) -> None:
        """Give what the ranks left behind a moment; then it is ended."""
        if self._echo.cause is not None:
            return  # `rank_ended` ends it
        self._ranks.stopping = True
        self._note("finished", "rank", "all ranks ended with exit code 0", 0)
        term = self._job["stop"].get("leftovers", LEFTOVER_GRACE)
        phases = Phases(term=term, kill=term + LEFTOVER_GRACE)
        self._ranks.gathering.over()
        self._shut_down(phases, on_term=self._leftovers)

    def rank_ended(self) -> None:
        """Look whether that was all that it waits for."""
        if self._shutdown is not None:
            if self._next.may_follow:  # its report would only delay the next attempt
                self._ranks.end_launcher()
            self._shutdown.check()
        elif self._echo.cause is not None and self._ranks.all_over:
            self.begin(self._echo.cause)

    def follow_master(self, state: str) -> None:
        """End what only served the master's processes, which are over."""
        at_once = Phases(term=0.0, kill=self._failure_grace)
        if self._shutdown is not None:
            self._shutdown.hasten(at_once)
        elif state == "finished":  # of any other end the master has told before, and why
            self._ranks.stopping = True
            reason = "the run has finished on node %s" % self._job["master"]["node"]
            self._note(state, "master", reason, 0)
            self._shut_down(at_once)

    def resume(self, account: Dict[str, Any]) -> None:
        """Continue an end that another supervisor had begun before it died."""
        self.account = account
        self._shut_down(Phases(term=0.0, kill=FAILURE_GRACE))

    def _note(self, state: str, by: str, reason: str, exit_code: Optional[int]) -> None:
        known = {"state": state, "reason": reason, "exit_code": exit_code, "by": by}
        self.account = {**known, "time": time.time()}

    # Its processes.

    def _shut_down(
        self, phases: Phases, on_term: Optional[Callable[[List[Process]], None]] = None
    ) -> None:
        remove = self._spawner.container_remover if started_by_client(self._job) else None
        living, then = self._living, self._all_exited
        self._shutdown = Shutdown(self._loop, living, phases, then, remove, on_term)

    def _living(self) -> List[Process]:
        """Return the run's processes on this node; those that tell others are none of them."""
        return self._folder_note.without(self._notify.without(living_descendants()))

    def _leftovers(self, left: List[Process]) -> None:
        """Record what successful ranks left running, and is ended now; Ray ends with its driver."""
        words = [processes.command_of(process.pid).split() for process in left]
        if self._job["launcher"] == "ray":
            words = [each for each in words if not any(map(OF_RAY.search, each))]
        commands = [" ".join(each)[:COMMAND_LIMIT] for each in words]
        if commands:
            self._record.event(
                "leftovers-ended", count=len(commands), commands=commands[:MOST_COMMANDS]
            )

    def _all_exited(self, left: List[Process]) -> None:
        """Nothing of the run is left on this node: settle with the others, then leave."""
        self._ranks.resolve_exit_codes()
        self._record.log_times()  # before another node writes that the next attempt begins
        self.account["over"] = time.time()
        self.account["left"] = [process.pid for process in left]
        self.account["stacks"] = self._hang.stacks_kept
        if self._job["launcher"] == "ray":
            ray_folder.clean(self._record.paths.folder)
        stop_file.remove(self.stop_file)  # left there it would stop the next run
        oom = bool(self._ranks.oom_kills())
        self._next.look(self.account, oom=oom, blame=self._hang.blame, then=self._tell)

    # The other nodes.

    def _tell(self) -> None:
        self._peers.send_bye(self.account["state"], self._next.after)
        self._settle(time.monotonic() + RELAY_SECONDS)

    def _settle(self, until: float) -> None:
        """Stay until all other nodes ended, or know of our end."""
        late = time.monotonic() > until
        becomes = self._next.poll(late=late)
        if becomes == GO:
            self._record.event("end", attempt=self._job["attempt"], **self.account)
            self._next.announce()
            self._notify.give_up("the next attempt began before it was sent")
            self._leave()
        elif becomes == OVER and self._others_know(late=late):
            is_good = self.account["state"] == "finished" and self._next.heard_nothing
            if is_good and self._job["node_rank"] == 0:  # on all nodes: the others have ended
                self._hang.finished()
            if self.account["by"] in ("rank", "launcher", "peer"):  # which may only echo that
                for silent in self._peers.silent():
                    self._record.event("peer-silent", **silent)
            self.account.update(self._next.verdict)
            state = "failed" if self.account["state"] == "finished" and not is_good else ""
            self.settled = True
            self._peers.close()
            then = partial(self._tell_people, state or self.account["state"])
            self._around.after(state or self.account["state"], then)
        else:
            self._loop.call_later(SETTLE_POLL, lambda: self._settle(until))

    def _others_know(self, *, late: bool) -> bool:
        """Tell whether the other nodes know of our end, or had their time to hear of it."""
        finished = self.account.get("state") == "finished"
        known = self._peers.acknowledged
        if self.takes_over:
            return self._peers.all_done or (late and (known or not finished))
        return self._peers.all_done if finished else known or late

    # People, and the record.

    def _tell_people(self, state: str) -> None:
        note, first = self.account.get("no_restart", ""), self._next.first_cause
        tell = partial(self._notify.end, state, first, note, self._record_end)
        self._folder_note.end(tell)

    def _record_end(self) -> None:
        """Write the end; nothing may be left of the commands that ran after it."""
        with contextlib.suppress(OSError):
            send_all(living_descendants(), signal.SIGKILL)
        self._record.event("end", **self.account)
        self._write(time.monotonic() + RECORD_SECONDS)

    def _write(self, until: float) -> None:
        value = {"schema": 1, **self.account, "ranks": self._ranks.snapshots()}
        self._save()
        if self._record.end(value) or time.monotonic() > until:
            self._leave()
        else:
            self._loop.call_later(HEARTBEAT_SECONDS, lambda: self._write(until))

    def _leave(self) -> None:
        self._save()
        self._peers.close()
        self.over = True


class EchoGrace:
    """Delays the end of a run on a node; any other end comes at once."""

    def __init__(
        self, loop: EventLoop, end: Callable[[Cause], None], on_timeout: Callable[[], None]
    ) -> None:
        """Call `end` when the time is over; before it `on_timeout`, if a rank waited in vain."""
        self._loop, self._end, self._on_timeout = loop, end, on_timeout
        self.cause: Optional[Cause] = None
        """What the run ends for soon; None: nothing."""
        self._timed_out = False

    def delays(self, cause: Cause, *, over: bool) -> bool:
        """Tell whether an end waits; `over`: nothing here can print any more."""
        if cause.lines_grace is None or over:
            return False
        if cause.waited and not self._timed_out:
            self._timed_out = True
            self._on_timeout()
        if self.cause is None:
            at_last = self.cause = cause._replace(lines_grace=None)
            self._loop.call_later(cause.lines_grace, lambda: self._end(at_last))
        return True
