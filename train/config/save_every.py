"""How often a checkpoint is written."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveEvery:
    """How often a checkpoint is written; 0 is never, and whichever comes first counts."""

    steps: int = 0
    epochs: int = 0
    minutes: float = 0.0

    def words(self) -> str:
        """Return it as a line says it."""
        parts = [
            f"{number:g} {unit}" if number != 1 else unit.removesuffix("s")
            for number, unit in (
                (self.steps, "steps"), (self.epochs, "epochs"), (self.minutes, "minutes"),
            )
            if number
        ]  # fmt: skip
        return f"a checkpoint every {' or '.join(parts)}" if parts else "a checkpoint at the end"
