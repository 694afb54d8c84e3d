"""The arithmetic of a step: samples per device, ranks, accumulation, and what they come to."""

from __future__ import annotations

from dataclasses import dataclass

from train.config.config import Config
from train.errors import ConfigError, counted


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSize:
    """How many samples a step takes, and how they fall on ranks and forward passes."""

    per_device: int
    accumulation: int
    world_size: int
    """Ranks with rows of their own, or groups of ranks that share theirs."""
    total: int
    """Samples in a step: the global batch size."""
    context: int = 1
    """Ranks of a group."""

    @property
    def empty(self) -> int:
        """Places in a step that stay empty because the numbers do not divide."""
        return self.per_device * self.accumulation * self.world_size - self.total

    def words(self) -> str:
        """Return the arithmetic as a line."""
        ranks = counted(self.world_size, "rank")
        if self.context > 1:
            ranks = f"{counted(self.world_size, 'group')} of {self.context} ranks"
        line = f"{self.per_device} per device x {ranks} x {self.accumulation} accumulation"
        rest = f" ({self.empty} places of a step stay empty)" if self.empty else ""
        return f"{line} = {self.total + self.empty}, global batch {self.total}{rest}"


def batch_size(config: Config, world_size: int) -> BatchSize:
    """Return the step's arithmetic on so many ranks.

    A global batch is kept on any number of ranks: if it does not divide, the last forward
    pass of some ranks has empty places, which weigh nothing.
    """
    each, total = config.per_device_train_batch_size, config.global_batch_size
    context = config.context_parallel
    if world_size % context:
        raise ConfigError(
            f"context_parallel: expected a divisor of {counted(world_size, 'rank')}, "
            f"found {context}",
            hint=f"start a multiple of {context} ranks, or --set context_parallel=1",
        )
    world_size //= context
    steps, once = config.gradient_accumulation_steps, each * world_size
    needed = (steps or 1) if total is None else -(-total // once)
    if total is None:
        total = once * needed
    elif total < world_size:
        raise ConfigError(
            f"global_batch_size: expected {world_size} or more (1 a rank), found {total}",
            hint=f"fewer ranks, or --set global_batch_size={world_size}",
        )
    elif steps is not None and steps != needed:
        found = (
            f"global_batch_size: expected {total}, found per_device_train_batch_size {each} x "
            f"{world_size} ranks x gradient_accumulation_steps {steps} = {once * steps}"
        )
        raise ConfigError(
            found,
            hint=f"leave gradient_accumulation_steps out (it becomes {needed}), "
            f"or --set global_batch_size={once * steps}",
        )
    return BatchSize(
        per_device=each,
        accumulation=needed,
        world_size=world_size,
        total=total,
        context=context,
    )
