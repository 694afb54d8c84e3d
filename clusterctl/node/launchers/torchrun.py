"""torchrun: PyTorch's own agent on every node, with a static or a c10d rendezvous.

Static is the default: the master's address is known, so the agents negotiate nothing. With c10d
they agree on ranks through a store on the master, and with `--nnodes=MIN:MAX` continue without a
node that is lost. Each agent gets its own address, because torchrun would announce a host name that
the other nodes may not resolve.
"""

from __future__ import annotations

from typing import Optional, Tuple

from clusterctl.node.launchers.context import LaunchContext, Variables, argument, node_variables


def argv(context: LaunchContext) -> Tuple[str, ...]:
    """Return torchrun's call, up to the rank's command."""
    return (
        context.python,
        "-m",
        "torch.distributed.run",
        f"--nnodes={context.nnodes}",
        *(() if uses_c10d(context.args) else (f"--node-rank={context.node_rank}",)),
        f"--nproc-per-node={context.procs}",
        *_rendezvous(context),
        f"--local-addr={context.address}",
        # Without it torchrun leaves a folder in /tmp.
        *((f"--log-dir={context.log_dir}",) if context.log_dir else ()),
        *context.args,
        *_store(context),
        "--no-python",
    )


def _rendezvous(context: LaunchContext) -> Tuple[str, ...]:
    """Return where the agents meet."""
    address, port = context.master_address, context.master_port
    if not uses_c10d(context.args):
        return (f"--master-addr={address}", f"--master-port={port}")
    host = f"[{address}]" if ":" in address else address
    return (
        "--rdzv-backend=c10d",
        f"--rdzv-id={context.run}",
        f"--rdzv-endpoint={host}:{port}",
    )


def _store(context: LaunchContext) -> Tuple[str, ...]:
    """Return who has the store of c10d: torchrun would guess it from host names."""
    if not uses_c10d(context.args):
        return ()
    given = argument(context.args, "--rdzv-conf")
    host = f"is_host={'false' if context.node_rank else 'true'}"
    return (f"--rdzv-conf={given},{host}" if given else f"--rdzv-conf={host}",)


def environment(context: LaunchContext) -> Variables:
    """Return the variables that torchrun does not set."""
    if elastic(context.args) is None:
        return node_variables(context)
    # The agents may count restarts differently. With a store for all restarts, ranks would then
    # look for each other under different names, or at the addresses of ranks that have ended.
    return (*node_variables(context), ("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1"))


def uses_c10d(args: Tuple[str, ...]) -> bool:
    """Tell whether the arguments ask for a c10d rendezvous; an elastic run has no other."""
    return argument(args, "--rdzv-backend") == "c10d" or elastic(args) is not None


def elastic(args: Tuple[str, ...]) -> Optional[Tuple[int, int]]:
    """Return the fewest and the most nodes of `--nnodes=MIN:MAX`; None for a fixed number."""
    least, colon, most = argument(args, "--nnodes").partition(":")
    if not colon or not least.isdigit() or not most.isdigit():
        return None
    return int(least), int(most)
