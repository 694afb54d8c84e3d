"""What a launcher is to a plan: how it is called on a node, and what it sets for the ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchContext:
    """One node of a run, as its launcher must know it."""

    python: str
    node_rank: int
    nnodes: int
    first_rank: int
    procs: int
    world_size: int
    address: str
    master_address: str
    master_port: int
    args: tuple[str, ...]
    """The person's own arguments for the launcher."""
    log_dir: str
    """Folder on the node for the launcher's own files; empty: the launcher chooses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """How one engine starts the ranks of a node."""

    argv: Callable[[LaunchContext], tuple[str, ...]] | None
    """What stands before a rank's command; None: the supervisor starts the ranks."""
    environment: Callable[[LaunchContext], tuple[tuple[str, str | None], ...]]
    """What the ranks need to find each other; None: it differs from rank to rank."""
    restarts: Callable[[tuple[str, ...]], bool]
    """Whether it starts ranks again by itself, from the person's arguments."""
    needs_torch: bool
    """Its own program is part of torch."""
    limit_restarts: Callable[[int], tuple[str, ...]] | None
    """Its own argument for `--max-restarts`; None: it has none."""


def node_variables(context: LaunchContext) -> tuple[tuple[str, str | None], ...]:
    """Return the variables by which scripts know their node, the same under every launcher."""
    return (("NODE_RANK", str(context.node_rank)), ("NNODES", str(context.nnodes)))
