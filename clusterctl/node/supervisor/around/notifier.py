"""Tells the receivers of `job.notify` what becomes of the run; only its master does.

Each message is sent by a child, one at a time for each receiver, and tried again with growing
waits. Nothing waits for it but the end of the run, briefly.
"""

from __future__ import annotations

import math
import time
from functools import partial
from typing import Any, Callable, Dict, List, Mapping, Optional, Set

from clusterctl.node.event_loop import EventLoop, Timer
from clusterctl.node.notify.deliver import LIMIT_SECONDS, SHORTEST_SECRET, deliver, hide, receiver
from clusterctl.node.notify.message import message
from clusterctl.node.run.files.node_job import NodeJob, most_attempts, run_attempt, start_of
from clusterctl.node.run.files.run_files import RunFiles
from clusterctl.node.run.processes import processes
from clusterctl.node.run.processes.environ_bytes import Environment
from clusterctl.node.run.processes.processes import Process
from clusterctl.node.supervisor.apart import run_apart
from clusterctl.node.supervisor.shutdown import Cause

WAITS = (2.0, 10.0, 30.0)
"""Before the second try of a message, and the next ones."""
LAST_WAITS = (1.0, 2.0, 4.0)
"""The same once the run is over."""
END_SECONDS, STOP_SECONDS = 15.0, 4.0
"""How long the end of the run waits for what is still to be sent; a user waits for a stop."""
LOOK_SECONDS, WAIT_POLL = 1.0, 0.05
MOST_WAITING = 8
"""Messages for one receiver; older ones are dropped."""


class Notifier:
    """What is to be sent, and to whom."""

    def __init__(
        self,
        loop: EventLoop,
        job: NodeJob,
        record: RunFiles,
        secrets: Mapping[str, Any],
        environment: Environment,
        nodes: Callable[[], List[str]],
        began: float,
    ) -> None:
        """Send nothing yet; `secrets`: what `node_secrets` sent."""
        self._loop, self._job, self._record = loop, job, record
        self._urls: Mapping[str, str] = secrets.get("webhooks", {})
        lines = [line.strip() for value in secrets["env"].values() for line in value.splitlines()]
        self._hidden = [line for line in lines if len(line) >= SHORTEST_SECRET]
        """Values of `env_from`: a program may print them with an error."""
        self._nodes, self._began = nodes, began
        wanted: Any = job.get("notify") if job["node_rank"] == 0 else None
        self._receivers = [
            _Receiver(loop, target, partial(self._deliver, target, environment), self._failed)
            for target in wanted or ()
        ]
        self.problem = ""
        """What was not delivered, the first time."""
        self._started, self._alarm, self._over = False, 0, False
        self._until = math.inf

    def start(self, is_up: Callable[[], bool], alarm: Callable[[], int]) -> None:
        """Tell of what happens while the run lives.

        Args:
            is_up: all ranks have been started, on every node.
            alarm: which hang it is now; 0: the run is not hung.
        """
        if not self._receivers:
            return
        again: Any = self._job.get("again")
        if again:
            self._started = True
            start, _ = start_of(self._job, again)
            where = "from the beginning" if start is None else "from checkpoint %s" % start
            attempt = "attempt %d of %d" % (again["attempt"], most_attempts(self._job))
            self.tell("restarted", "starting", "is now %s, %s: %s" % (attempt, where, again["why"]))
        self._loop.call_every(LOOK_SECONDS, partial(self._look, is_up, alarm))
        for one in self._receivers:
            if one.every:
                self._loop.call_every(one.every, partial(self._ping, one))

    def tell(self, event: str, state: str, words: str, cause: Optional[Cause] = None) -> None:
        """Send a message to all who want this event; of an end that failed, `failed`."""
        wanted = {"failed", "ended"} if event == "failed" else {event}
        for one in self._receivers:
            if wanted & one.events:
                one.send(self._message(event, state, words, cause))

    def end(self, state: str, cause: Optional[Cause], note: str, then: Callable[[], None]) -> None:
        """Tell that the run is over, and wait a little until that has arrived.

        `note`: why it was not started again.
        """
        self._over = True
        if cause is not None:
            line = cause.line and hide(cause.line, self._hidden)
            cause = cause._replace(reason=hide(cause.reason, self._hidden), line=line)
        words = _end_words(state, cause) + ("; not started again: " + note if note else "")
        self.tell("ended" if state in ("finished", "stopped") else "failed", state, words, cause)
        for one in self._receivers:
            one.hasten()
        seconds = STOP_SECONDS if cause is not None and cause.by == "stop" else END_SECONDS
        self._until = time.monotonic() + seconds
        self._wait(then)

    def waits(self, why: str) -> None:
        """Tell that the run waits for nodes to join."""
        self.tell("waiting", "waiting", "waits for a node to join: " + why)

    def hurry(self) -> None:
        """Let the end wait no longer."""
        self._until = 0.0

    def without(self, living: List[Process]) -> List[Process]:
        """Return these processes without those that send."""
        own = {one.pid for one in self._receivers if one.pid}
        if not own:
            return living
        own |= processes.descendants(own, {process.pid: process for process in living})
        return [process for process in living if process.pid not in own]

    def _message(
        self, event: str, state: str, words: str, cause: Optional[Cause] = None
    ) -> Dict[str, Any]:
        job = self._job
        why = cause and {
            "node": cause.node,
            "rank": cause.rank,
            "exit_code": cause.exit_code,
            "signal": cause.killed_by,
            "reason": cause.reason,
            "line": cause.line,
        }
        return message(
            event,
            hide(words, self._hidden),
            run=job["run"],
            cluster=job["cluster"],
            name=job.get("name") or "",
            state=state,
            nodes=self._nodes(),
            attempt=run_attempt(job) or 1,
            attempts=most_attempts(job),
            cause=why,
            began=self._began,
            resumable=bool(cause and cause.by == "max-time" and job.get("checkpoints")),
        )

    def _look(self, is_up: Callable[[], bool], alarm: Callable[[], int]) -> None:
        if self._over:
            return
        if not self._started and is_up():
            self._started = True
            self.tell("started", "running", "has started on %d nodes" % len(self._nodes()))
        now = alarm()
        if now and now != self._alarm:
            self.tell("hung", "hung", "is hung: no rank has shown a sign of life for long")
        self._alarm = now

    def _ping(self, one: _Receiver) -> None:
        if not self._over and not one.pid:  # one that is late is not sent twice
            one.send(self._message("alive", "running" if self._started else "starting", "is alive"))

    def _deliver(
        self, target: Mapping[str, Any], environment: Environment, told: Dict[str, Any]
    ) -> Dict[str, Any]:
        """Send it once; runs in a child."""
        return deliver(target, told, self._urls, environment, self._job["workdir"])

    def _failed(self, one: _Receiver, event: str, why: str) -> None:
        """Note, once, that something did not arrive."""
        if not self.problem:
            self.problem = "%s: %s" % (one.name, why)
            self._record.event("notify-failed", receiver=one.name, event=event, message=why)

    def _wait(self, then: Callable[[], None]) -> None:
        waiting = [one for one in self._receivers if one.waiting]
        if waiting and time.monotonic() < self._until:
            self._loop.call_later(WAIT_POLL, lambda: self._wait(then))
            return
        self.give_up("the run ended before it was sent")
        then()

    def give_up(self, why: str) -> None:
        """Send nothing more, and note what was not sent."""
        for one in self._receivers:
            one.give_up(why)


