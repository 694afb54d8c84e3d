"""A node that was lost and joins its run again: its folder continues, with all earlier logs."""

from __future__ import annotations

import contextlib
import os
from typing import Iterator, List

from clusterctl.node.agent.call_channel import OperationError
from clusterctl.node.file_io import read_file, read_json
from clusterctl.node.run.files.node_job import NodeJob
from clusterctl.node.run.files.run_paths import NodePaths
from clusterctl.node.run.operations.node_run import LocalRun
from clusterctl.node.run.operations.status import is_alive
from clusterctl.node.run.processes import containers, processes
from clusterctl.node.run.processes.boot import boot_id

WAIT_HINT = "the same command again once `clusterctl status %s` shows that its part has ended"


def require_ended(job: NodeJob) -> int:
    """Verify that the earlier part is over, KILL what is left; return the new attempt's number."""
    paths = NodePaths.of(job)
    if not os.path.lexists(paths.folder):
        return 1
    problem = paths.ownership_problem()
    if problem:
        raise OperationError("state-folder", problem, folder=paths.folder)
    node_run = LocalRun.find({**job})
    if node_run.holds_lock() or is_alive(read_json(paths.supervisor)):
        message = "the node's earlier part of run %s has not ended" % job["run"]
        raise OperationError("busy", message, hint=WAIT_HINT % job["run"])
    left: List[str] = [
        "pid %d (%s)" % (process.pid, processes.command_of(process.pid)[:200])
        for process in node_run.kill()
    ]
    left += ["%(cmd)s: %(why)s" % one for one in containers.remove_and_describe(node_run.job)]
    if left:
        message = "processes of the earlier part are left: %s" % ", ".join(left)
        raise OperationError("busy", message, hint="ps -fp PID (on the node) shows a process")
    return int(node_run.job.get("attempt", 1)) + 1


@contextlib.contextmanager
def continued_folder(paths: NodePaths) -> Iterator[None]:
    """Open the folder of an earlier part again; if the block fails, it is as it was.

    Its logs and events are kept: the new part appends to them.
    """
    changed = (
        paths.end, paths.job, paths.hostfile, paths.agent, paths.processes, paths.supervisor,
    )  # fmt: skip
    before = {path: read_file(path) for path in changed}
    if read_json(paths.job).get("boot_id") != boot_id():
        _remove(paths.processes)  # of before the reboot: the same numbers are other processes
    _remove(paths.end)
    _remove(paths.supervisor)  # a stop finds none until this part has its own
    try:
        yield
    except BaseException:
        for path, content in before.items():
            _restore(path, content)
        raise


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def _restore(path: str, content: bytes) -> None:
    if not content:
        return _remove(path)
    with contextlib.suppress(OSError):
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        with open(os.open(path, flags, 0o600), "wb") as file:
            file.write(content)
    return None
