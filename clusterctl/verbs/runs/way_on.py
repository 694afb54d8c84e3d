"""The commands that bring a run's job back on other nodes than it had."""

import shlex
from collections.abc import Iterator

from clusterctl.inventory.cluster import Cluster
from clusterctl.inventory.ranges import fold_hosts
from clusterctl.inventory.secret_values import is_secret


def relaunch(run: str, cluster: Cluster, *picks: str, name: str = "", resumes: bool = True) -> str:
    """Return the command: a resume if the job names its checkpoints, else a launch as it was.

    Args:
        cluster: the run's nodes and job.
        *picks: the nodes, such as `--exclude gpu2`: of the run's own, not of all the inventory's.
        name: the user's name of the run.
        resumes: False: it is known to have no checkpoint.
    """
    if cluster.job.checkpoints and resumes:
        return shlex.join(("clusterctl", "resume", run, *picks, "--checkpoint", "latest"))
    if cluster.spares:  # else the last nodes that are left would stand by again
        picks = (*picks, "--spares", "0")
    if picks[0] == "--exclude" and cluster.left_out:
        left = [node.name for node in cluster.nodes if node.name not in picks[1].split(",")]
        picks = ("--nodes", fold_hosts(left)) if left else picks
    named = ("--name", name) if name else ()
    command = ("--", *cluster.job.command) if cluster.job.command else ()
    return shlex.join(("clusterctl", "launch", *picks, *named, *_flags(cluster), *command))


def _flags(cluster: Cluster) -> Iterator[str]:
    """Yield the flags that the run was launched with, but for those that choose nodes."""
    job, node, env = cluster.job, cluster.master, dict(cluster.job.env)
    values = {
        "launcher": job.launcher,
        "gpus": node.gpus_limit,
        "procs_per_node": job.procs_per_node,
        "workdir": node.workdir,
        "master_port": cluster.master_port,
        "max_time": job.max_time,
        "start_timeout": job.start_timeout,
        "lost_after": job.lost_after,
        "restarts": job.restart.max,
        "min_nodes": job.restart.min_nodes,
        "hang_after": job.hang.after,
        "hang_action": job.hang.action,
    }
    flags = [key for key, origin in cluster.origins if origin.startswith("--")]
    for key in flags:
        if values.get(key) is not None:
            yield from ("--" + key.replace("_", "-"), str(values[key]))
        elif key.startswith("env.") and key[4:] in env:
            name, value = key[4:], env[key[4:]]
            if not is_secret(name, value):  # a hint is shown, and sent to others
                yield from ("--env", f"{name}={value}")
    if {"launcher_args", "max_restarts"} & {*flags}:  # the second is one of the first by now
        yield f"--launcher-args={shlex.join(job.args)}"
    if "debug" in flags:
        yield "--debug"
