"""clusterctl takes a handful of GPU machines and SSH to a running multi-node PyTorch training.

The Python API, next to the command:

    with clusterctl.Session("hosts.yaml") as session:
        run = session.launch(["train.py", "--lr", "1e-4"])
        for line in run.logs(follow=True):
            print(line)
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from clusterctl.api.flags import LaunchFlags
    from clusterctl.api.report import CheckReport
    from clusterctl.api.run import LogLine, Run
    from clusterctl.api.session import Session
    from clusterctl.errors import (
        ClusterError,
        CouldNotTell,
        FunctionFailed,
        Interrupted,
        InventoryError,
        LaunchRefused,
        NotEnded,
        SyncRefused,
        UsageError,
    )
    from clusterctl.verbs.events import Event

__version__ = "0.1.0"

__all__ = [
    "CheckReport",
    "ClusterError",
    "CouldNotTell",
    "Event",
    "FunctionFailed",
    "Interrupted",
    "InventoryError",
    "LaunchFlags",
    "LaunchRefused",
    "LogLine",
    "NotEnded",
    "Run",
    "Session",
    "SyncRefused",
    "UsageError",
    "__version__",
]


_HOMES = {
    "CheckReport": "api.report",
    "Event": "verbs.events",
    "LaunchFlags": "api.flags",
    "LogLine": "api.run",
    "Run": "api.run",
    "Session": "api.session",
}
"""Public name → the module that defines it; the others are errors."""

if not TYPE_CHECKING:  # a type checker would take any name for public

    def __getattr__(name: str) -> object:
        """Import a public name when it is first used, so that the command starts quickly."""
        if name not in __all__:
            raise AttributeError(f"module 'clusterctl' has no attribute {name!r}")
        home = _HOMES.get(name, "errors")
        value: object = getattr(importlib.import_module(f"clusterctl.{home}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """Return the public names, also those that were not imported yet."""
    return list(__all__)
