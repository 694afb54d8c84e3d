"""The launchers that a node can plan with by itself: the words and variables of each."""

from __future__ import annotations

from typing import Callable, Dict, Tuple

from clusterctl.node.launchers import accelerate, direct, torchrun
from clusterctl.node.launchers.context import LaunchContext, Variables

_ARGV: Dict[str, Callable[[LaunchContext], Tuple[str, ...]]] = {
    "accelerate": accelerate.argv,
    "torchrun": torchrun.argv,
}
_ENVIRONMENT: Dict[str, Callable[[LaunchContext], Variables]] = {
    "accelerate": accelerate.environment,
    "direct": direct.environment,
    "torchrun": torchrun.environment,
}
REPLANNED = frozenset(_ENVIRONMENT)
"""The launchers of runs that may continue on other nodes."""


def launcher_argv(launcher: str, context: LaunchContext) -> Tuple[str, ...]:
    """Return the launcher's command on a node; empty: the supervisor starts the ranks."""
    argv = _ARGV.get(launcher)
    return argv(context) if argv else ()


def launcher_variables(launcher: str, context: LaunchContext) -> Dict[str, str]:
    """Return the variables that the launcher sets, without those that differ between ranks."""
    found = _ENVIRONMENT[launcher](context)
    return {name: value for name, value in found if value is not None}
