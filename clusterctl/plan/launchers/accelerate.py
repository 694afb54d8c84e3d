"""accelerate: `accelerate launch` on every node, which starts torch's agent in its own process.

A configuration of the user's decides how the ranks train, such as FSDP or DeepSpeed. Addresses,
counts and ranks are the plan's: accelerate prefers them to those in the file.
"""

from collections.abc import Iterator, Mapping

from clusterctl.inventory.cluster import Job
from clusterctl.plan.launchers.interface import (
    ConfigProblem,
    LaunchContext,
    Launcher,
    Variables,
    allows_restarts,
    argument,
    limit_restarts,
    node_variables,
    rendezvous_variables,
)

_CONFIG = "--config-file"
_MODES = frozenset({"--multi-gpu", "--use-fsdp", "--use-deepspeed", "--use-megatron-lm", "--cpu"})
"""Flags of which accelerate allows one: what starts the ranks, and how they train."""
_ONE_PROCESS = frozenset({"", "NO", "MULTI_CPU"})
"""Values of `distributed_type` with which accelerate starts one process, and no agent of torch."""
_ELSEWHERE = frozenset({"TPU", "XLA"})


def argv(context: LaunchContext) -> tuple[str, ...]:
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


def _mode(context: LaunchContext) -> tuple[str, ...]:
    """Return the flag that starts all ranks, unless the user or a configuration has one."""
    if any(word.replace("_", "-") in _MODES for word in context.args):
        return ()
    if context.world_size == 1:
        return ("--cpu",) if context.device == "cpu" else ()
    unread = not context.config and argument(context.args, _CONFIG)
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


def config_file(job: Job) -> str:
    """Return the file that accelerate reads: the one in its arguments, else the user's default."""
    given = argument(job.args, _CONFIG)
    if given:
        return given
    env = dict(job.env)
    cache = env.get("XDG_CACHE_HOME", "~/.cache")
    home = env.get("HF_HOME", f"{cache}/huggingface")
    return f"{home}/accelerate/default_config.yaml"


def config_problems(
    config: Mapping[str, str], nnodes: int, world_size: int
) -> tuple[ConfigProblem, ...]:
    """Return what in the configuration differs from the plan."""
    return tuple(_problems(config, nnodes, world_size))


def _problems(config: Mapping[str, str], nnodes: int, world_size: int) -> Iterator[ConfigProblem]:
    for name, value in (("num_machines", nnodes), ("num_processes", world_size)):
        found = config.get(name, "")
        if found not in {"", "null", str(value)}:
            message = f"another {name} than the plan's, which is used"
            yield ConfigProblem(name=name, found=found, wanted=str(value), message=message)
    kind = config.get("distributed_type", "")
    place = config.get("compute_environment", "LOCAL_MACHINE")
    if place not in {"LOCAL_MACHINE", ""} or kind in _ELSEWHERE:
        yield ConfigProblem(
            name="compute_environment" if kind not in _ELSEWHERE else "distributed_type",
            found=kind if kind in _ELSEWHERE else place,
            wanted="LOCAL_MACHINE and GPUs or CPUs",
            message="accelerate would start the training elsewhere than on the nodes",
            fatal=True,
        )
    gpus = config.get("gpu_ids", "")
    if gpus not in {"", "all", "null"}:
        yield ConfigProblem(
            name="gpu_ids",
            found=gpus,
            wanted="all",
            message="gpu_ids renumbers the GPUs that the ranks see, as `gpus:` of the nodes does",
        )


ACCELERATE = Launcher(
    argv=argv,
    environment=environment,
    packages=("accelerate", "torch"),
    restarts=allows_restarts,
    limit_restarts=limit_restarts,
    equal_nodes=True,
    config_file=config_file,
    config_problems=config_problems,
)
