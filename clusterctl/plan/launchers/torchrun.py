"""torchrun: PyTorch's own agent on every node, with a static rendezvous.

The master's address is known, so the agents negotiate nothing. Each agent gets its own address,
because torchrun would announce a host name that the other nodes may not resolve.
"""

from __future__ import annotations

from clusterctl.plan.launchers.interface import LaunchContext, Launcher, node_variables


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


def environment(context: LaunchContext) -> tuple[tuple[str, str | None], ...]:
    """Return the variables that scripts read and torchrun does not set."""
    return node_variables(context)


def restarts(args: tuple[str, ...]) -> bool:
    """Tell whether the arguments let it restart ranks."""
    value = ""
    for word, following in zip(args, (*args[1:], ""), strict=False):
        name, equals, given = word.replace("_", "-").partition("=")
        if name == "--max-restarts":
            value = given if equals else following
    return value.isdigit() and int(value) > 0


def limit_restarts(count: int) -> tuple[str, ...]:
    """Return its argument for this number of restarts."""
    return (f"--max-restarts={count}",)


TORCHRUN = Launcher(
    argv=argv,
    environment=environment,
    restarts=restarts,
    needs_torch=True,
    limit_restarts=limit_restarts,
)
