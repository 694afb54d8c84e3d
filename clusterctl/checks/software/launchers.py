"""Whether the nodes can run the job's launcher: its packages, its ranks, its own configuration."""

from collections.abc import Iterator

from clusterctl.checks.finding import Finding, fail, finding, unknown
from clusterctl.checks.others import other_version, outliers
from clusterctl.checks.registry import Check, Facts
from clusterctl.checks.software.python import FOUND, TORCH, install_command, working_pythons
from clusterctl.checks.storage.run_paths import in_workdir
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.inventory.cluster import Cluster
from clusterctl.plan.launchers import LAUNCHERS, launcher_file
from clusterctl.plan.launchers.interface import Launcher, argument
from clusterctl.plan.make import unequal_nodes
from clusterctl.plan.processes import count_processes

PAGE = "docs/reference/launchers.md"


def _launcher(cluster: Cluster) -> Launcher:
    return LAUNCHERS[cluster.job.launcher]


def _packages(cluster: Cluster) -> tuple[str, ...]:
    """Return the launcher's packages besides torch, which has a check of its own."""
    launcher = _launcher(cluster)
    return tuple(name for name in launcher.packages if name != "torch")


@Check(
    "python.launcher",
    title="the launcher's package is installed, in one version",
    why="The launcher runs on every node with the job's interpreter. Other versions of it start"
    " the ranks with other variables.",
    fix="Install the same version of the launcher's package on all nodes.",
    source=PAGE,
    explained_by=(FOUND, TORCH),
    required_facts=("python",),
    applies=lambda _node, cluster: bool(_packages(cluster)),
)
def installed(facts: Facts, cluster: Cluster) -> Iterator[Finding]:
    """Compare the versions; each node needs one."""
    pythons = working_pythons(facts)
    deepspeed = any(
        ("distributed_type", "DEEPSPEED") in (node.launcher_config or ()) for node in facts.values()
    )
    for package in (*_packages(cluster), *(("deepspeed",) if deepspeed else ())):
        use = (
            "the launcher's configuration needs"
            if package == "deepspeed"
            else "is the job's launcher"
        )
        versions = {name: python.package(package) for name, python in pythons.items()}
        known = {name: version for name, version in versions.items() if version}
        for name in versions.keys() - known.keys():
            wanted = next(iter(known.values()), "")
            yield fail(
                name,
                f"the job's interpreter has no {package}, which {use}",
                wanted=f"{package} {wanted}".strip(),
                found=f"none in {pythons[name].executable}",
                remedy=install_command(pythons[name], package, wanted),
            )
        for name, found, usual in outliers(known):
            remedy = install_command(pythons[name], package, usual)
            yield other_version("fail", name, package, found, usual, remedy)


@Check(
    "job.ranks",
    title="the launcher can start the ranks that are planned",
    why="accelerate divides the number of ranks by the number of nodes. Nodes of different size"
    " would wait for ranks that no node starts.",
    fix="Use torchrun or direct, or limit the ranks with `--gpus` or `--procs-per-node`.",
    source="https://huggingface.co/docs/accelerate/package_reference/cli",
    applies=lambda _node, cluster: _needs_equal_nodes(cluster),
)
def ranks(facts: Facts, cluster: Cluster) -> Iterator[Finding]:
    """Compare the number of ranks of all nodes."""
    if not _needs_equal_nodes(cluster):
        return
    counts = _counted(facts, cluster)
    for node in facts.values():
        if node.node in counts or not node.answered:
            continue
        yield unknown(
            node.node,
            "the number of ranks is unknown, because that of GPUs is",
            wanted="a number of GPUs",
            found=node.why_unknown("gpus") or "could not be read",
            remedy="set `gpus: N` for this node in the inventory",
        )
    procs = [counts[node.name] for node in cluster.nodes if node.name in counts]
    if len(procs) == len(cluster.nodes) and len(set(procs)) > 1:
        message, hint = unequal_nodes(cluster, procs)
        found = ", ".join(map(str, procs))
        yield fail(tuple(facts), message, wanted="one number", found=found, remedy=hint)


def _counted(facts: Facts, cluster: Cluster) -> dict[str, int]:
    """Return the number of ranks of each node on which it is known."""
    known = (n for n in facts.values() if n.gpus or cluster.node(n.node).gpus_wanted is not None)
    return {n.node: count_processes(cluster, cluster.node(n.node), n).procs for n in known}


def _needs_equal_nodes(cluster: Cluster) -> bool:
    return _launcher(cluster).equal_nodes


@Check(
    "job.launcher-config",
    title="the launcher's own configuration matches the plan",
    why="The plan's counts and addresses override those in the file, so they mislead a reader."
    " A file for another place, such as SageMaker, would train elsewhere.",
    fix="Remove the setting from the file, or make it the value that the finding names.",
    source=PAGE,
    required_facts=("launcher_config",),
    applies=lambda node, cluster: bool(_file_of(node, cluster)),
)
def config(facts: Facts, cluster: Cluster) -> Iterator[Finding]:
    """Compare the numbers in the file with those of the plan."""
    launcher = _launcher(cluster)
    if launcher.config_problems is None:
        return
    counts = _counted(facts, cluster)
    if len(counts) < len(cluster.nodes):
        return
    for node in facts.values():
        settings = dict(node.launcher_config or ())
        if not settings and argument(cluster.job.args, "--config-file"):
            local = in_workdir(cluster.node(node.node), _file_of(node, cluster))
            yield fail(
                node.node,
                "the launcher's own configuration is not there, or has no setting",
                wanted=_file_of(node, cluster),
                found="no setting",
                remedy=f"clusterctl sync (in the folder with {local}) brings it"
                if local
                else f"write {_file_of(node, cluster)} on the node",
            )
        device = count_processes(cluster, cluster.node(node.node), node).device
        world = sum(counts.values())
        for problem in launcher.config_problems(settings, len(counts), world, device):
            yield finding(
                "fail" if problem.fatal else "warn",
                node.node,
                problem.message,
                wanted=f"{problem.name}: {problem.wanted}",
                found=f"{problem.name}: {problem.found} in {_file_of(node, cluster)}",
                remedy=f"change {problem.name} in {_place_of_file(node, cluster)}"
                + (f", or {problem.wish}" if problem.wish else ""),
            )


def _file_of(node: NodeFacts, cluster: Cluster) -> str:
    return launcher_file(cluster.job, cluster.node(node.node))


def _place_of_file(node: NodeFacts, cluster: Cluster) -> str:
    """Return where a user changes the file: the next sync overwrites a node's copy."""
    file = _file_of(node, cluster)
    local = in_workdir(cluster.node(node.node), file)
    return f"{local}, in the folder that you launch from" if local else f"{file} on the node"
