"""Makes the plan of a run from the cluster, the facts and the chosen network."""

import itertools
import posixpath
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace

from clusterctl.errors import LaunchRefused, UsageError
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.inventory.cluster import Cluster, Hang, Node, Restart
from clusterctl.inventory.wrap import read_container
from clusterctl.network.choice import Network
from clusterctl.node.launchers.context import argument
from clusterctl.node.launchers.known import REPLANNED
from clusterctl.plan import launchers
from clusterctl.plan.container import folders_of, run_words
from clusterctl.plan.environment import compose_environment
from clusterctl.plan.launchers.interface import LaunchContext
from clusterctl.plan.lock import lock_name
from clusterctl.plan.plan import ElasticPlan, NodePlan, Plan, Setting
from clusterctl.plan.processes import Processes, count_processes
from clusterctl.plan.run_names import fill_job


def make_plan(
    cluster: Cluster,
    facts: Mapping[str, NodeFacts],
    network: Network,
    *,
    run: str,
    name: str = "",
    controller: str = "",
) -> Plan:
    """Return what will be started on each node of an `effective` cluster; does no I/O.

    Raises:
        UsageError: there is no command, or the launcher is unknown.
        LaunchRefused: a fact that the plan needs is unknown.
    """
    job, spares = cluster.job, cluster.spares
    cluster = replace(cluster, nodes=(*cluster.active, *spares))
    active = len(cluster.nodes) - len(spares)
    launcher = launchers.find_launcher(job.launcher)
    require_command(cluster)
    own_job = fill_job(job, run, name)
    if launcher.one_driver and read_container(job.wrap):
        raise UsageError(
            f"job.wrap: the launcher {job.launcher} cannot run in {job.wrap[0]}:"
            " its workers on the nodes would run outside",
            hint="clusterctl launch --launcher torchrun, or list containers with sshd as nodes",
        )
    counts = _count_all(cluster, facts)
    elastic = launcher.elastic(job.args)
    if elastic and not elastic[0] <= len(cluster.nodes) <= elastic[1]:
        least, most = elastic
        raise UsageError(
            f"launcher_args: expected {least} to {most} nodes (--nnodes={least}:{most}),"
            f" found {len(cluster.nodes)}",
            hint=f"clusterctl launch --nodes {most}, or change --nnodes in job.launcher_args",
        )
    require_equal_nodes(cluster, [count.procs for count in counts])
    sizes = [count.procs for count in counts[:active]]
    _require_fit(cluster, sizes, counts[active:])
    *first_ranks, world_size = itertools.accumulate(sizes, initial=0)
    first_ranks += [world_size] * len(spares)
    nodes = tuple(
        plan_node(
            node,
            cluster=cluster,
            facts=facts[node.name],
            network=network,
            run=run,
            name=name,
            node_rank=node_rank,
            nnodes=active,
            count=count,
            first_rank=first_rank,
            world_size=world_size,
        )
        for node_rank, (node, count, first_rank) in enumerate(
            zip(cluster.nodes, counts, first_ranks, strict=True)
        )
    )
    return Plan(
        run=run,
        cluster=cluster.name,
        launcher=job.launcher,
        nodes=nodes[:active],
        spares=nodes[active:],
        world_size=world_size,
        master_address=network.master_address,
        master_port=network.master_port,
        env_init=job.env_init,
        env_from=job.env_from,
        stop=job.stop,
        start_timeout=job.start_timeout,
        lost_after=job.lost_after,
        launcher_decides=launcher.restarts(job.args) or elastic is not None,
        min_nodes=elastic[0] if elastic else 0,
        elastic=ElasticPlan(max_nodes=elastic[1] if elastic else 0, subnet=network.subnet)
        if elastic or may_change(cluster)
        else None,
        name=name,
        controller=controller,
        checkpoints=own_job.checkpoints or "",
        gathers=bool(nodes[0].launcher_argv) or not launcher.one_driver,
        settings=_settings(replace(cluster, job=own_job), network),
    )


def _require_fit(cluster: Cluster, sizes: Sequence[int], spares: Sequence[Processes]) -> None:
    """Raise LaunchRefused for a spare node that has the number of ranks of no worker."""
    for node, count in zip(cluster.spares, spares, strict=True):
        if count.procs not in sizes[1:]:
            found = ", ".join(map(str, sorted(set(sizes[1:])))) or "no worker"
            raise LaunchRefused(
                f"{node.name}: a spare node for {count.procs} ranks, so expected a worker with as"
                f" many besides the master, found {found}",
                hint="--spares 0 lets it have ranks",
            )


def require_equal_nodes(cluster: Cluster, procs: Sequence[int]) -> None:
    """Raise LaunchRefused if the nodes differ in ranks and the launcher does not support that."""
    if launchers.find_launcher(cluster.job.launcher).equal_nodes and len(set(procs)) > 1:
        message, hint = unequal_nodes(cluster, procs)
        raise LaunchRefused(message, hint=hint)


def unequal_nodes(cluster: Cluster, procs: Sequence[int]) -> tuple[str, str]:
    """Return what a launcher of equal nodes cannot do, and the way around."""
    counts = ", ".join(
        f"{count} on {node.name}" for node, count in zip(cluster.nodes, procs, strict=True)
    )
    hint = (
        "clusterctl launch --launcher torchrun (or direct), which take nodes of different size;"
        f" or --procs-per-node {min(procs)}"
    )
    name = cluster.job.launcher
    return f"{name} starts the same number of ranks on every node, found {counts}", hint


