"""The supervisor's process: leaves the session, takes the lock, says that it is up, then lives.

    python3 -X utf8 -I -S AGENT clusterctl.node.supervise:main FOLDER UNIT DESCRIPTOR

On stdin comes one JSON object with the job, the environment and the secrets, so that these are
never on a disk. DESCRIPTOR is a pipe to whoever started it: one JSON line of answer.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import sys
import time
import traceback
from typing import Any, Dict

from clusterctl.node.detach import own_scope
from clusterctl.node.door import Door
from clusterctl.node.environ import encode
from clusterctl.node.link import OperationError
from clusterctl.node.paths import MAKE_ROOM, NodePaths
from clusterctl.node.rank import take_log
from clusterctl.node.record import Record
from clusterctl.node.spawn import Spawner
from clusterctl.node.supervisor import Supervisor

PR_SET_CHILD_SUBREAPER = 36


def main(folder: str, unit: str, descriptor: str) -> int:
    """Supervise; returns when the run's part is over."""
    start = json.loads(sys.stdin.buffer.read())
    if os.fork():
        os._exit(0)
    paths = NodePaths(folder)
    leave_session(paths)
    answer = int(descriptor)
    os.set_inheritable(answer, False)
    try:
        supervisor = begin(paths, {**start["job"], "cgroup": own_scope(unit)}, start)
    except OperationError as error:
        say(answer, error.head())
        return 1
    if not say(answer, {"event": "up", "pid": os.getpid(), "link_port": supervisor.link_port}):
        supervisor.stop({"reason": "whoever started it did not wait for it", "grace": 0})
    try:
        while not supervisor.over:
            supervisor.reactor.turn()
    except Exception as error:  # noqa: BLE001  (whatever it is, nothing may be left running)
        traceback.print_exc()
        supervisor.give_up("the supervisor failed: %r (see launcher.log)" % error)
        return 1
    return 0


def leave_session(paths: NodePaths) -> None:
    """Keep nothing of the session that started us, and adopt what our ranks leave behind."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    take_log(paths.launcher_log)
    os.chdir("/")
    keep_from_cleaners(paths.folder)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def keep_from_cleaners(folder: str) -> None:
    """Lock the folder: systemd-tmpfiles, which removes what is a month old, leaves it then."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)  # a filesystem without locks; its cleaner is its owner's matter


def begin(paths: NodePaths, job: Dict[str, Any], start: Dict[str, Any]) -> Supervisor:
    """Take the lock and start the job.

    Raises:
        OperationError: `busy`, `state-folder`, `link` or `exec`.
    """
    record = Record(paths)
    try:
        door = Door.take(job["lock"])
        record.reserve()
    except OSError as error:
        message = "cannot write to %s: %s" % (paths.folder, error.strerror)
        raise OperationError("state-folder", message, hint=MAKE_ROOM) from error
    environment = {encode(name): encode(value) for name, value in start["env"].items()}
    try:
        supervisor = Supervisor(job, start["secrets"], Spawner(paths, job, environment), record)
    except OSError as error:
        where = "%s:%d" % (job["link"]["address"], job["link"]["port"])
        message = "the supervisors' link cannot listen on %s: %s" % (where, error.strerror)
        raise OperationError("link", message) from error
    who = {"run": job["run"], "cluster": job["cluster"], "node": job["node"]}
    user = {"user": job["user"], "since": time.time(), "workdir": job["workdir"]}
    door.answer(supervisor.reactor, {**who, **user}, supervisor.asked)
    try:
        supervisor.start()
    except OSError as error:
        raise OperationError("exec", "cannot start a process: %s" % error.strerror) from error
    record.account(supervisor.account())
    return supervisor


def say(descriptor: int, head: Dict[str, Any]) -> bool:
    """Give the one answer to whoever started us; False: nobody waits for it any more."""
    try:
        os.write(descriptor, json.dumps(head).encode() + b"\n")
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
