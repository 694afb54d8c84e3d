"""Which of the runs `clusterctl runs` lists."""

from __future__ import annotations

import time
from dataclasses import replace

from clusterctl.errors import UsageError
from clusterctl.inventory.ranges import BadRange, expand_hosts
from clusterctl.values import dataclass
from clusterctl.verbs.moment import moment
from clusterctl.verbs.runs.list_runs import ListedRun, RunList
from clusterctl.verbs.runs.run_status import LIVE

BAD = frozenset({"failed", "lost"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Conditions, of which all must hold; None and false: any run."""

    since: str | None = None
    """It began, or was still running, since then."""
    name: str | None = None
    """This is its name, or a part of it."""
    nodes: str | None = None
    """It ran on one of these nodes: names and ranges."""
    failed: bool = False
    """It failed, was lost, or its launch was refused."""

    def pick(self, listed: RunList) -> RunList:
        """Return the list without other runs.

        Raises:
            UsageError: a condition cannot be read.
        """
        since = None if self.since is None else moment(self.since, time.time())
        try:
            nodes = None if self.nodes is None else frozenset(expand_hosts(self.nodes))
        except BadRange as error:
            raise UsageError(f"--nodes: {error}") from error

        def picks(run: ListedRun) -> bool:
            return (
                (since is None or run.state in LIVE or (run.ended or run.began or 0.0) >= since)
                and (self.name is None or self.name in run.name)
                and (nodes is None or not nodes.isdisjoint(run.nodes))
                and (not self.failed or run.state in BAD)
            )

        return replace(listed, runs=tuple(filter(picks, listed.runs)))
