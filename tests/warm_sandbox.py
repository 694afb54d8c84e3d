"""A sandbox on which `run` forks clusterctl instead of starting Python for it: see `warm`."""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from clusterctl.sandbox.netns import Netns
from clusterctl.sandbox.sandbox import Sandbox
from clusterctl.values import dataclass
from tests import warm
from tests.installed import LOCATION

ROOT = Path(__file__).parents[1]
OF_THIS_VERSION = (None, str(ROOT), str(LOCATION))
"""With any other PYTHONPATH it is another clusterctl."""
START = [sys.executable, "-m", "clusterctl"]
READ_AT_START = ("LANG", "LC_", "LD_", "PYTHON")
"""Variables that a running process does not read again begin so."""
FORKS = warm.Warm([sys.executable, warm.__file__], {**os.environ, "PYTHONPATH": str(LOCATION)})
atexit.register(FORKS.close)


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmSandbox(Sandbox):
    """A sandbox for which a process forks that is there for all of them."""

    @classmethod
    def of(cls, started: Sandbox) -> WarmSandbox:
        """Return a sandbox as one of these."""
        same = {each.name: getattr(started, each.name) for each in fields(started)}
        return cls(**same)

    def run(
        self,
        argv: Sequence[str],
        *,
        env: dict[str, str] | None = None,
        cwd: str | Path | None = None,
        **options: Any,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the controller's side, as a sandbox does."""
        environment = self.environment() | (env or {})
        ours = [*argv[: len(START)]] == START and options.keys() <= {"timeout"}
        if not ours or read_at_start(environment) != read_at_start(FORKS.environment):
            return Sandbox.run(self, argv, env=env, cwd=cwd, **options)
        folder, seconds = Path(cwd or Path.cwd()), options.get("timeout")
        inside = self.backend._controller_pid() if isinstance(self.backend, Netns) else None
        return FORKS.run(argv[len(START) :], environment, folder, seconds, inside=inside)


def read_at_start(environment: Mapping[str, str]) -> dict[str, str | None]:
    """Return what decides how Python starts; the places of this clusterctl are one."""
    found = {name: environment[name] for name in environment if name.startswith(READ_AT_START)}
    place = found.pop("PYTHONPATH", None)
    return {**found, "PYTHONPATH": None if place in OF_THIS_VERSION else place}