class _Receiver:
    """One receiver: what waits to be sent to it, and the child that sends the first of these."""

    def __init__(
        self,
        loop: EventLoop,
        target: Mapping[str, Any],
        deliver_once: Callable[[Dict[str, Any]], Dict[str, Any]],
        on_failure: Callable[[_Receiver, str, str], None],
    ) -> None:
        self._loop, self._deliver, self._on_failure = loop, deliver_once, on_failure
        self.events: Set[str] = set(target["on"])
        self.every: Optional[float] = target["every"]
        self.name = receiver(target)
        self.waiting: List[Dict[str, Any]] = []
        """The first is being sent, or waits for its next try."""
        self.pid = 0
        """Of the child; 0: there is none."""
        self._tries = 0
        self._next: Optional[Timer] = None
        self._waits = WAITS
        self._why = ""

    def send(self, told: Dict[str, Any]) -> None:
        """Send a message once those before it are sent."""
        del self.waiting[1 : len(self.waiting) + 1 - MOST_WAITING]
        self.waiting.append(told)
        if len(self.waiting) == 1:
            self._try()

    def hasten(self) -> None:
        """Send the newest message as soon as can be: the run is over."""
        self._waits = LAST_WAITS
        del self.waiting[1:-1]
        if self._next is not None:
            self._next.cancel()
            self.waiting, self._tries = self.waiting[-1:], 0
            self._try()

    def give_up(self, why: str) -> None:
        """Send nothing more."""
        if self.waiting:
            words = "%s (%s)" % (self._why, why) if self._why else why
            self._on_failure(self, self.waiting[-1]["event"], words)
        self.waiting = []

    def _try(self) -> None:
        self._next = None
        try:
            work = partial(self._deliver, self.waiting[0])
            self.pid = run_apart(self._loop, work, self._take, seconds=LIMIT_SECONDS)
        except OSError as error:
            self._take({"ok": False, "answer": str(error.strerror), "again": True})

    def _take(self, found: Dict[str, Any]) -> None:
        """Take what became of a try; nothing at all: its process was late, or died."""
        self.pid = 0
        if not self.waiting:
            return
        self._tries += 1
        self._why = str(found.get("answer") or "no answer within %g s" % LIMIT_SECONDS)
        # At the end of the run, the newest message does not wait for others that are tried again.
        old = self._waits is LAST_WAITS and len(self.waiting) > 1
        again = False if old else found.get("again", True)
        if not found.get("ok") and again is not False and self._tries <= len(self._waits):
            wait = self._waits[self._tries - 1]
            if again is not True and self._waits is WAITS:  # the server asks for so many seconds
                wait = max(wait, again)
            self._next = self._loop.call_later(wait, self._try)
            return
        if not found.get("ok"):
            self._on_failure(self, self.waiting[0]["event"], self._why)
        self._tries, self._why = 0, ""
        del self.waiting[0]
        if self.waiting:
            self._try()


def _end_words(state: str, cause: Optional[Cause]) -> str:
    """Say how the run ended."""
    if cause is None or state == "finished":
        return "has %s" % state
    if state == "stopped":
        return "was stopped: %s" % cause.reason
    line = ": %s" % cause.line if cause.line else ""
    return "has failed: %s: %s%s" % (cause.node, cause.reason, line)
