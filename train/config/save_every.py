"""How often a training writes a checkpoint."""

import dataclasses
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveEvery:
    """How often a checkpoint is written; 0 is never, and whichever comes first counts."""

    steps: int = 0
    epochs: int = 0
    minutes: float = 0.0

    def words(self) -> str:
        """Return it as a line says it."""
        units = dataclasses.asdict(self).items()
        parts = [f"{n:g} {unit}" if n != 1 else unit.removesuffix("s") for unit, n in units if n]
        return f"a checkpoint every {' or '.join(parts)}" if parts else "a checkpoint at the end"
