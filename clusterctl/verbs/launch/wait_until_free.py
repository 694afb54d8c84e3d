"""Launch as soon as the nodes are free: wait for other runs, and for processes on their GPUs.

There is no queue: of several launches that wait, the first to take the nodes' locks starts, and the
others wait again. While it waits, a launch holds nothing on any node.
"""

import random
import re
import time
from collections.abc import Iterable, Iterator, Mapping

from clusterctl.checks.finding import Finding
from clusterctl.checks.registry import SSH
from clusterctl.errors import Interrupted, LaunchRefused
from clusterctl.inventory.cluster import Cluster
from clusterctl.plan.plan import Plan
from clusterctl.transport.pool import Pool
from clusterctl.verbs.events import Emit, Event, Waiting, ignore
from clusterctl.verbs.launch.launch import NOT_STARTED, Checked, begin, prepare, ready, refuse
from clusterctl.verbs.launch.options import LaunchOptions
from clusterctl.verbs.preflight.check import CheckOptions, judge
from clusterctl.verbs.preflight.collect_facts import FactsSession, collect_facts
from clusterctl.verbs.runs.records import Records, RunRecord

LOCK, GPUS = "node.busy", "accelerator.busy"
"""The checks that find others on a node: their runs, and processes on its GPUs."""
PORT, MOST_PORTS = "network.master-port", 3
"""What another run has, too, or the check of another launch that waits, for a moment. So often it
may be taken although no one uses the node."""
POLL_SECONDS = 5.0
"""Between two looks. Launches that wait for the same nodes look at different moments."""
_FACTS = frozenset({"lock", "sharing", "gpus"})
_NO_NEWS = re.compile(r"up to \d+ MiB by |\(.*\)")
"""What changes while the same run or process is there: memory, and the command of an attempt."""


def launch_when_free(
    cluster: Cluster, pool: Pool, records: Records, options: LaunchOptions, *, emit: Emit
) -> tuple[Plan, RunRecord]:
    """Bring a run up on every node as soon as no one else uses the nodes.

    What else is wrong with them refuses the launch at once. Arguments and result as of `launch`.

    Raises:
        LaunchRefused: it was not started, or was ended again, and why; `busy`: nodes were not free
            in time.
        Interrupted: the person ended it before it was up.
        UsageError: the job or the options cannot be launched.
    """
    wait = _Wait(pool, options, emit)
    try:
        while True:
            ready(cluster, records)
            chosen, plan, verdict = prepare(cluster, pool, options, emit=wait.tell)
            busy = wait.others(verdict.findings) or wait.port_taken(verdict.blocking)
            allowed = (LOCK, PORT) if busy else (LOCK,)
            if not options.force:
                refuse([each for each in verdict.blocking if each.check not in allowed], verdict)
            if not busy:
                try:
                    return begin(chosen, pool, records, plan, verdict, options, emit=emit)
                except LaunchRefused as refused:
                    if refused.by not in {"busy", "sync"}:
                        raise
                    # Another one was quicker; nothing of this attempt is worth a record.
                    records.remove(chosen.name, plan.run)
                    busy = wait.look(chosen)
                    if refused.by == "sync" and not busy:
                        raise
                    busy = busy or {chosen.master.name: str(refused)}
            wait.until_free(chosen, busy)
    except KeyboardInterrupt:
        raise Interrupted(NOT_STARTED) from None


class _Wait:
    """Waits once, and again if another launch was quicker."""

    def __init__(self, pool: Pool, options: LaunchOptions, emit: Emit) -> None:
        self._pool, self._emit = pool, emit
        self._limit, self._began = options.wait, time.monotonic()
        # With --no-check, only what the nodes refuse themselves counts.
        self._checks = (LOCK, GPUS) if options.check and not options.force else (LOCK,)
        self._told = ""
        self._ports = 0

    def tell(self, event: Event) -> None:
        """Pass on an event; of nodes that are only busy, `Waiting` tells more than the check."""
        blocking = event.verdict.blocking if isinstance(event, Checked) else ()
        if not blocking or any(each.check not in (LOCK, PORT) for each in blocking):
            self._emit(event)

    def others(self, findings: Iterable[Finding]) -> dict[str, str]:
        """Return by node who uses it."""
        return dict(self._others(findings))

    def _others(self, findings: Iterable[Finding]) -> Iterator[tuple[str, str]]:
        for each in findings:
            if each.check in self._checks and each.status in {"fail", "warn"}:
                what = each.found if each.check == LOCK else f"{each.message}, {each.found}"
                yield from ((node, what) for node in each.nodes)
            elif each.check == SSH and each.status == "fail":
                yield from ((node, f"it does not answer: {each.message}") for node in each.nodes)

    def port_taken(self, findings: Iterable[Finding]) -> dict[str, str]:
        """Return by node that the port of the rendezvous is taken, unless that was so too often."""
        taken = {
            node: each.message for each in findings if each.check == PORT for node in each.nodes
        }
        self._ports += bool(taken)
        return taken if self._ports <= MOST_PORTS else {}

    def look(self, cluster: Cluster) -> dict[str, str]:
        """Ask the nodes who uses them, and nothing else: others work there."""
        session = FactsSession(cluster=cluster, only=_FACTS)
        facts = collect_facts(session, self._pool, emit=ignore)
        session.finish()
        return self.others(judge(cluster, facts, CheckOptions(only=self._checks)).findings)

    def until_free(self, cluster: Cluster, busy: dict[str, str]) -> None:
        """Look now and then until no one uses the nodes; tell whom it waits for when it changes."""
        while busy:
            self._tell(busy)
            left = self._limit - self._waited
            if left <= 0:
                lines = [f"{node}: {what}" for node, what in busy.items()]
                raise LaunchRefused(
                    f"not launched: not free within {self._limit:g} s:\n" + "\n".join(lines),
                    hint="wait longer: --wait 12h; other nodes: --nodes or --exclude",
                    by="busy",
                )
            time.sleep(min(left, POLL_SECONDS * random.uniform(0.8, 1.2)))  # noqa: S311
            busy = self.look(cluster)
        self._tell(busy)

    @property
    def _waited(self) -> float:
        return time.monotonic() - self._began

    def _tell(self, busy: Mapping[str, str]) -> None:
        news = repr([(node, _NO_NEWS.sub("", what)) for node, what in sorted(busy.items())])
        if news != self._told:
            self._told = news
            waited = round(self._waited, 1)
            self._emit(Waiting(nodes=busy, waited_s=waited, limit_s=self._limit))
