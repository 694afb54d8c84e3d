"""Who this process is among the others, as the launcher's environment tells it; without torch."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class NodesDiffer(Exception):  # noqa: N818  (named for what is so)
    """What must be the same on every rank is not."""


class NoPlace(Exception):  # noqa: N818  (as above)
    """The environment does not say which rank this process is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A process's place among the ranks, as the launcher's environment tells it."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    node_rank: int = 0
    nodes: int = 1
    launched: bool = False
    """Whether a launcher set the variables; without them this is a single process."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Place:
        """Read torchrun's variables, or those that guides set by hand.

        Raises:
            NoPlace: Some of them are there and others, that nothing can stand in for, are not.
        """
        if "RANK" not in environment and "WORLD_SIZE" not in environment:
            return cls()
        names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        missing = [name for name in names if name not in environment]
        if missing:
            message = (
                f"{', '.join(missing)}: wanted beside the other distributed variables, found unset"
                "\nhint: start with clusterctl launch or torchrun, or unset RANK and WORLD_SIZE"
            )
            raise NoPlace(message)

        def number(default: int, *keys: str) -> int:
            key = next((key for key in keys if key in environment), None)
            if key is None:
                return default
            try:
                return int(environment[key])
            except ValueError:
                message = f"{key}: wanted a whole number, found {environment[key]!r}"
                raise NoPlace(
                    f"{message}\nhint: start with clusterctl launch or torchrun"
                ) from None

        rank, world_size = number(0, "RANK"), number(1, "WORLD_SIZE")
        local_world_size = number(1, "LOCAL_WORLD_SIZE")
        return cls(
            rank=rank,
            world_size=world_size,
            local_rank=number(rank % local_world_size, "LOCAL_RANK"),
            local_world_size=local_world_size,
            node_rank=number(rank // local_world_size, "GROUP_RANK", "NODE_RANK"),
            nodes=number(
                max(1, world_size // local_world_size), "GROUP_WORLD_SIZE", "NNODES", "NUM_NODES"
            ),
            launched=True,
        )
