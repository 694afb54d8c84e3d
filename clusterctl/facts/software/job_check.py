"""How the job's own check ended."""

from __future__ import annotations

from clusterctl.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """How `job.check` ended."""

    exit_code: int | None
    """None: it could not be started or did not end in time."""
    output: str = ""
    """Its last lines."""
    words: str = ""
    other_code: bool = False
    """It ran on other code than the folder here has, which a sync would bring."""
