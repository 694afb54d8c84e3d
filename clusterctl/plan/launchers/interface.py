"""The interface of a launcher: its command on a node, and the variables of the ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchContext:
    """What a launcher must know about one node of a run."""

    python: str
    node_rank: int
    nnodes: int
    procs: int
    world_size: int
    address: str
    master_address: str
    master_port: int
    args: tuple[str, ...]
    """The user's own arguments for the launcher."""
    log_dir: str
    """Folder on the node for the launcher's own files; empty: the launcher or the job chooses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """How one launcher starts the ranks of a node."""

    argv: Callable[[LaunchContext], tuple[str, ...]] | None
    """What stands before a rank's command; None: the supervisor starts the ranks."""
    environment: Callable[[LaunchContext], tuple[tuple[str, str | None], ...]]
    """The variables for the rendezvous; None: the value differs between ranks."""
    restarts: Callable[[tuple[str, ...]], bool]
    """Whether it starts ranks again by itself, from the person's arguments."""
    needs_torch: bool
    """Its own program is part of torch."""
    limit_restarts: Callable[[int], tuple[str, ...]] | None
    """Its own argument for `--max-restarts`; None: it has none."""


def node_variables(context: LaunchContext) -> tuple[tuple[str, str | None], ...]:
    """Return the variables that identify the node, equal for every launcher."""
    return (("NODE_RANK", str(context.node_rank)), ("NNODES", str(context.nnodes)))
