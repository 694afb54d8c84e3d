"""Why a run stands still."""

from __future__ import annotations

from typing import Literal

from clusterctl.model.dump import Frame
from clusterctl.model.from_json import Rank, Seconds
from clusterctl.values import dataclass

HangKind = Literal[
    "stopped", "ended", "storage", "network", "lock", "data-loader", "swap", "absent", "shape",
    "order", "launches", "unreached", "node", "elsewhere", "slow", "together", "unknown",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What one look at all ranks says."""

    kind: HangKind
    """`absent`: by the flight recorder, these ranks did not enter a collective; `launches`: by
    NCCL's count, they launched fewer; `unreached`: NCCL does not reach them; `elsewhere`: they do
    something else while the others wait; `together`: all wait at one place; `slow`: all are
    busy."""
    ranks: tuple[Rank, ...] = ()
    """For which the others wait."""
    nodes: tuple[str, ...] = ()
    """Of these ranks; of a network that lets nothing through, both ends."""
    where: Frame | None = None
    """The line of the user's own code, of the first of these ranks."""
    since_s: Seconds | None = None
    """How long they have shown no sign of life."""
    text: str
    """One sentence."""
    remedy: str = ""
