"""direct: no engine; the supervisor starts the ranks itself with the variables that torch reads.

Saves an agent and its import of torch on every node. What would say that an elastic agent is
there (`TORCHELASTIC_…`) is not set, for there is none.
"""

from __future__ import annotations

from clusterctl.plan.launchers.interface import LaunchContext, Launcher, about_nodes


def environment(place: LaunchContext) -> tuple[tuple[str, str | None], ...]:
    """Return what `init_process_group` with `env://` reads, and what else torchrun would set."""
    return (
        ("MASTER_ADDR", place.master_address),
        ("MASTER_PORT", str(place.master_port)),
        ("WORLD_SIZE", str(place.world_size)),
        ("LOCAL_WORLD_SIZE", str(place.procs)),
        ("GROUP_RANK", str(place.node_rank)),
        ("GROUP_WORLD_SIZE", str(place.nnodes)),
        *about_nodes(place),
        *(_for_torchrun(place) if place.procs == 1 else ()),
        ("ROLE_NAME", "default"),
        ("ROLE_WORLD_SIZE", str(place.world_size)),
        ("RANK", None),
        ("LOCAL_RANK", None),
        ("ROLE_RANK", None),
    )


def _for_torchrun(place: LaunchContext) -> tuple[tuple[str, str | None], ...]:
    """Return what a torchrun that the node's one process starts takes for flags not given to it."""
    return (
        ("PET_NNODES", str(place.nnodes)),
        ("PET_NODE_RANK", str(place.node_rank)),
        ("PET_MASTER_ADDR", place.master_address),
        ("PET_MASTER_PORT", str(place.master_port)),
    )


def restarts(args: tuple[str, ...]) -> bool:
    """Tell that it never starts a rank again."""
    del args
    return False


DIRECT = Launcher(
    argv=None, environment=environment, restarts=restarts, needs_torch=False, limit_restarts=None
)
