"""How a run is at a moment: what `top` shows, and prints as JSON."""

from __future__ import annotations

from typing import Any

from clusterctl.logs.progress_line import JobProgress
from clusterctl.values import dataclass
from clusterctl.verbs.runs.run_state import NodeAnswer
from clusterctl.verbs.runs.run_status import RunStatus
from clusterctl.verbs.top.use import NodeNow
from clusterctl.wire import SCHEMA, plain


@dataclass(frozen=True, slots=True, kw_only=True)
class TopNode:
    """A node of the run."""

    answer: NodeAnswer
    now: NodeNow | None = None
    """None: it has sent no sample yet, or does not answer."""
    asked: bool = False
    """It has not answered yet."""

    @property
    def state(self) -> str:
        """The state of its part, as `status` has it; `asked` until it has answered."""
        return "asked" if self.asked else self.answer.state


@dataclass(frozen=True, slots=True, kw_only=True)
class Top:
    """A run at a moment."""

    time: float
    status: RunStatus
    """As `status` has it; the checkpoint, the verdict and the first cause may be older."""
    nodes: tuple[TopNode, ...]
    """In launch order."""
    progress: JobProgress | None = None
    printed_age_s: float | None = None
    """Seconds since the last output of any rank; None: there was none."""
    lines: tuple[str, ...] = ()
    """The last lines of the log that was written last."""
    lines_of: str = ""
    """Whose these are: `node:rank`."""

    @property
    def state(self) -> str:
        """The run's state; `asked` until a node has answered."""
        asked = bool(self.nodes) and all(one.asked for one in self.nodes)
        return "asked" if asked else self.status.state

    @property
    def checkpoint_age_s(self) -> float | None:
        """Seconds since the last complete checkpoint was written; None: none is known."""
        one = self.status.checkpoint
        return None if one is None or one.time is None else max(0.0, self.time - one.time)

    def document(self) -> dict[str, Any]:
        """Return it as `top --json` prints it."""
        view = self.status
        return {
            "schema": SCHEMA,
            "run": view.run,
            "cluster": view.cluster,
            "name": view.name or None,
            "time": self.time,
            "state": self.state,
            "progress": plain(self.progress),
            "printed_age_s": self.printed_age_s,
            "lines": list(self.lines),
            "checkpoint": plain(view.checkpoint),
            "checkpoint_age_s": self.checkpoint_age_s,
            "slurm": plain(view.slurm),
            "hung": plain(view.hung),
            "verdict": plain(view.verdict),
            "stragglers": [{**plain(one), "node": node} for node, one in view.stragglers],
            "fell": [{**plain(one), "node": node} for node, one in view.fell],
            "nodes": [
                {
                    "node": one.answer.node.name,
                    "state": one.state,
                    "message": str(one.answer.error) if one.answer.error else "",
                    "use": plain(one.now),
                }
                for one in self.nodes
            ],
        }
