"""direct: the supervisor itself starts the ranks. See `clusterctl/node/launchers/direct.py`."""

from clusterctl.node.launchers.direct import environment
from clusterctl.plan.launchers.interface import Launcher

DIRECT = Launcher(argv=None, environment=environment)
