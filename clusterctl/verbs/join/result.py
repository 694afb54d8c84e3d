"""Which nodes joined a run, and why others did not."""

from typing import Any, Literal

from clusterctl.values import dataclass
from clusterctl.wire import SCHEMA, plain

JoinState = Literal["joined", "refused", "unreachable"]
JOINED, REFUSED, UNREACHABLE = 0, 1, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeJoin:
    """Whether one node joined."""

    node: str
    state: JoinState
    """joined: its part of the run is started, and the run's master has heard it."""
    standby: bool = False
    """It stands by; false: it gets ranks at the next rendezvous."""
    message: str = ""
    """Why it did not."""
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinResult:
    """Which nodes joined a run."""

    run: str
    nodes: tuple[NodeJoin, ...]

    @property
    def exit_code(self) -> int:
        """0 all joined; 1 a node was refused; 3 a node did not answer."""
        states = {node.state for node in self.nodes}
        if "refused" in states:
            return REFUSED
        return UNREACHABLE if "unreachable" in states else JOINED

    def document(self) -> dict[str, Any]:
        """Return it as the JSON that `join --json` prints."""
        return {"schema": SCHEMA, **plain(self)}
