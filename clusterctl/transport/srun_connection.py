"""A node of a Slurm allocation: each call is a step of the job, which srun carries."""

from __future__ import annotations

import re
import shutil

from clusterctl.errors import NodeError
from clusterctl.inventory.cluster import Node
from clusterctl.inventory.other_programs.allocation import JOB
from clusterctl.safe_text import printable_words
from clusterctl.transport import agent
from clusterctl.transport.connection import Connection
from clusterctl.transport.interface import Timeouts
from clusterctl.transport.stream import ExitInfo, ProcessStream, Stream
from clusterctl.transport.translate_errors import translated

_OWN_ERROR = re.compile(rb"^srun: error: (?!.*: tasks? [0-9,-]+: Exited)(.*)", re.MULTILINE)
"""srun's own words, not those on the exit code of what it ran: both have one exit status."""


class SrunStream(ProcessStream):
    """An `srun` that runs a command on one node."""

    def ending(self) -> ExitInfo:
        """Return how it ended; an error of srun's own means that there is no such step."""
        ending = super().ending()
        errors = _OWN_ERROR.findall(ending.errors)
        if not errors:
            return ending
        cause = "srun: " + printable_words(b"\n".join(errors))
        return ExitInfo(connected=False, errors=ending.errors, cause=cause)


class SrunConnection(Connection):
    """A node of the allocation that this process is in."""

    alive = True

    def __init__(self, node: Node, timeouts: Timeouts) -> None:
        """Take the node; there is nothing to open.

        Raises:
            NodeError: there is no allocation, or no srun.
        """
        super().__init__(node, timeouts)
        job = node.ssh.slurm_job
        if not job:
            message = f"{JOB}: expected in the environment for `via: srun`, found none"
            hint = "salloc -N 2, then the same command in its shell"
            raise NodeError("unreachable", "config", message, hint)
        if shutil.which("srun") is None:
            hint = "install Slurm's client programs (slurm-client)"
            raise NodeError("unreachable", "config", "there is no srun on this machine", hint)
        self._job = job

    def start_agent(self) -> Stream:
        """Start the agent as a step of its own, next to the job's other steps."""
        argv = [
            *("srun", f"--jobid={self._job}", f"--nodelist={self.node.host}"),
            *("--nodes=1", "--ntasks=1", "--overlap"),
            # A step that must wait would wait for the end of a training. The ranks choose CPUs.
            *("--immediate=10", "--cpu-bind=none", "--unbuffered"),
            # Else the step starts in a folder that only this machine may have.
            *("--chdir=/", "/bin/sh", "-c", agent.COMMAND),
        ]
        with translated("exec", self.node.name):
            return SrunStream(argv)

    def close(self) -> None:
        """Nothing is held open between calls."""
