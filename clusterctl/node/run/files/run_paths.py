"""Where a run keeps its files on a node: every name in one place.

    /var/tmp/clusterctl-UID/CLUSTER/RUN/NODE/
        agent.py          the code that looks after this run, for as long as it lives
        job.json          what was started, without secrets
        supervisor.json   who looks after it, and what is known of its ranks; replaced whole
        events.jsonl      what happened, one JSON object a line
        end.json          how it ended; written once, whole
        attempts.json     on the master, how each attempt of a run that restarts ended
        hostfile          all nodes and their ranks, as mpirun and DeepSpeed read them
        launcher.log      what the launcher and the supervisor wrote
        ranks/N.log       what global rank N wrote to stdout and stderr
        processes, beat, *.times, *.dropped    for `stop`, `status` and `logs`
        barred            alone in the folder: nothing was started here, and nothing will be
        ray.json, ray/    of the launcher ray: its nodes, and its own logs
        nccl/             NCCL's own logs, with `launch --debug`
        samples.jsonl     what the node and each rank used over time
        hang/N.json       the stacks of its ranks, when it stood still or was ended for that

Never under HOME, which may be one filesystem for all nodes and away just when it is needed.
"""

from __future__ import annotations

import os

from clusterctl.node.agent.call_channel import OperationError
from clusterctl.node.file_io import list_folder
from clusterctl.own_files import NotPrivateError, make_private, require_private

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

EVENTS = "events.jsonl"
HOSTFILE = "hostfile"
LAUNCHER_LOG = "launcher.log"
RANK_LOG = "ranks/%s.log"

FREE_SPACE_HINT = "make room there, or set `state:` of this node to another folder"


def default_state_folder() -> str:
    """Return this user's state folder, where the inventory names no other."""
    return "/var/tmp/clusterctl-%d" % os.getuid()  # noqa: S108  (0700, owner checked)


class NodePaths:
    """The files of a run on one node."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.agent = os.path.join(folder, "agent.py")
        self.job = os.path.join(folder, "job.json")
        self.hostfile = os.path.join(folder, HOSTFILE)
        self.supervisor = os.path.join(folder, "supervisor.json")
        self.heartbeat = os.path.join(folder, "beat")
        """When the supervisor was last seen alive, on the clock that no one sets."""
        self.processes = os.path.join(folder, "processes")
        """The processes that were seen to be the run's, a pid and start time a line."""
        self.events = os.path.join(folder, EVENTS)
        self.end = os.path.join(folder, "end.json")
        self.attempts = os.path.join(folder, "attempts.json")
        self.others = os.path.join(folder, "others.json")
        """Runs of other nodes that may write to this run's folder of checkpoints."""
        self.barred = os.path.join(folder, "barred")
        """Its presence means that the run never started here and never will."""
        self.reserve = os.path.join(folder, "reserve")
        """Room on the disk that the end is written into when there is no other left."""
        self.launcher_log = os.path.join(folder, LAUNCHER_LOG)
        self.ray = os.path.join(folder, "ray.json")
        self.nccl = os.path.join(folder, "nccl")
        self.hang = os.path.join(folder, "hang")
        self.samples = os.path.join(folder, "samples.jsonl")
        state = self._levels()[0]
        self.tools = os.path.join(state, ".tools")
        self.compiled = os.path.join(state, ".compiled")
        """What all runs share: py-spy, and compiled modules of agents."""

    @classmethod
    def of(cls, args: Mapping[str, Any]) -> NodePaths:
        """Return the paths for `cluster`, `run`, `node` and, where it is set, `state`."""
        root = args.get("state") or default_state_folder()
        return cls(os.path.join(root, args["cluster"], args["run"], args["node"]))

    def logs(self) -> List[str]:
        """Return the names of the logs that are there, relative to the folder, in rank order."""
        found = list_folder(os.path.join(self.folder, "ranks"))
        ranks = sorted(
            int(name[:-4]) for name in found if name[:-4].isdigit() and name[-4:] == ".log"
        )
        return [LAUNCHER_LOG] + [RANK_LOG % rank for rank in ranks]

    def nccl_logs(self) -> List[str]:
        """Return the names of NCCL's own logs, one of each process, relative to the folder."""
        found = list_folder(self.nccl)
        return sorted("%s/%s" % (os.path.basename(self.nccl), name) for name in found)

    def _levels(self) -> Tuple[str, str, str, str]:
        """Return the folders that are ours alone: of all runs, a cluster, a run, a node."""
        run = os.path.dirname(self.folder)
        cluster = os.path.dirname(run)
        return os.path.dirname(cluster), cluster, run, self.folder

    def ownership_problem(self) -> str:
        """Say why nothing in the folder may be believed; empty where all of it is ours."""
        try:
            for folder in self._levels():
                require_private(folder)
        except NotPrivateError as error:
            return str(error.strerror)
        except OSError as error:
            return "%s: %s" % (self.folder, error.strerror)
        return ""

    def create(self) -> None:
        """Make the folder, new; every clusterctl folder on the way is this user's alone."""
        *parents, _ = self._levels()
        try:
            make_private(*parents)
            os.mkdir(self.folder, 0o700)
            make_private(self.folder, os.path.join(self.folder, "ranks"))
        except NotPrivateError as error:
            hint = error.hint or _HINT
            raise OperationError(
                "state-folder", str(error.strerror), folder=error.filename, hint=hint
            ) from error
        except OSError as error:
            if os.path.isdir(self.folder):  # only a stop that was quicker makes it
                raise OperationError(
                    "stopped", "the run was stopped before it had started here"
                ) from error
            raise OperationError(
                "state-folder",
                "cannot make the run's folder %s: %s" % (self.folder, error.strerror),
                folder=self.folder,
                hint="set `state:` of this node to a folder on a local disk with room",
            ) from error


NO_PATHS = NodePaths(os.devnull)
"""The paths of a run that is not here: none of its files can be read or made."""


def times_of(log: str) -> str:
    """Return the file that says when a log had grown how far."""
    return log[: -len(".log")] + ".times"


def dropped_of(log: str) -> str:
    """Return the file that says how far a log's oldest bytes were dropped."""
    return log[: -len(".log")] + ".dropped"


def end_time(end: Dict[str, Any]) -> Optional[float]:
    """Return when a node run was over; early versions kept in end.json only when its end began."""
    return end.get("over") or end.get("time")


def rank_of(log: str) -> Optional[int]:
    """Return the rank that a log's name stands for, None for the launcher's."""
    name = log.rpartition("/")[2][: -len(".log")]
    return int(name) if name.isdigit() else None


def run_folders(root: str, cluster: str, only: str = "") -> Iterator[NodePaths]:
    """Yield the folders of this user's runs of a cluster that are kept here, oldest first."""
    for run in [only] if only else list_folder(os.path.join(root, cluster)):
        for node in list_folder(os.path.join(root, cluster, run)):
            paths = NodePaths(os.path.join(root, cluster, run, node))
            if not paths.ownership_problem():
                yield paths


_HINT = "set `state:` of this node to another folder, on a local disk"
