"""slurm: the nodes of an allocation, reached by srun; the ranks start as with `direct`.

Outside of an allocation, `launch` submits itself as a batch job: see `clusterctl/verbs/batch/`.
"""

from clusterctl.node.launchers.direct import environment
from clusterctl.plan.launchers.interface import Launcher

SLURM = Launcher(argv=None, environment=environment)
