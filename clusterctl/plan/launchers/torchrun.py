"""torchrun: PyTorch's own agent on every node, found at one address without a search.

Static rendezvous: who is rank 0 and where is known, so nothing has to be negotiated. The address
is always said, because torchrun would give its peers a name that only this node may know.
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
        # Else it leaves a folder in /tmp.
        *((f"--log-dir={context.log_dir}",) if context.log_dir else ()),
        *context.args,
        "--no-python",
    )


def environment(context: LaunchContext) -> tuple[tuple[str, str | None], ...]:
    """Return what scripts read beyond the ranks' variables, which torchrun sets itself."""
    return node_variables(context)


def restarts(args: tuple[str, ...]) -> bool:
    """Tell whether the arguments let it start ranks again."""
    value = ""
    for word, following in zip(args, (*args[1:], ""), strict=False):
        name, equals, given = word.replace("_", "-").partition("=")
        if name == "--max-restarts":
            value = given if equals else following
    return value.isdigit() and int(value) > 0


def limit_restarts(count: int) -> tuple[str, ...]:
    """Return its argument for that many restarts."""
    return (f"--max-restarts={count}",)


TORCHRUN = Launcher(
    argv=argv,
    environment=environment,
    restarts=restarts,
    needs_torch=True,
    limit_restarts=limit_restarts,
)
