"""Brings py-spy to the nodes of a run: with it they see by themselves that a rank only polls."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from clusterctl.errors import ClusterError
from clusterctl.inventory.ranges import fold_hosts
from clusterctl.transport.local_limits import start_thread
from clusterctl.verbs.events import Emit, Notice

if TYPE_CHECKING:
    from clusterctl.inventory.cluster import Cluster
    from clusterctl.verbs.rpc import Nodes

ANSWER_SECONDS = 60.0
"""How long a node may take: these are 3 MB, over any line."""
WAIT_SECONDS = 20.0
"""How long a launch that does not follow its run waits."""
_INSTALL = "here is no py-spy for Linux: install it next to the job's python on the nodes"


class PySpyBringer:
    """Brings it once, in the background; what fails never ends a run."""

    def __init__(self, nodes: Nodes, run: str) -> None:
        """Bring nothing yet."""
        self._nodes, self._run = nodes, run
        self._begun = False
        self._problems: dict[str, str] = {}
        """Node → why it has none."""

    def begin(self, cluster: Cluster) -> threading.Thread | None:
        """Begin, unless it has begun, or the job turns the watch for hangs off."""
        if self._begun or not cluster.job.hang.after:
            return None
        self._begun = True
        try:
            return start_thread(self._bring, cluster, name=f"py-spy {self._run}")
        except ClusterError as error:
            self._problems = {node.name: str(error) for node in cluster.nodes}
            return None

    def notices(self) -> Iterator[Notice]:
        """Yield, once, which nodes have none and why."""
        if not self._problems:
            return
        problems, self._problems = self._problems, {}
        from clusterctl.verbs.dump.own_py_spy import find_py_spy  # noqa: PLC0415  (imports much)

        hint = f"clusterctl dump {self._run}" if find_py_spy() else _INSTALL
        for why in dict.fromkeys(problems.values()):
            names = fold_hosts([name for name, words in problems.items() if words == why])
            text = f"{names}: {why}; without py-spy, a rank that polls while it waits seems alive"
            yield Notice(text=text, level="warning", hint=hint)

    def bring_now(self, cluster: Cluster, *, emit: Emit) -> None:
        """Bring it and wait, but not for long: for a run that is not followed."""
        thread = self.begin(cluster)
        if thread is not None:
            thread.join(WAIT_SECONDS)
            if thread.is_alive():
                late = f"not all had py-spy within {WAIT_SECONDS:g} s"
                self._problems = {node.name: late for node in cluster.nodes}
        for notice in self.notices():
            emit(notice)

    def _bring(self, cluster: Cluster) -> None:
        from clusterctl.verbs.dump.dump import send_py_spy  # noqa: PLC0415  (imports much)

        try:
            self._problems = send_py_spy(self._nodes, self._run, cluster, limit=ANSWER_SECONDS)
        except ClusterError as error:
            self._problems = {node.name: str(error) for node in cluster.nodes}
