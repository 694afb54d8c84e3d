"""Watches a run on all its nodes, over one connection to each, through lost connections."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Generator
from dataclasses import replace

from clusterctl.errors import ClusterError, NodeError
from clusterctl.inventory.cluster import Cluster
from clusterctl.logs.progress_line import JobProgress
from clusterctl.model.answers import WatchAnswer
from clusterctl.model.node_run import LastPrinted, NodeRun
from clusterctl.transport.fanout import MultiStream
from clusterctl.transport.interface import Reply, Request
from clusterctl.verbs.follow import BACKOFF
from clusterctl.verbs.rpc import ANSWER_SECONDS, Nodes, joined_later, run_args, validated_answer
from clusterctl.verbs.runs.history import History
from clusterctl.verbs.runs.run_status import RunStatus, view_of
from clusterctl.verbs.status import with_details
from clusterctl.verbs.top.snapshot import Top, TopNode
from clusterctl.verbs.top.use import KEPT, NodeUse
from clusterctl.wire import Message

TICK = 0.1
PAST_SECONDS = 5.0 * KEPT
DETAILS_SECONDS = 30.0
"""How often the newest checkpoint is looked for; its node reads the structure of files."""
RATE_SECONDS = 60.0
"""Over how long a rate is measured that the job does not print."""


class Watcher:
    """Follows a run; `snapshot` is what is known at any moment."""

    def __init__(
        self, nodes: Nodes, run: str, cluster: Cluster, history: History | None = None
    ) -> None:
        """Know nothing yet."""
        self._nodes, self._run, self._cluster, self._history = nodes, run, cluster, history
        self._node_runs: dict[str, NodeRun] = {}
        self._heard: dict[str, float] = {}
        """When each node last sent how it is."""
        self._errors: dict[str, NodeError] = {}
        self._tries: dict[str, int] = {}
        self._uses: dict[str, NodeUse] = {}
        self._waiting = {node.name for node in cluster.nodes}
        self._steps: deque[tuple[float, int]] = deque()
        self._details = _Details(self)

    @property
    def complete(self) -> bool:
        """Every node has answered, or failed to."""
        return not self._asked

    @property
    def _asked(self) -> set[str]:
        return self._waiting - self._heard.keys() - self._errors.keys()

    def ask(self) -> Top:
        """Ask every node once."""
        for _ in self._moments(follow=False):
            pass
        self._details.look(self.view())
        return self.snapshot()

    def follow(self) -> Generator[None]:
        """Follow until the run is over on all nodes that answer; yield ten times a second."""
        yield from self._moments(follow=True)
        self._details.look(self.view())

    def details(self, view: RunStatus) -> RunStatus:
        """Ask for what takes longer than a look at a run."""
        return with_details(self._nodes, self._cluster, view, self._history)

    def look_again(self) -> None:
        """Have the details looked for soon, in a thread of their own."""
        if self.complete:
            self._details.start()

    def snapshot(self) -> Top:
        """Return how the run is now, as far as it is known."""
        now = time.time()
        view = self._details.added_to(self.view())
        newest = self._newest(now)
        return Top(
            time=now,
            status=view,
            nodes=tuple(
                TopNode(
                    answer=one,
                    now=None if one.error else self._use(one.node.name).now,
                    asked=one.node.name in self._asked,
                )
                for one in view.nodes
            ),
            progress=self._progress(view),
            printed_age_s=newest[1].age_s if newest else None,
            lines=newest[1].lines or (newest[1].line,) if newest else (),
            lines_of=newest[0] if newest else "",
        )

    def view(self) -> RunStatus:
        """Return what the nodes have told, with lines as old as they are now."""
        now = time.time()
        runs = {
            name: replace(run, last=self._aged(name, now)) for name, run in self._node_runs.items()
        }
        return view_of(self._run, self._cluster, runs, self._errors)

    def _aged(self, name: str, now: float) -> LastPrinted | None:
        last = self._node_runs[name].last
        return last and replace(last, age_s=last.age_s + max(0.0, now - self._heard[name]))

    def _newest(self, now: float) -> tuple[str, LastPrinted] | None:
        found = [(name, self._aged(name, now)) for name in self._node_runs]
        known = [(name, one) for name, one in found if one]
        if not known:
            return None
        name, last = min(known, key=lambda each: (each[1].rank is None, each[1].age_s))
        return (name if last.rank is None else f"{name}:{last.rank}"), last

    def _progress(self, view: RunStatus) -> JobProgress | None:
        """Return how far the job is, with a rate that is measured here if it prints none."""
        found = view.pace
        if found is None or found.step is None or found.steps_per_s is not None or not view.live:
            return found
        now = time.monotonic()
        if self._steps and found.step < self._steps[-1][1]:
            self._steps.clear()  # it began again
        if not self._steps or found.step > self._steps[-1][1]:
            self._steps.append((now, found.step))
        while len(self._steps) > 2 and now - self._steps[0][0] > RATE_SECONDS:  # noqa: PLR2004
            self._steps.popleft()
        (began, first), (ended, last) = self._steps[0], self._steps[-1]
        if last == first:
            return found
        rate = (last - first) / (ended - began)
        whole = found.total if not found.of_epoch else None
        left = None if whole is None else max(0, whole - found.step) / rate
        return replace(found, steps_per_s=rate, eta_s=left if found.eta_s is None else found.eta_s)

    def _moments(self, *, follow: bool) -> Generator[None]:
        names = [node.name for node in self._cluster.nodes]
        requests = {name: self._request(name, follow=follow) for name in names}
        limit = math.inf if follow else ANSWER_SECONDS  # a run may be without news for hours
        with self._nodes.following(requests, tick=TICK, answer_timeout=limit) as stream:
            for item in stream:
                if item is not None:
                    self._take(stream, *item, follow=follow)
                if follow:
                    yield
                    if self._alone():
                        break

    def _request(self, name: str, *, follow: bool) -> Request:
        args = run_args(self._run, self._cluster, self._cluster.node(name))
        now = self._use(name).now
        since = now.time if now else 0.0  # again, after a lost connection
        past = {"past": PAST_SECONDS, "since": since}
        return Request(op="watch", args={**args, "follow": follow, **past})

    def _use(self, name: str) -> NodeUse:
        return self._uses.setdefault(name, NodeUse())

    def _take(self, stream: MultiStream, name: str, item: Message | Reply, *, follow: bool) -> None:
        """Take what a node sent, or why it sends nothing more."""
        if isinstance(item, Message):
            if "end" in item.head:
                return  # the reply, which follows, has it
            item, ended = Reply(node=name, messages=(item,)), False
        else:
            ended = True
        answer = validated_answer(item, WatchAnswer)
        if not isinstance(answer, NodeError):
            self._know(name, answer)
            if ended:
                self._waiting.discard(name)
            self._add_newcomers(stream, answer.node.nodes, follow=follow)
            return
        if not ended:
            self._errors[name] = answer
            return
        if answer.answered and answer.state == "no-run":
            self._node_runs.pop(name, None)
            self._waiting.discard(name)
            return
        self._errors[name] = answer
        tries = self._tries[name] = self._tries.get(name, -1) + 1
        if follow and not answer.answered:
            after = BACKOFF[min(tries, len(BACKOFF) - 1)]
            stream.add(name, self._request(name, follow=True), after=after)
        else:
            self._waiting.discard(name)

    def _know(self, name: str, answer: WatchAnswer) -> None:
        before = self._node_runs.get(name)
        self._node_runs[name] = answer.node
        self._heard[name] = time.time()
        self._errors.pop(name, None)
        self._tries.pop(name, None)
        self._use(name).take(answer.samples)
        if before is None or (before.state, before.hung) != (answer.node.state, answer.node.hung):
            self._details.due = 0.0

    def _add_newcomers(self, stream: MultiStream, names: tuple[str, ...], *, follow: bool) -> None:
        if new := joined_later(self._cluster, names):
            self._cluster = self._cluster.with_nodes((*self._cluster.nodes, *new))
            for node in new:
                self._waiting.add(node.name)
                stream.add(node.name, self._request(node.name, follow=follow))

    def _alone(self) -> bool:
        """Tell whether only nodes that do not answer are left of a run that is over elsewhere."""
        if self._waiting - self._errors.keys() or not self._node_runs:
            return False
        return self.complete and not self.view().live


class _Details:
    """The checkpoint, the verdict and the first cause, which another thread looks for."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._found: RunStatus | None = None
        self._thread: threading.Thread | None = None
        self.due = 0.0

    def start(self) -> None:
        """Look for them if it is time, in a thread; a daemon: who leaves waits for no node."""
        now = time.monotonic()
        if now < self.due or (self._thread is not None and self._thread.is_alive()):
            return
        self.due = now + DETAILS_SECONDS
        # The view is made here: what the nodes tell meanwhile changes what it is made of.
        view = self._watcher.view()
        self._thread = threading.Thread(target=self.look, args=(view,), name="details", daemon=True)
        self._thread.start()

    def look(self, view: RunStatus) -> None:
        """Look for them now."""
        with contextlib.suppress(ClusterError):  # a node did not answer: with the next look
            self._found = self._watcher.details(view)

    def added_to(self, view: RunStatus) -> RunStatus:
        """Return a newer view with what was found."""
        known = self._found
        if known is None:
            return view
        bad = known.state == view.state
        return replace(
            view,
            command=known.command,
            checkpoints=known.checkpoints,
            checkpoint=known.checkpoint,
            first_cause=known.first_cause if bad else None,
            verdict=known.verdict if view.hung or not view.live else None,
        )
