"""The interface of a launcher: its command on a node, and the variables of the ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from clusterctl.inventory.cluster import Job
from clusterctl.node.launchers.context import (
    LaunchContext,
    Variables,
    argument,
    node_variables,
    rendezvous_variables,
)
from clusterctl.values import dataclass

__all__ = [
    "ConfigProblem", "LaunchContext", "Launcher", "Variables", "allows_restarts", "argument",
    "limit_restarts", "node_variables", "rendezvous_variables",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """How one launcher starts the ranks of a node."""

    argv: Callable[[LaunchContext], tuple[str, ...]] | None
    """What stands before a rank's command; None or empty: the supervisor starts the ranks."""
    environment: Callable[[LaunchContext], Variables]
    """The variables for the rendezvous; None: the value differs between ranks."""
    packages: tuple[str, ...] = ()
    """The Python packages that it is part of; every node needs them, in one version."""
    restarts: Callable[[tuple[str, ...]], bool] = lambda args: False  # noqa: ARG005
    """Whether it starts ranks again by itself, from the person's arguments."""
    limit_restarts: Callable[[int], tuple[str, ...]] | None = None
    """Its own argument for `--max-restarts`; None: it has none."""
    elastic: Callable[[tuple[str, ...]], tuple[int, int] | None] = lambda args: None  # noqa: ARG005
    """The fewest and the most nodes with which it continues; None: it needs all of them."""
    equal_nodes: bool = False
    """It starts the same number of ranks on every node."""
    config_file: Callable[[Job], str] | None = None
    """The path of its own configuration on a node, from workdir or `~`; None: it has none."""
    config_problems: (
        Callable[[Mapping[str, str], int, int, str], tuple[ConfigProblem, ...]] | None
    ) = None
    """What in that file's settings does not fit the numbers of nodes and ranks, and the device."""
    defaults: tuple[tuple[str, str, str], ...] = ()
    """Variables that the node's environment and the job may override: name, value, why."""
    program: str = ""
    """The function of a node's agent that starts `argv` and the command; empty: the supervisor."""
    one_driver: bool = False
    """The command runs once, on the master, and uses the other nodes through the launcher.

    What it starts there does not report to clusterctl.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigProblem:
    """A setting of the launcher's own file that does not match the plan."""

    name: str
    found: str
    wanted: str
    message: str
    fatal: bool = False
    """The run cannot start with it; else the plan's value is used."""
    wish: str = ""
    """What to do if the file is right and the plan is not."""


def allows_restarts(args: tuple[str, ...]) -> bool:
    """Tell whether `--max-restarts` in the arguments lets torch's agent restart ranks."""
    value = argument(args, "--max-restarts")
    return value.isdigit() and int(value) > 0


def limit_restarts(count: int) -> tuple[str, ...]:
    """Return the argument of torch's agent for this number of restarts."""
    return (f"--max-restarts={count}",)