def _count_all(cluster: Cluster, facts: Mapping[str, NodeFacts]) -> list[Processes]:
    """Return the processes of each node; with one driver, all others only serve it."""
    counts = [count_processes(cluster, node, facts[node.name]) for node in cluster.nodes]
    name = cluster.job.launcher
    if not launchers.find_launcher(name).one_driver:
        return counts
    driver, *others = counts
    return [
        replace(driver, procs=1, origin=f"{name}: the driver"),
        *(replace(each, procs=0, origin=f"{name}: its workers do not report") for each in others),
    ]


def require_command(cluster: Cluster) -> None:
    """Raise UsageError for a job without a command."""
    if not cluster.job.command:
        raise UsageError(
            "no command to launch: expected one after `--`, or job.command in "
            + (cluster.file or "the inventory"),
            hint="clusterctl launch -- train.py",
        )


def _settings(cluster: Cluster, network: Network) -> tuple[Setting, ...]:
    """Return the settings of the whole run, each with its origin."""
    job = cluster.job
    hang = "job.hang" if job.hang != Hang() else "built-in"
    port = "network.master_port" if cluster.master_port else network.master_port_why
    restart = "job.restart" if job.restart != Restart() else "built-in"
    found = (
        ("launcher", job.launcher, "job.launcher"),
        ("command", shlex.join(job.command), "job.command"),
        ("master_port", str(network.master_port), port),
        ("max_time", f"{job.max_time:g} s" if job.max_time else "", "job.max_time"),
        ("start_timeout", f"{job.start_timeout:g} s", "built-in"),
        ("lost_after", f"{job.lost_after:g} s", "built-in"),
        ("restarts", str(job.restart.max), restart),
        ("spares", str(len(cluster.spares) or ""), "nodes"),
        ("min_nodes", str(job.restart.min_nodes or ""), "job.restart"),
        ("hang_after", f"{job.hang.after:g} s", hang),
        ("hang_action", job.hang.action, hang),
    )
    return tuple(
        Setting(name=name, value=value, origin=cluster.origin(name, otherwise))
        for name, value, otherwise in found
        if value
    )


def plan_node(
    node: Node,
    *,
    cluster: Cluster,
    facts: NodeFacts,
    network: Network,
    run: str,
    name: str,
    node_rank: int,
    nnodes: int,
    count: Processes,
    first_rank: int,
    world_size: int,
) -> NodePlan:
    """Return what is started on one node; LaunchRefused without an address on the data network."""
    folders = cluster  # a container sees those of all runs
    cluster = replace(cluster, job=fill_job(cluster.job, run, name))
    job = cluster.job
    launcher = launchers.find_launcher(job.launcher)
    root = node.state or f"/var/tmp/clusterctl-{facts.uid}"  # noqa: S108  (made 0700 there)
    folder = posixpath.join(root, cluster.name, run, node.name)
    context = LaunchContext(
        run=run,
        python=_interpreter(node, facts),
        node=node.name,
        node_rank=node_rank,
        nnodes=nnodes,
        procs=count.procs,
        gpus=count.gpus,
        world_size=world_size,
        device=count.device,
        address=_address(network, node),
        master_address=network.master_address,
        master_port=network.master_port,
        ray_address=job.ray_address,
        args=job.args,
        log_dir="" if "PET_LOG_DIR" in dict(job.env) else f"{folder}/torchrun",
        config=dict(facts.launcher_config or ()),
    )
    launcher_argv = launcher.argv(context) if launcher.argv else ()
    env = compose_environment(
        run=run,
        node=node.name,
        folder=folder,
        count=count,
        cluster=cluster,
        network=network.nodes[node.name],
        facts=facts,
        defaults=launcher.defaults,
        launcher=launcher.environment(context),
    )
    container = read_container(job.wrap)
    return NodePlan(
        node=node.name,
        host=node.host,
        node_rank=node_rank,
        address=context.address,
        interface=network.nodes[node.name].interface,
        first_rank=first_rank,
        procs=count.procs,
        procs_origin=count.origin,
        device=count.device,
        workdir=node.workdir or "~",
        state=folder,
        lock=lock_name(
            cluster,
            node,
            [gpu.uuid for gpu in count.chosen],
            port=None if node_rank else network.master_port,
        ),
        launcher_argv=launcher_argv,
        launcher_program=launcher.program if launcher_argv else "",
        ends_with_master=launcher.one_driver and node_rank > 0,
        argv=command_with_python(job.command, context.python),
        path_first=None if container else posixpath.dirname(context.python) or None,
        env=env,
        wrap=() if container else job.wrap,
        container=run_words(
            container,
            facts,
            run=run,
            node=node.name,
            gpus=count.device == "cuda",
            folders=folders_of(folders, folder),
            variables=[variable.name for variable in env],
        )
        if container
        else (),
        python=context.python,
        launch=context._asdict() if may_change(cluster) else None,
    )


def may_change(cluster: Cluster) -> bool:
    """Tell whether the run may continue on other nodes after a failure."""
    job = cluster.job
    fixed = job.launcher not in REPLANNED or cluster.by_slurm or argument(job.args, "--nnodes")
    return bool(job.restart.max and len(cluster.nodes) > 1 and not fixed)


def _interpreter(node: Node, facts: NodeFacts) -> str:
    """Return the job's interpreter: the inventory's, else the one found on the node."""
    found = facts.python.executable if facts.python is not None else ""
    return node.python or found or "python3"


def command_with_python(command: tuple[str, ...], python: str) -> tuple[str, ...]:
    """Return a job's command; a module, an option or a .py file gets the interpreter."""
    if command[0].startswith("-") or command[0].endswith(".py"):
        return (python, *command)
    return command


def _address(network: Network, node: Node) -> str:
    chosen = network.nodes.get(node.name)
    if chosen is None or not network.master_address:
        raise LaunchRefused(
            f"{node.name}: it has no address on a network that all nodes share ({network.why})",
            hint="clusterctl check --only network",
        )
    return chosen.address
