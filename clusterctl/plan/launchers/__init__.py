"""The launchers, one file each: how each one starts on a node."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

from clusterctl.errors import UsageError
from clusterctl.plan.launchers import accelerate, direct, ray, slurm, torchrun

if TYPE_CHECKING:
    from clusterctl.inventory.cluster import Job, Node
    from clusterctl.plan.launchers.interface import Launcher

LAUNCHERS: dict[str, Launcher] = {
    "accelerate": accelerate.ACCELERATE,
    "direct": direct.DIRECT,
    "ray": ray.RAY,
    "slurm": slurm.SLURM,
    "torchrun": torchrun.TORCHRUN,
}


def find_launcher(name: str) -> Launcher:
    """Return a launcher; raise UsageError if clusterctl does not support it."""
    try:
        return LAUNCHERS[name]
    except KeyError:
        raise UsageError(
            f"launcher: expected one of {', '.join(LAUNCHERS)}, found {name}",
            hint="clusterctl launch --launcher torchrun",
        ) from None


def launcher_file(job: Job, node: Node) -> str:
    """Return the path of the launcher's own configuration on a node; empty: it has none."""
    launcher = LAUNCHERS.get(job.launcher)
    if launcher is None or launcher.config_file is None:
        return ""
    name = launcher.config_file(job)
    return name if name.startswith(("/", "~")) else posixpath.join(node.workdir or "~", name)
