"""direct: the supervisor itself starts the ranks with the variables that torch reads.

This saves a launcher process and its import of torch on every node. `TORCHELASTIC_…` is not set,
because there is no elastic agent.
"""

from __future__ import annotations

from clusterctl.plan.launchers.interface import LaunchContext, Launcher, node_variables


def environment(context: LaunchContext) -> tuple[tuple[str, str | None], ...]:
    """Return the variables of `env://`, and the others that torchrun would set."""
    return (
        ("MASTER_ADDR", context.master_address),
        ("MASTER_PORT", str(context.master_port)),
        ("WORLD_SIZE", str(context.world_size)),
        ("LOCAL_WORLD_SIZE", str(context.procs)),
        ("GROUP_RANK", str(context.node_rank)),
        ("GROUP_WORLD_SIZE", str(context.nnodes)),
        *node_variables(context),
        *(_for_torchrun(context) if context.procs == 1 else ()),
        ("ROLE_NAME", "default"),
        ("ROLE_WORLD_SIZE", str(context.world_size)),
        ("RANK", None),
        ("LOCAL_RANK", None),
        ("ROLE_RANK", None),
    )


def _for_torchrun(context: LaunchContext) -> tuple[tuple[str, str | None], ...]:
    """Return the defaults for a torchrun that the node's only process starts."""
    return (
        ("PET_NNODES", str(context.nnodes)),
        ("PET_NODE_RANK", str(context.node_rank)),
        ("PET_MASTER_ADDR", context.master_address),
        ("PET_MASTER_PORT", str(context.master_port)),
    )


def restarts(args: tuple[str, ...]) -> bool:
    """Tell that it never starts a rank again."""
    del args
    return False


DIRECT = Launcher(
    argv=None, environment=environment, restarts=restarts, needs_torch=False, limit_restarts=None
)
