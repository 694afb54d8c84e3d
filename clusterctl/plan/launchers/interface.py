"""The interface of a launcher: its command on a node, and the variables of the ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from clusterctl.inventory.cluster import Job
from clusterctl.values import dataclass

Variables = tuple[tuple[str, str | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchContext:
    """What a launcher must know about one node of a run."""

    run: str
    """The run's id."""
    python: str
    node: str
    node_rank: int
    nnodes: int
    procs: int
    gpus: int
    """GPUs for all processes of the node together."""
    world_size: int
    device: str
    """`cuda` or `cpu`."""
    address: str
    master_address: str
    master_port: int
    ray_address: str | None
    """`job.ray_address`: a cluster that exists."""
    args: tuple[str, ...]
    """The user's own arguments for the launcher."""
    log_dir: str
    """Folder on the node for the launcher's own files; empty: the launcher or the job chooses."""
    config: Mapping[str, str]
    """The settings in the launcher's own file on the node (`Launcher.config_file`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """How one launcher starts the ranks of a node."""

    argv: Callable[[LaunchContext], tuple[str, ...]] | None
    """What stands before a rank's command; None or empty: the supervisor starts the ranks."""
    environment: Callable[[LaunchContext], Variables]
    """The variables for the rendezvous; None: the value differs between ranks."""
    packages: tuple[str, ...] = ()
    """The Python packages that it is part of; every node needs them, in one version."""
    restarts: Callable[[tuple[str, ...]], bool] = lambda args: False  # noqa: ARG005
    """Whether it starts ranks again by itself, from the person's arguments."""
    limit_restarts: Callable[[int], tuple[str, ...]] | None = None
    """Its own argument for `--max-restarts`; None: it has none."""
    elastic: Callable[[tuple[str, ...]], tuple[int, int] | None] = lambda args: None  # noqa: ARG005
    """The fewest and the most nodes with which it continues; None: it needs all of them."""
    equal_nodes: bool = False
    """It starts the same number of ranks on every node."""
    config_file: Callable[[Job], str] | None = None
    """The path of its own configuration on a node, from workdir or `~`; None: it has none."""
    config_problems: Callable[[Mapping[str, str], int, int], tuple[ConfigProblem, ...]] | None = (
        None
    )
    """What in that file's settings differs from this number of nodes and of ranks."""
    defaults: tuple[tuple[str, str, str], ...] = ()
    """Variables that the node's environment and the job may override: name, value, why."""
    program: str = ""
    """The function of a node's agent that starts `argv` and the command; empty: the supervisor."""
    one_driver: bool = False
    """The command runs once, on the master, and uses the other nodes through the launcher.

    What it starts there does not report to clusterctl.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigProblem:
    """A setting of the launcher's own file that does not match the plan."""

    name: str
    found: str
    wanted: str
    message: str
    fatal: bool = False
    """The run cannot start with it; else the plan's value is used."""


def node_variables(context: LaunchContext) -> Variables:
    """Return the variables that identify the node, equal for every launcher."""
    return (("NODE_RANK", str(context.node_rank)), ("NNODES", str(context.nnodes)))


def rendezvous_variables(context: LaunchContext) -> Variables:
    """Return the variables of `env://` that are equal on all ranks of a node."""
    return (
        ("MASTER_ADDR", context.master_address),
        ("MASTER_PORT", str(context.master_port)),
        ("WORLD_SIZE", str(context.world_size)),
        ("LOCAL_WORLD_SIZE", str(context.procs)),
        ("GROUP_RANK", str(context.node_rank)),
    )


def argument(args: tuple[str, ...], *names: str) -> str:
    """Return the last value of a flag in a launcher's arguments; empty: it is not there."""
    value = ""
    for word, following in zip(args, (*args[1:], ""), strict=False):
        flag, equals, given = word.partition("=")
        if flag.replace("_", "-") in names:
            value = given if equals else following
    return value


def allows_restarts(args: tuple[str, ...]) -> bool:
    """Tell whether `--max-restarts` in the arguments lets torch's agent restart ranks."""
    value = argument(args, "--max-restarts")
    return value.isdigit() and int(value) > 0


def limit_restarts(count: int) -> tuple[str, ...]:
    """Return the argument of torch's agent for this number of restarts."""
    return (f"--max-restarts={count}",)
