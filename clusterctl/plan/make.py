"""Makes the plan of a run from what is wanted, what is known and what was chosen."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping

from clusterctl.errors import LaunchRefused, UsageError
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.inventory.cluster import Cluster, Node
from clusterctl.network.choice import Network
from clusterctl.plan import launchers
from clusterctl.plan.environment import compose
from clusterctl.plan.launchers.interface import Launcher, Place
from clusterctl.plan.lock import lock_name
from clusterctl.plan.options import LOST_AFTER, START_TIMEOUT, Options
from clusterctl.plan.plan import NodePlan, Plan, Setting
from clusterctl.plan.processes import Processes, count_processes


def make_plan(
    cluster: Cluster,
    facts: Mapping[str, NodeFacts],
    network: Network,
    options: Options,
    *,
    run: str,
) -> Plan:
    """Return what will be started on each node; nothing is looked up or started here.

    Args:
        cluster: the nodes that take part, the master first, and the job.
        facts: of each of them.
        network: what each of them uses.
        options: of the command line.
        run: the run's id.

    Raises:
        UsageError: there is no command, or the launcher is unknown or cannot do what is asked.
        LaunchRefused: too little is known of a node.
    """
    name = options.launcher or cluster.job.launcher
    launcher = launchers.find(name)
    command = command_of(cluster, options)
    args = _launcher_args(cluster, options, launcher, name)
    port = options.master_port or network.master_port
    counts = [count_processes(node, facts[node.name], options) for node in cluster.nodes]
    firsts = [sum(count.procs for count in counts[:index]) for index in range(len(counts))]
    world_size = sum(count.procs for count in counts)
    nodes = tuple(
        _plan_node(
            cluster=cluster,
            node=node,
            facts=facts[node.name],
            network=network,
            options=options,
            launcher=launcher,
            command=command,
            count=count,
            run=run,
            place=Place(
                python=_interpreter(node, facts[node.name]),
                node_rank=node_rank,
                nnodes=len(cluster.nodes),
                first_rank=first,
                procs=count.procs,
                world_size=world_size,
                address=_address(network, node),
                master_address=network.master_address,
                master_port=port,
                args=args,
            ),
        )
        for node_rank, (node, count, first) in enumerate(
            zip(cluster.nodes, counts, firsts, strict=True)
        )
    )
    port_origin = "network.master_port" if cluster.master_port else network.master_port_why
    start_timeout = _first(options.start_timeout, START_TIMEOUT)
    lost_after = _first(options.lost_after, LOST_AFTER)
    return Plan(
        run=run,
        cluster=cluster.name,
        launcher=name,
        nodes=nodes,
        world_size=world_size,
        master_address=network.master_address,
        master_port=port,
        env_init=cluster.job.env_init,
        env_from=cluster.job.env_from,
        stop=cluster.job.stop,
        start_timeout=start_timeout,
        lost_after=lost_after,
        launcher_decides=launcher.restarts(args),
        settings=(
            _setting("launcher", name, options, "job.launcher"),
            _setting("command", " ".join(command), options, "job.command", "after `--`"),
            _setting("master_port", str(port), options, port_origin),
            _setting("start_timeout", f"{start_timeout:g} s", options, "built-in"),
            _setting("lost_after", f"{lost_after:g} s", options, "built-in"),
        ),
    )


def command_of(cluster: Cluster, options: Options) -> tuple[str, ...]:
    """Return the command that is meant: that of the command line, else the job's.

    Raises:
        UsageError: there is none.
    """
    command = options.command or cluster.job.command
    if not command:
        raise UsageError(
            "there is no command to launch: none after `--`, and no job.command in the inventory",
            hint="clusterctl launch -- train.py",
        )
    return command


def _plan_node(
    *,
    cluster: Cluster,
    node: Node,
    facts: NodeFacts,
    network: Network,
    options: Options,
    launcher: Launcher,
    command: tuple[str, ...],
    count: Processes,
    run: str,
    place: Place,
) -> NodePlan:
    root = node.state or f"/var/tmp/clusterctl-{facts.uid}"  # noqa: S108  (made 0700 there)
    folder = posixpath.join(root, cluster.name, run, node.name)
    return NodePlan(
        node=node.name,
        host=node.host,
        node_rank=place.node_rank,
        address=place.address,
        interface=network.nodes[node.name].interface,
        first_rank=place.first_rank,
        procs=place.procs,
        procs_origin=count.origin,
        device=count.device,
        workdir=node.workdir or "~",
        state=folder,
        lock=lock_name(cluster, node),
        launcher_argv=launcher.argv(place),
        argv=_rank_argv(command, place.python),
        path_first=posixpath.dirname(place.python) or None,
        env=compose(
            run=run,
            node=node.name,
            folder=folder,
            procs=place.procs,
            device=count.device,
            job=cluster.job,
            options=options,
            network=network.nodes[node.name],
            facts=facts,
            launcher=launcher.environment(place),
        ),
    )


def _launcher_args(
    cluster: Cluster, options: Options, launcher: Launcher, name: str
) -> tuple[str, ...]:
    args = cluster.job.launcher_args if name == cluster.job.launcher else ()
    if options.max_restarts is None:
        return args
    if launcher.limit_restarts is not None:
        return args + launcher.limit_restarts(options.max_restarts)
    if options.max_restarts:
        raise UsageError(
            f"--max-restarts: launcher {name} does not restart ranks by itself",
            hint="clusterctl launch --launcher torchrun --max-restarts N",
        )
    return args


def _interpreter(node: Node, facts: NodeFacts) -> str:
    """Return the job's interpreter: as the inventory says, else as the node found it."""
    found = facts.python.executable if facts.python is not None else ""
    return node.python or found or "python3"


def _rank_argv(command: tuple[str, ...], python: str) -> tuple[str, ...]:
    """Return a rank's argument list: a module, an option or a .py file is Python's to run."""
    if command[0].startswith("-") or command[0].endswith(".py"):
        return (python, *command)
    return command


def _address(network: Network, node: Node) -> str:
    chosen = network.nodes.get(node.name)
    if chosen is None or not network.master_address:
        raise LaunchRefused(
            f"{node.name}: no address on a network that all nodes share ({network.why})",
            hint="clusterctl check --only network",
        )
    return chosen.address


def _first(given: float | None, built_in: float) -> float:
    return built_in if given is None else given


def _setting(
    name: str, value: str, options: Options, otherwise: str, said: str | None = None
) -> Setting:
    """Return a choice with where it was made: the command line's, if it made one.

    Args:
        name: of the option.
        value: what was chosen.
        options: of the command line.
        otherwise: where it is from when the command line does not say it.
        said: how the command line says it, where that is no flag.
    """
    origin = options.origins.get(name, said or options.origin(name))
    return Setting(name=name, value=value, origin=origin if options.says(name) else otherwise)
