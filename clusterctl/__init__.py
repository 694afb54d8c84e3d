"""clusterctl takes a handful of GPU machines and SSH to a running multi-node PyTorch training.

The names of `__all__` are the Python API, beside the command. A use-case (`check`, `launch`, …) is
a generator of frozen events that returns its result; `drive` runs one to its end:

    cluster = clusterctl.load(Path("hosts.yaml"))
    with clusterctl.Pool(cluster) as pool:
        verdict = clusterctl.drive(clusterctl.check(cluster, pool, clusterctl.CheckOptions()))
    print(verdict.exit_code, verdict.findings)
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "CheckOptions": "verbs.check",
    "CheckResult": "verbs.check",
    "Cluster": "inventory.cluster",
    "ClusterError": "errors",
    "CouldNotTell": "errors",
    "Event": "verbs.events",
    "InventoryError": "errors",
    "Job": "inventory.cluster",
    "LaunchOptions": "verbs.launch",
    "LaunchRefused": "errors",
    "Node": "inventory.cluster",
    "Pool": "transport.pool",
    "Records": "verbs.records",
    "Reply": "transport.interface",
    "ResumeOptions": "verbs.resume",
    "Timeouts": "transport.interface",
    "UsageError": "errors",
    "check": "verbs.check",
    "drive": "verbs.events",
    "judge": "verbs.check",
    "launch": "verbs.launch",
    "load": "inventory",
    "plain": "wire",
    "resume": "verbs.resume",
    "runs": "verbs.runs",
    "select": "inventory",
    "status": "verbs.status",
    "stop": "verbs.stop",
    "sync": "verbs.sync",
}
"""Public name → the module that defines it, imported when the name is first used."""

__all__ = [  # noqa: PLE0604  (a literal, sorted, for people and type checkers)
    "__version__",
    *_HOMES,
]


def __getattr__(name: str) -> Any:  # noqa: ANN401  (whatever the name stands for)
    """Import a public name late, so that the command starts quickly."""
    if name not in _HOMES:
        raise AttributeError(f"module 'clusterctl' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"clusterctl.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
