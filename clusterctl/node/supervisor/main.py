"""The supervisor's process: takes the lock, reports that it is up, then lives as long as the run.

Its parent is the guard, which does what is left to do if this process dies: see `finish`.
"""

from __future__ import annotations

import os
import resource
import time
from typing import Any, Dict, List, Optional, Tuple

from clusterctl.node import handover_sockets
from clusterctl.node.agent.call_channel import OperationError
from clusterctl.node.file_io import read_json
from clusterctl.node.run.files.node_job import NodeJob
from clusterctl.node.run.files.run_files import RunFiles, write_json
from clusterctl.node.run.files.run_paths import FREE_SPACE_HINT, NodePaths
from clusterctl.node.run.processes import processes
from clusterctl.node.run.processes.detach import own_scope
from clusterctl.node.run.processes.environ_bytes import Environment
from clusterctl.node.run_lock import resources_of
from clusterctl.node.supervisor.control_socket import ControlSocket
from clusterctl.node.supervisor.guard import AGAIN
from clusterctl.node.supervisor.ranks.spawn import Spawner
from clusterctl.node.supervisor.supervisor import Finisher, Supervisor
from clusterctl.own_files import replace_file
from clusterctl.wire import encode_line


def supervise(
    paths: NodePaths, start: Dict[str, Any], answer: int, guard: int, held: List[int]
) -> int:
    """Supervise until the run is over on this node.

    Args:
        paths: of the run's folder.
        start: `job`, `env`, `secrets`; `unit`: the scope's name; `guard`: the guard's key.
        answer: a pipe to the process that starts the run, for one line; -1: of a further attempt.
        guard: a channel to the guard: what it needs to finish in our place, or to continue.
        held: sockets of the lock, from the attempt before; none of the first one.
    """
    processes.become_subreaper()
    raise_soft_limits()
    is_first = answer >= 0
    try:
        supervisor, control_socket = start_supervisor(paths, start, held)
    except OperationError as error:
        if is_first:
            answer_starter(answer, error.head())
        else:
            write_line(guard, {"reason": "the next attempt cannot be started: %s" % error})
        return 1
    port = {"link_port": supervisor.link_port}
    write_line(guard, port)
    if is_first:
        up = answer_starter(answer, {"event": "up", "pid": os.getpid(), **port})
        os.close(answer)
        if not up:
            supervisor.give_up("the process that started it did not wait for it")
    try:
        supervisor.run()
    except Exception as error:  # noqa: BLE001  (whatever it is, nothing may be left running)
        import traceback  # noqa: PLC0415  (start-up counts)

        traceback.print_exc()
        write_line(guard, {"reason": "the supervisor failed: %r (see launcher.log)" % error})
        return 1
    if supervisor.again is None:
        return 0
    left = {"again": supervisor.again, "began": supervisor.began}
    handover_sockets.send(guard, encode_line(left), control_socket.descriptors)
    return AGAIN


def finish(paths: NodePaths, start: Dict[str, Any], known: Dict[str, Any]) -> int:
    """Do what the dead supervisor could not: tell the other nodes, write the end.

    Args:
        paths: of the run's folder.
        start: as for `supervise`.
        known: `link_port`, where the dead one listened for the others; `reason`, `time`: how and
            when it died.
    """
    job = own_job(start)
    if job["node_rank"] == 0:  # where the others look for us
        job["link"] = {**job["link"], "port": known["link_port"]}
        # Nodes may have joined since the launch.
        nodes = read_json(paths.supervisor).get("nodes") or [job["node"], *job["workers"]]
        job["workers"] = nodes[1:]
    record = RunFiles(paths)
    try:
        control_socket: Optional[ControlSocket] = ControlSocket.acquire(job["lock"])
    except (OperationError, OSError):
        control_socket = None  # another run has begun here; this one only has its end to report
        job["after"] = None
    spawner = Spawner(paths, job, encoded(start["env"]))
    try:
        supervisor = Finisher(job, start["secrets"], spawner, record, start["guard"])
    except OSError:
        # Another took the port: the other nodes learn the end from the silence.
        alone: NodeJob = {**job, "nnodes": 1, "elastic": None, "spares": [], "lineup": None}
        supervisor = Finisher(alone, start["secrets"], spawner, record, start["guard"])
    if control_socket is not None:
        serve_requests(control_socket, job, supervisor)
    supervisor.finish(read_json(paths.supervisor), known["reason"], known["time"])
    supervisor.run()
    return 0


def own_job(start: Dict[str, Any]) -> NodeJob:
    """Return the job, with the cgroup that this process is in."""
    job: NodeJob = start["job"]
    return {**job, "cgroup": own_scope(start["unit"])}


