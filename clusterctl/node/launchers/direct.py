"""direct: the supervisor itself starts the ranks with the variables that torch reads.

This saves a launcher process and its import of torch on every node. `TORCHELASTIC_…` is not set,
because there is no elastic agent.
"""

from __future__ import annotations

from clusterctl.node.launchers.context import (
    LaunchContext,
    Variables,
    node_variables,
    rendezvous_variables,
)


def environment(context: LaunchContext) -> Variables:
    """Return the variables of `env://`, and the others that torchrun would set."""
    return (
        *rendezvous_variables(context),
        ("GROUP_WORLD_SIZE", str(context.nnodes)),
        *node_variables(context),
        *(_for_torchrun(context) if context.procs == 1 else ()),
        ("ROLE_NAME", "default"),
        ("ROLE_WORLD_SIZE", str(context.world_size)),
        ("RANK", None),
        ("LOCAL_RANK", None),
        ("ROLE_RANK", None),
    )


def _for_torchrun(context: LaunchContext) -> Variables:
    """Return the defaults for a torchrun that the node's only process starts."""
    return (
        ("PET_NNODES", str(context.nnodes)),
        ("PET_NODE_RANK", str(context.node_rank)),
        ("PET_MASTER_ADDR", context.master_address),
        ("PET_MASTER_PORT", str(context.master_port)),
    )
