"""torchrun: PyTorch's own agent on every node. See `clusterctl/node/launchers/torchrun.py`."""

from clusterctl.node.launchers.torchrun import argv, elastic, environment
from clusterctl.plan.launchers.interface import Launcher, allows_restarts, limit_restarts

TORCHRUN = Launcher(
    argv=argv,
    environment=environment,
    packages=("torch",),
    restarts=allows_restarts,
    limit_restarts=limit_restarts,
    elastic=elastic,
)
