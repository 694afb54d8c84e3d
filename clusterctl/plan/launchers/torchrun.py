"""torchrun: PyTorch's own agent on every node, found at one address without a search.

Static rendezvous: who is rank 0 and where is known, so nothing has to be negotiated. The address
is always said, because torchrun would give its peers a name that only this node may know.
"""

from __future__ import annotations

from clusterctl.plan.launchers.interface import LaunchContext, Launcher, about_nodes


def argv(place: LaunchContext) -> tuple[str, ...]:
    """Return torchrun's call, up to the rank's command."""
    return (
        place.python,
        "-m",
        "torch.distributed.run",
        f"--nnodes={place.nnodes}",
        f"--node-rank={place.node_rank}",
        f"--nproc-per-node={place.procs}",
        f"--master-addr={place.master_address}",
        f"--master-port={place.master_port}",
        f"--local-addr={place.address}",
        # Else it leaves a folder in /tmp.
        *((f"--log-dir={place.log_dir}",) if place.log_dir else ()),
        *place.args,
        "--no-python",
    )


def environment(place: LaunchContext) -> tuple[tuple[str, str | None], ...]:
    """Return what scripts read beyond the ranks' variables, which torchrun sets itself."""
    return about_nodes(place)


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
