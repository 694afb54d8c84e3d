"""The nodes of a run as its master counts them: there, lost, or about to join."""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Set, Tuple

from clusterctl.node.run.files.node_job import NodeJob


class Refusal(NamedTuple):
    """Why a node cannot join: a kind of error, and a sentence."""

    kind: str
    message: str


class Members:
    """Counts the nodes of a run; only the master's supervisor uses it."""

    def __init__(self, job: NodeJob) -> None:
        """Start with the nodes of the launch."""
        elastic, master = job.get("elastic"), job["node_rank"] == 0
        self._least = job.get("min_nodes", 0)
        self._most = elastic["max_nodes"] if elastic and master else 0
        self._numbers: Dict[str, int] = {job["master"]["node"]: 0}
        for worker in job["workers"]:
            self._numbers[worker] = len(self._numbers)
        self._next = len(self._numbers)
        """The number that no node has had."""
        self._left: Set[str] = set()
        """Nodes that are not there: lost, or not there yet."""
        self._joining: Dict[str, bool] = {}
        """Nodes that were let in and have not come yet; True: they were never part of the run."""

    @property
    def nodes(self) -> List[str]:
        """All nodes that are or were part of the run, the master first."""
        return list(self._numbers)

    def _present(self) -> int:
        return len(self._numbers) - len(self._left)

    def leave(self, node: str) -> bool:
        """Count a node as lost; tell whether an elastic run has enough nodes left."""
        if not self._least:
            return False
        self._joining.pop(node, None)
        self._left.add(node)
        return self._present() >= self._least

    def has_left(self, node: str) -> bool:
        """Tell whether a node is lost, or not there yet."""
        return node in self._left

    def refusal(self, node: str) -> Tuple[Refusal, ...]:
        """Return why a node cannot join now; nothing if it can."""
        if not self._least or not self._most:
            return (Refusal("not-elastic", "the run is not elastic, so no node can join it"),)
        if node in self._numbers and node not in self._left:
            return (Refusal("joined", "the node is part of the run already"),)
        others = self._joining.keys() - {node}
        if self._present() + len(others) >= self._most:
            message = "the run is full: it has %d of %d nodes"
            return (Refusal("full", message % (self._present() + len(others), self._most)),)
        return ()

    def admit(self, node: str) -> int:
        """Let a node in that `refusal` allows; return its number."""
        if node not in self._joining:
            self._joining[node] = node not in self._numbers
        if node not in self._numbers:
            self._numbers[node] = self._next
            self._next += 1
        self._left.add(node)
        return self._numbers[node]

    def arrive(self, node: str) -> None:
        """Count a node that was let in as there."""
        if self._joining.pop(node, None) is not None:
            self._left.discard(node)

    def withdraw(self, node: str) -> bool:
        """Expect a node no longer that was let in; False: it was not, or it has come."""
        new = self._joining.pop(node, None)
        if new:
            del self._numbers[node]
            self._left.discard(node)
        return new is not None
