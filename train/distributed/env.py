"""Who this process is among the others, as the launcher's environment tells it; without torch."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from train.errors import LauncherEnvError

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnv:
    """This process among the ranks, as the launcher's environment says."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    node_rank: int = 0
    nodes: int = 1
    launched: bool = False
    """Whether a launcher set the variables; without them this is a single process."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> RankEnv:
        """Read torchrun's variables, or those that guides set by hand.

        Raises:
            NoPlace: Some of them are there and others, that nothing can stand in for, are not; or
                one is no such number.
        """
        if "RANK" not in environment and "WORLD_SIZE" not in environment:
            return cls()
        names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        missing = [name for name in names if name not in environment]
        if missing:
            message = (
                f"{', '.join(missing)}: expected with the other distributed variables, found unset"
                "\nhint: start with clusterctl launch or torchrun, or unset RANK and WORLD_SIZE"
            )
            raise LauncherEnvError(message)

        def number(default: int, *keys: str, least: int = 0) -> int:
            key = next((key for key in keys if key in environment), None)
            if key is None:
                return default
            text = environment[key]
            found = int(text) if re.fullmatch(r"\d{1,9}", text, re.ASCII) else -1
            if found < least:
                message = f"{key}: expected a whole number from {least} on, found {text!r}"
                raise LauncherEnvError(f"{message}\nhint: start with clusterctl launch or torchrun")
            return found

        rank, world_size = number(0, "RANK"), number(1, "WORLD_SIZE", least=1)
        local_world_size = number(1, "LOCAL_WORLD_SIZE", least=1)
        if rank >= world_size:
            message = f"RANK: expected one below WORLD_SIZE, which is {world_size}, found {rank}"
            raise LauncherEnvError(f"{message}\nhint: ranks are counted from 0")
        return cls(
            rank=rank,
            world_size=world_size,
            local_rank=number(rank % local_world_size, "LOCAL_RANK"),
            local_world_size=local_world_size,
            node_rank=number(rank // local_world_size, "GROUP_RANK", "NODE_RANK"),
            nodes=number(
                max(1, world_size // local_world_size),
                "GROUP_WORLD_SIZE",
                "NNODES",
                "NUM_NODES",
                least=1,
            ),
            launched=True,
        )
