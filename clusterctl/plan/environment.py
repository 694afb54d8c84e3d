"""Composes the environment of a node's ranks, with the origin of each value."""

import posixpath
import re

from clusterctl.facts.gpu.accelerators import BUS_ORDER, ORDER, VISIBLE
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.inventory.cluster import Cluster
from clusterctl.network.choice import NodeNetwork
from clusterctl.network.choice import environment as network_environment
from clusterctl.network.ports import choose_ras_port
from clusterctl.plan.plan import Layer, Variable
from clusterctl.plan.processes import Processes

_STRENGTH: tuple[Layer, ...] = ("built-in", "chosen", "asked", "launcher")

DEBUG = (
    ("NCCL_DEBUG", "INFO"),
    ("NCCL_DEBUG_SUBSYS", "INIT,NET"),
    ("TORCH_DISTRIBUTED_DEBUG", "DETAIL"),
)


def compose_environment(
    *,
    run: str,
    node: str,
    folder: str,
    count: Processes,
    cluster: Cluster,
    network: NodeNetwork,
    facts: NodeFacts,
    defaults: tuple[tuple[str, str, str], ...],
    launcher: tuple[tuple[str, str | None], ...],
) -> tuple[Variable, ...]:
    """Return a node's variables in order of strength; of equal names, the strongest.

    `folder` is the run's on the node. The launcher sets the variables `launcher`, and `defaults`
    (name, value, why), which all others override.
    """
    job = cluster.job
    found = [
        _built_in("PYTHONUNBUFFERED", "1", "log lines appear at once"),
        _built_in("PYTHONFAULTHANDLER", "1", "a crash prints the Python stack"),
        *(_built_in(*each) for each in defaults),
        *_threads(count.procs),
        *_on_cpus(count, facts),
        *_told_by_libraries(run, folder, count, cluster, facts),
        _chosen("CLUSTERCTL_RUN_ID", run, "marks the run's processes"),
        _chosen("CLUSTERCTL_NODE", node, "marks the run's processes"),
        _chosen("CLUSTERCTL_HOSTFILE", f"{folder}/hostfile", "all nodes and their ranks"),
        *_devices(cluster, count, facts),
        *(_chosen(v.name, v.value, v.why) for v in network_environment(network, facts)),
        *_job_variables(cluster, folder),
        *(_asked(name, None, "env_from: read at launch") for name in job.env_from),
        *(
            Variable(name=name, value=value, layer="launcher", origin="set by the launcher")
            for name, value in launcher
        ),
    ]
    ordered = sorted(found, key=lambda variable: _STRENGTH.index(variable.layer))
    return tuple({variable.name: variable for variable in ordered}.values())


def _built_in(name: str, value: str, why: str) -> Variable:
    return Variable(name=name, value=value, layer="built-in", origin=f"built-in: {why}")


def _chosen(name: str, value: str, why: str) -> Variable:
    return Variable(name=name, value=value, layer="chosen", origin=f"chosen: {why}")


def _asked(name: str, value: str | None, origin: str) -> Variable:
    return Variable(name=name, value=value, layer="asked", origin=origin)


def _threads(procs: int) -> list[Variable]:
    if procs <= 1:
        return []
    why = f"as torchrun does, so {procs} ranks do not compete for the cores"
    return [_built_in("OMP_NUM_THREADS", "1", why)]


_OTHER_DEVICES = re.compile(
    r"(?<!\S)(?:torch[-_](?:npu|xla|mlu|musa|neuronx?)|habana[-_]torch[-_]plugin)=="
    r"|(?<!\S)torch==\S+\+xpu"
)
"""Packages of accelerators that clusterctl does not count; accelerate finds those by itself."""


def _on_cpus(count: Processes, facts: NodeFacts) -> list[Variable]:
    """Return what lets transformers' Trainer and accelerate train CPU ranks together.

    Without it, accelerate takes a process that sees no accelerator for one that trains alone, also
    if RANK and WORLD_SIZE are set (`PartialState._prepare_backend` of accelerate 1.15).
    """
    installed = facts.python.everything if facts.python else ""
    if count.device != "cpu" or _OTHER_DEVICES.search(installed):
        return []
    why = "else accelerate and transformers' Trainer train each CPU rank alone"
    return [_built_in("ACCELERATE_USE_CPU", "true", why)]


def _told_by_libraries(
    run: str, folder: str, count: Processes, cluster: Cluster, facts: NodeFacts
) -> list[Variable]:
    """Return what lets `dump` ask NCCL and PyTorch's flight recorder what they know."""
    if count.device != "cuda":
        return []
    port = choose_ras_port(run, facts)
    found = [_built_in("NCCL_RAS_ADDR", f"127.0.0.1:{port}", "`dump` asks NCCL there")]
    first = next(iter(cluster.job.command), "")
    python = (
        first.startswith("-")
        or posixpath.basename(first).startswith("python")
        or first.endswith(".py")
    )
    # Torch ends a rank that cannot make its pipe, in a container or as another user.
    if cluster.job.wrap or not python:
        return found
    names = ["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"]
    if "TORCH_NCCL_DEBUG_INFO_TEMP_FILE" not in dict(cluster.job.env):  # the earlier name
        names.append("TORCH_FR_DUMP_TEMP_FILE")
    why = "`dump` asks PyTorch's flight recorder there"
    found += [_built_in(name, f"{folder}/recorder_", why) for name in names]
    return found


def _devices(cluster: Cluster, count: Processes, facts: NodeFacts) -> list[Variable]:
    if count.chosen:
        # Else CUDA may number GPUs differently, and the run would use GPUs that it did not lock.
        why = f"chosen: {VISIBLE} numbers the GPUs as nvidia-smi does"
        return [_asked(ORDER, BUS_ORDER, why)]
    if count.device == "cpu":
        return [_chosen(VISIBLE, "", "the run uses CPU processes")]
    found = len(facts.gpus.devices) if facts.gpus is not None else 0
    if cluster.job.procs_per_node is not None and count.gpus < found:
        # A rank may use several GPUs: it would use all that it sees.
        numbers = ",".join(map(str, range(count.gpus)))
        return [_chosen(VISIBLE, numbers, "only these GPUs are asked for")]
    return []


def _job_variables(cluster: Cluster, folder: str) -> list[Variable]:
    """Return the job's variables; those of the command line override `--debug`, too."""
    job, inventory = cluster.job, "job.env"
    env = [(name, value, cluster.origin(f"env.{name}", inventory)) for name, value in job.env]
    written = [_asked(*each) for each in env if each[-1] == inventory]
    return [*written, *_debug(cluster, folder), *(_asked(*e) for e in env if e[-1] != inventory)]


def _debug(cluster: Cluster, folder: str) -> list[Variable]:
    if not cluster.job.debug:
        return []
    origin = cluster.origin("debug", "--debug")
    file = ("NCCL_DEBUG_FILE", f"{folder}/nccl/%h.%p.log")
    return [_asked(name, value, origin) for name, value in (*DEBUG, file)]
