"""accelerate: `accelerate launch` on every node, which starts torch's agent in its own process.

A configuration of the user's decides how the ranks train, such as FSDP or DeepSpeed. Addresses,
counts and ranks are the plan's: accelerate prefers them to those in the file.
"""

from collections.abc import Iterator, Mapping

from clusterctl.inventory.cluster import Job
from clusterctl.node.launchers.accelerate import CONFIG, argv, environment
from clusterctl.plan.launchers.interface import (
    ConfigProblem,
    Launcher,
    allows_restarts,
    argument,
    limit_restarts,
)

_ELSEWHERE = frozenset({"TPU", "XLA"})
_ON_GPUS = frozenset({"DEEPSPEED", "FSDP", "MEGATRON_LM"})
"""What accelerate leaves out on CPUs, and prints nothing about it."""


def config_file(job: Job) -> str:
    """Return the file that accelerate reads: the one in its arguments, else the user's default."""
    given = argument(job.args, CONFIG)
    if given:
        return given
    env = dict(job.env)
    cache = env.get("XDG_CACHE_HOME", "~/.cache")
    home = env.get("HF_HOME", f"{cache}/huggingface")
    return f"{home}/accelerate/default_config.yaml"


def config_problems(
    config: Mapping[str, str], nnodes: int, world_size: int, device: str
) -> tuple[ConfigProblem, ...]:
    """Return what in the configuration differs from the plan."""
    return tuple(_problems(config, nnodes, world_size, device))


def _problems(
    config: Mapping[str, str], nnodes: int, world_size: int, device: str
) -> Iterator[ConfigProblem]:
    for name, value in (("num_machines", nnodes), ("num_processes", world_size)):
        found = config.get(name, "")
        if found not in {"", "null", str(value)}:
            message = f"another {name} than the plan's, which is used"
            wish = ""
            for_these = config.get("num_machines") == str(nnodes) and found.isdecimal()
            if for_these and int(found) >= nnodes and not int(found) % nnodes:
                wish = f"launch with --procs-per-node {int(found) // nnodes}"
            yield ConfigProblem(
                name=name, found=found, wanted=str(value), message=message, wish=wish
            )
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
    if kind in _ON_GPUS and device == "cpu":
        yield ConfigProblem(
            name="distributed_type",
            found=kind,
            wanted="MULTI_CPU",
            message=f"on CPUs accelerate uses no {kind}, and trains with plain data parallelism",
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
