"""accelerate: `accelerate launch` on every node, which starts torch's agent in its own process."""

from __future__ import annotations

from typing import Tuple

from clusterctl.node.launchers.context import (
    LaunchContext,
    Variables,
    argument,
    node_variables,
    rendezvous_variables,
)

CONFIG = "--config-file"
_MODES = frozenset({"--multi-gpu", "--use-fsdp", "--use-deepspeed", "--use-megatron-lm", "--cpu"})
"""Flags of which accelerate allows one: what starts the ranks, and how they train."""
_ONE_PROCESS = frozenset({"", "NO", "MULTI_CPU"})
"""Values of `distributed_type` with which accelerate starts one process, and no agent of torch."""


def argv(context: LaunchContext) -> Tuple[str, ...]:
    """Return accelerate's call, up to the rank's command."""
    return (
        context.python,
        "-m",
        "accelerate.commands.launch",
        f"--num_machines={context.nnodes}",
        f"--num_processes={context.world_size}",
        f"--machine_rank={context.node_rank}",
        f"--main_process_ip={context.master_address}",
        f"--main_process_port={context.master_port}",
        "--rdzv_backend=static",
        "--same_network",
        # Else accelerate itself would reach the other nodes, by pdsh.
        *(("--deepspeed_multinode_launcher=standard",) if context.nnodes > 1 else ()),
        *((f"--log_dir={context.log_dir}",) if context.log_dir else ()),
        *_mode(context),
        *context.args,
        "--no_python",
    )


def _mode(context: LaunchContext) -> Tuple[str, ...]:
    """Return the flag that starts all ranks, unless the user or a configuration has one."""
    if any(word.replace("_", "-") in _MODES for word in context.args):
        return ()
    if context.world_size == 1:
        return ("--cpu",) if context.device == "cpu" else ()
    unread = not context.config and argument(context.args, CONFIG)
    if unread or context.config.get("distributed_type", "") not in _ONE_PROCESS:
        return ()
    # On CPUs, too: with `--cpu` accelerate starts one process.
    return ("--multi_gpu",)


def environment(context: LaunchContext) -> Variables:
    """Return what torch's agent takes no flag for here, and what a single process lacks."""
    alone: Variables = ()
    if context.world_size == 1:
        alone = (*rendezvous_variables(context), ("RANK", "0"), ("LOCAL_RANK", "0"))
    cpu: Variables = (("ACCELERATE_USE_CPU", "true"),) if context.device == "cpu" else ()
    return (*alone, *node_variables(context), ("PET_LOCAL_ADDR", context.address), *cpu)
