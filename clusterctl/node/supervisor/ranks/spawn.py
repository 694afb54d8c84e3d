"""Starts the launcher and the ranks, each through the exec shim, with exactly what they are due."""

from __future__ import annotations

import os
import signal
from typing import List

from clusterctl.node.run.files.node_job import NodeJob, run_attempt
from clusterctl.node.run.files.own_agent import agent_argv
from clusterctl.node.run.files.run_paths import LAUNCHER_LOG, RANK_LOG, NodePaths
from clusterctl.node.run.processes.environ_bytes import Environment
from clusterctl.node.run.processes.processes import ENV_LOCK, ENV_NODE, ENV_RUN_ID

UNCOLLECTED = (
    "import gc, runpy, sys; gc.disable(); del sys.argv[0]; "
    "__import__(sys.argv[0].rpartition('.')[0]); gc.freeze(); gc.enable(); "
    "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)
"""Is `-m` of a launcher, without the garbage collections that are a third of importing torch."""


class Spawner:
    """Starts processes of one run."""

    def __init__(self, paths: NodePaths, job: NodeJob, environment: Environment) -> None:
        self._paths, self._job = paths, job
        self.environment = {
            **environment,
            ENV_RUN_ID: job["run"].encode(),
            ENV_NODE: job["node"].encode(),
            ENV_LOCK: job["lock"].encode(),
            b"CLUSTERCTL_ATTEMPT": b"%d" % (run_attempt(job) or 1),
        }

    def launcher(self) -> int:
        """Start the launcher behind the rank's shim; return its pid, or raise OSError."""
        program = self._job.get("launcher_program")
        if program:
            words = agent_argv(self._paths, program, self._paths.folder)
        else:
            words = [*self._job["launcher_argv"], *self._inner_shim(), *self._rank_words()]
            if words[1] == "-m":
                words[1:2] = ["-c", UNCOLLECTED]
            words = [*self._job["container"], *words]
        return self._start(LAUNCHER_LOG, words, self.environment)

    def rank(self, local_rank: int) -> int:
        """Start a rank ourselves and return its pid; raise OSError if it cannot be started."""
        number = self._job["first_rank"] + local_rank
        rank = b"%d" % number
        own = {b"RANK": rank, b"LOCAL_RANK": b"%d" % local_rank, b"ROLE_RANK": rank}
        if self._job["launcher"] == "ray":  # a driver: torch would look for a rendezvous
            own = {}
        words = [*self._job["container"], *self._rank_words()]
        return self._start(RANK_LOG % number, words, {**self.environment, **own})

    def shell(self, line: str, variables: Environment) -> int:
        """Start a shell line of the job and return its pid; what it prints goes to the node's log.

        Raises:
            OSError: it cannot be started.
        """
        shell = "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"
        return self._start(LAUNCHER_LOG, [shell, "-c", line], {**self.environment, **variables})

    def container_remover(self) -> int:
        """Start the process that removes the run's containers; return its pid, or raise OSError."""
        words = agent_argv(
            self._paths, "clusterctl.node.run.processes.containers:main", self._paths.folder
        )
        return self._start(LAUNCHER_LOG, words, {**os.environb, **self.environment})

    def _rank_words(self) -> List[str]:
        return [*self._job["wrap"], *self._job["argv"]]

    def _inner_shim(self) -> List[str]:
        """Return the shim that the launcher starts; in a container, with the Python there."""
        shim = self._shim(RANK_LOG)
        return [self._job["python"], *shim[1:]] if self._job["container"] else shim

    def _shim(self, log: str) -> List[str]:
        return shim_argv(self._paths, self._job, log)

    def _start(self, log: str, words: List[str], environment: Environment) -> int:
        argv = [os.fsencode(word) for word in (*self._shim(log), *words)]
        return os.posix_spawn(
            argv[0],
            argv,
            environment,
            # Of its own, so that `kill 0` of a job's script does not reach us.
            setpgroup=0,
            setsigmask=(),
            setsigdef=set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP},
        )


def shim_argv(paths: NodePaths, job: NodeJob, log: str) -> List[str]:
    """Return the shim's command, which a program's own words follow."""
    where = (job["lock"], paths.folder, log, job["workdir"])
    return agent_argv(paths, "clusterctl.node.supervisor.ranks.rank:main", *where)
