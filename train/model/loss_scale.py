"""What losses are multiplied by in float16, so that small gradients do not become zero."""

from __future__ import annotations

from dataclasses import dataclass, replace

FIRST = 65536.0
EVERY = 2000
"""These, the factor 2 and the half are those of torch's GradScaler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossScale:
    """The factor of the next step, the same on all ranks; each step gives another one."""

    factor: float = FIRST
    steady: int = 0
    """Steps in a row whose gradients were finite, since the factor changed."""
    skipped: int = 0
    """Steps without an update, because gradients were too large for float16."""

    def after(self, *, finite: bool) -> LossScale:
        """Return that of the step after one with finite gradients, or with others."""
        if not finite:
            return LossScale(factor=self.factor / 2, skipped=self.skipped + 1)
        if self.steady + 1 == EVERY:
            return LossScale(factor=self.factor * 2, skipped=self.skipped)
        return replace(self, steady=self.steady + 1)