def start_supervisor(
    paths: NodePaths, start: Dict[str, Any], held: List[int]
) -> Tuple[Supervisor, ControlSocket]:
    """Take the lock, unless its sockets are held, and start the job."""
    job = own_job(start)
    record = RunFiles(paths)
    try:
        control_socket = (
            ControlSocket(job["lock"], held) if held else ControlSocket.acquire(job["lock"])
        )
        if held:
            record.begin_attempt()
            write_json(paths.job, job)
            replace_file(paths.hostfile, job["hostfile"].encode())
        # By now a stop finds this process; one that came earlier has left an end.
        if os.path.exists(paths.end):
            raise OperationError("stopped", "the run was stopped before it started here")
        record.reserve_space()
    except OSError as error:
        message = "cannot write to %s: %s" % (paths.folder, error.strerror)
        raise OperationError("state-folder", message, hint=FREE_SPACE_HINT) from error
    environment = encoded(start["env"])
    if not _makes_pipes(paths.folder):
        environment.pop(b"TORCH_NCCL_DEBUG_INFO_PIPE_FILE", None)  # torch would end the rank
    if job.get("launcher_program") and job["launcher"] == "ray":
        environment = {**ray_variables(start["secrets"]), **environment}
    spawner = Spawner(paths, job, environment)
    try:
        supervisor = Supervisor(job, start["secrets"], spawner, record, start["guard"])
    except OSError as error:
        where = "%s:%d" % (job["link"]["address"], job["link"]["port"])
        message = "the supervisors' link cannot listen on %s: %s" % (where, error.strerror)
        raise OperationError("link", message) from error
    serve_requests(control_socket, job, supervisor)
    try:
        supervisor.start()
    except OSError as error:
        raise OperationError("exec", "cannot start a process: %s" % error.strerror) from error
    record.write_snapshot(supervisor.snapshot())
    return supervisor, control_socket


def encoded(env: Dict[str, str]) -> Environment:
    """Return an environment that came as JSON."""
    return {os.fsencode(name): os.fsencode(value) for name, value in env.items()}


def _makes_pipes(folder: str) -> bool:
    """Tell whether the file system of a folder has named pipes."""
    path = os.path.join(folder, "probe.pipe")
    try:
        os.mkfifo(path, 0o600)
        os.unlink(path)
    except OSError:
        return False
    return True


def ray_variables(secrets: Dict[str, str]) -> Environment:
    """Return the variables by which the run's Ray admits only this run, on every node the same.

    Without them, any program that reaches its ports can run code as this user.
    """
    return {b"RAY_AUTH_MODE": b"token", b"RAY_AUTH_TOKEN": secrets["ray_token"].encode()}


def serve_requests(control_socket: ControlSocket, job: NodeJob, supervisor: Supervisor) -> None:
    """Answer at the lock from now on."""
    who = {"run": job["run"], "cluster": job["cluster"], "node": job["node"]}
    user = {"user": job["user"], "since": time.time(), "about": describe_run(job)}
    workdir = {name: job[name] for name in ("workdir", "workdir_id")}
    holds = {"holds": resources_of(job["lock"])}
    everything = {**who, **user, **workdir, **holds}
    control_socket.serve(supervisor.loop, everything, supervisor.handle_request)


COMMAND_SHOWN = 60
"""Characters of a command that others are shown."""


def describe_run(job: NodeJob) -> str:
    """Return a run's name, command and origin, for a launch that finds the machine busy."""
    argv = [str(word) for word in job["argv"]]
    if len(argv) > 1 and os.path.basename(argv[0]).startswith("python"):
        argv = argv[1:]
    command = " ".join(argv)
    if len(command) > COMMAND_SHOWN:
        command = command[:COMMAND_SHOWN] + "..."
    name = "'%s' " % job["name"] if job.get("name") else ""
    controller = " from %s" % job["controller"] if job.get("controller") else ""
    return "%s(%s)%s" % (name, command, controller)


def answer_starter(descriptor: int, head: Dict[str, Any]) -> bool:
    """Give the one answer to the process that started us; False: it does not wait for it."""
    try:
        write_line(descriptor, head)
    except OSError:
        return False
    return True


def write_line(descriptor: int, head: Dict[str, Any]) -> None:
    """Write one line of JSON; raise OSError if the reader exited."""
    os.write(descriptor, encode_line(head))


MOST_FILES = 1 << 20
"""Open files; some programs loop over all numbers up to their limit, which may be a billion."""

RAISED = (
    resource.RLIMIT_NOFILE, resource.RLIMIT_MEMLOCK, resource.RLIMIT_NPROC, resource.RLIMIT_CPU,
    resource.RLIMIT_AS,
)  # fmt: skip
"""Not the stack: glibc sizes the stack of each thread by it. Not core: dumps fill the disk."""


def raise_soft_limits() -> None:
    """Raise the soft limits on files, memory, processes and CPU time; children inherit them."""
    for kind in RAISED:
        soft, hard = resource.getrlimit(kind)
        wanted = hard
        if kind == resource.RLIMIT_NOFILE and not 0 <= hard <= MOST_FILES:
            wanted = MOST_FILES
        if soft in {wanted, resource.RLIM_INFINITY} or 0 <= wanted < soft:
            continue
        try:
            resource.setrlimit(kind, (wanted, hard))
        except (OSError, ValueError):
            continue  # the kernel's own maximum is lower: what we have must do
