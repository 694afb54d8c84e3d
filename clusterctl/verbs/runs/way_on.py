"""The commands that bring a run's job back on other nodes than it had."""

from __future__ import annotations

import shlex

from clusterctl.inventory.cluster import Cluster


def relaunch(run: str, cluster: Cluster, *picks: str) -> str:
    """Return the command: a resume if the job names its checkpoints, else a launch.

    Args:
        run: its id.
        cluster: the run's nodes and job.
        *picks: the nodes, such as `--exclude gpu2`.
    """
    if cluster.job.checkpoints:
        return shlex.join(("clusterctl", "resume", run, *picks, "--checkpoint", "latest"))
    command = ("--", *cluster.job.command) if cluster.job.command else ()
    return shlex.join(("clusterctl", "launch", *picks, *command))
