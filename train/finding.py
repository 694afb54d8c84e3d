"""What one check of `python -m train --check` found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from train.errors import ConfigError, LauncherEnvError

State = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    about: str
    said: str
    state: State = "ok"


def refused(about: str, error: ConfigError | LauncherEnvError) -> Finding:
    """Return what the training would be refused with."""
    problems, _, hint = str(error).partition("\nhint: ")
    said = "; ".join(problems.splitlines()) + (f" (hint: {hint})" if hint else "")
    return Finding(about, said, "fail")
