"""ray: a Ray cluster of the run's own on the data network, and the command as its driver.

The command runs once, on the master. What it starts through Ray are Ray's own workers: they do not
report to clusterctl, so the run counts one rank; `clusterctl/node/supervisor/ranks/ray_node.py`
starts them.
"""

from clusterctl.plan.launchers.interface import LaunchContext, Launcher, Variables, node_variables

_RANDOM_PORTS = ("--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0")
"""A Ray that is already on the machine keeps its usual ports."""


def argv(context: LaunchContext) -> tuple[str, ...]:
    """Return the call of `ray start` on a node; empty if a cluster exists."""
    if context.ray_address:
        return ()
    head = ("--head", f"--port={context.master_port}", "--include-dashboard=false")
    return (
        context.python,
        "-m",
        "ray.scripts.scripts",
        "start",
        *((f"--address={ray_address(context)}",) if context.node_rank else head),
        f"--node-ip-address={context.address}",
        f"--node-name={context.node}",
        f"--num-gpus={context.gpus}",
        *_RANDOM_PORTS,
        "--block",
        *context.args,
    )


def ray_address(context: LaunchContext) -> str:
    """Return the address of the Ray cluster for the driver."""
    if context.ray_address:
        return context.ray_address
    address = context.master_address
    return f"{f'[{address}]' if ':' in address else address}:{context.master_port}"


def environment(context: LaunchContext) -> Variables:
    """Return the variables by which a driver, and every command of Ray, finds the cluster."""
    return (("RAY_ADDRESS", ray_address(context)), *node_variables(context))


RAY = Launcher(
    argv=argv,
    environment=environment,
    packages=("ray",),
    defaults=(("RAY_USAGE_STATS_ENABLED", "0", "Ray reports nothing to its makers"),),
    program="clusterctl.node.supervisor.ranks.ray_node:main",
    one_driver=True,
)
