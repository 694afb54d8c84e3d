"""What a launcher must know about one node, and the variables that follow from it. Pure.

The controller plans a run with these functions; a supervisor plans the next attempt with them when
the run continues on other nodes.
"""

from __future__ import annotations

from typing import Mapping, NamedTuple, Optional, Tuple

Variables = Tuple[Tuple[str, Optional[str]], ...]


class LaunchContext(NamedTuple):
    """What a launcher must know about one node of a run."""

    run: str
    """The run's id."""
    python: str
    node: str
    node_rank: int
    nnodes: int
    procs: int
    gpus: int
    """GPUs for all processes of the node together."""
    world_size: int
    device: str
    """`cuda` or `cpu`."""
    address: str
    master_address: str
    master_port: int
    ray_address: Optional[str]
    """`job.ray_address`: a cluster that exists."""
    args: Tuple[str, ...]
    """The user's own arguments for the launcher."""
    log_dir: str
    """Folder on the node for the launcher's own files; empty: the launcher or the job chooses."""
    config: Mapping[str, str]
    """The settings in the launcher's own file on the node (`Launcher.config_file`)."""


def node_variables(context: LaunchContext) -> Variables:
    """Return the variables that identify the node, equal for every launcher."""
    return (("NODE_RANK", str(context.node_rank)), ("NNODES", str(context.nnodes)))


def rendezvous_variables(context: LaunchContext) -> Variables:
    """Return the variables of `env://` that are equal on all ranks of a node."""
    return (
        ("MASTER_ADDR", context.master_address),
        ("MASTER_PORT", str(context.master_port)),
        ("WORLD_SIZE", str(context.world_size)),
        ("LOCAL_WORLD_SIZE", str(context.procs)),
        ("GROUP_RANK", str(context.node_rank)),
    )


def argument(args: Tuple[str, ...], *names: str) -> str:
    """Return the last value of a flag in a launcher's arguments; empty: it is not there."""
    value = ""
    for word, following in zip(args, (*args[1:], "")):
        flag, equals, given = word.partition("=")
        if flag.replace("_", "-") in names:
            value = given if equals else following
    return value
