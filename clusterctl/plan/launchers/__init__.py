"""The launchers, one file each: how each one starts on a node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.errors import UsageError
from clusterctl.plan.launchers import direct, torchrun

if TYPE_CHECKING:
    from clusterctl.plan.launchers.interface import Launcher

LAUNCHERS: dict[str, Launcher] = {
    "direct": direct.DIRECT,
    "torchrun": torchrun.TORCHRUN,
}


def find_launcher(name: str) -> Launcher:
    """Return a launcher; raise UsageError if clusterctl does not support it."""
    try:
        return LAUNCHERS[name]
    except KeyError:
        raise UsageError(
            f"launcher: expected one of {', '.join(LAUNCHERS)}, found {name}",
            hint="clusterctl launch --launcher torchrun",
        ) from None
