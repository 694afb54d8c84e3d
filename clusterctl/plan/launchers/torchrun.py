"""torchrun: PyTorch's own agent on every node, with a static rendezvous.

The master's address is known, so the agents negotiate nothing. Each agent gets its own address,
because torchrun would announce a host name that the other nodes may not resolve.
"""

from __future__ import annotations

from clusterctl.plan.launchers.interface import (
    LaunchContext,
    Launcher,
    allows_restarts,
    limit_restarts,
    node_variables,
)


def argv(context: LaunchContext) -> tuple[str, ...]:
    """Return torchrun's call, up to the rank's command."""
    return (
        context.python,
        "-m",
        "torch.distributed.run",
        f"--nnodes={context.nnodes}",
        f"--node-rank={context.node_rank}",
        f"--nproc-per-node={context.procs}",
        f"--master-addr={context.master_address}",
        f"--master-port={context.master_port}",
        f"--local-addr={context.address}",
        # Without it torchrun leaves a folder in /tmp.
        *((f"--log-dir={context.log_dir}",) if context.log_dir else ()),
        *context.args,
        "--no-python",
    )


TORCHRUN = Launcher(
    argv=argv,
    environment=node_variables,  # torchrun sets all others
    packages=("torch",),
    restarts=allows_restarts,
    limit_restarts=limit_restarts,
)
