"""The operation `start`: makes the run's folder, and leaves a supervisor behind in it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import time
from shlex import quote
from typing import Any, Callable, Dict, Iterator, List, Optional

from clusterctl.node import run_lock
from clusterctl.node.agent import loader
from clusterctl.node.agent.call_channel import CallChannel, OperationError
from clusterctl.node.agent.child_tasks import held_by_child, run_with_timeout
from clusterctl.node.file_io import read_end
from clusterctl.node.mirror.manifest import sync_unfinished
from clusterctl.node.mirror.sync_lock import keep_syncs_out
from clusterctl.node.program_path import broken_link, find_program
from clusterctl.node.run.files.node_job import NodeJob
from clusterctl.node.run.files.own_agent import agent_argv
from clusterctl.node.run.files.run_files import write_json
from clusterctl.node.run.files.run_paths import FREE_SPACE_HINT, NodePaths
from clusterctl.node.run.files.stop_file import remove_stale
from clusterctl.node.run.operations import rejoin
from clusterctl.node.run.processes import containers
from clusterctl.node.run.processes.boot import boot_id, uptime
from clusterctl.node.run.processes.detach import detach_command
from clusterctl.node.run.processes.environ_bytes import Environment, original_environment
from clusterctl.node.run.processes.environment import job_environment
from clusterctl.node.run.processes.leftovers import require_no_leftovers
from clusterctl.node.run.processes.processes import ENV_LOCK, become_subreaper, run_environment
from clusterctl.own_files import user_name
from clusterctl.wire import HEAD_LIMIT, LineReader, Message

STEP = b"SLURM_STEP_ID"
"""Slurm sets it for what it starts on a node."""
START_SECONDS = 60.0
CHECK_SECONDS = 10.0
"""How long workdir and the command's folders may take to answer."""
LAST_LINES = 20
WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC


def start(args: Dict[str, Any], body: bytes, channel: CallChannel) -> Message:
    """Start a run on this node, detached, and answer once its processes are there.

    Args:
        args: `job`: what to start; it is kept in the run's folder, so it holds no secret;
            `forces`: also where the last sync did not finish, and wherever its ranks meet.
        body: JSON: `env` (secret values), `token`, and on the master `key`.
        channel: learns whether this process must stay.
    """
    sent: NodeJob = args["job"]
    job: NodeJob = {
        **sent,
        "user": user_name(),
        "workdir": os.path.expanduser(sent["workdir"]),
        "boot_id": boot_id(),
        "up": uptime(),
        "force": bool(args.get("forces")),
    }
    job["container"] = containers.fill_in(sent["container"], job["workdir"])
    secrets = json.loads(body or b"{}")
    joins = bool(job.get("joined"))
    part = rejoin.require_ended(job) if joins else 1
    # A run that restarts counts its attempts itself: the same on every node.
    job["attempt"] = sent["attempt"] if joins and job.get("lineup") else part
    require_no_leftovers(job)
    check_with_timeout(job["workdir"], lambda: require_workdir(job))
    job["workdir_id"] = run_lock.workdir_id(os.fsencode(job["workdir"]))
    with without_syncs(job["workdir"]):  # until the supervisor has the run's lock
        return Message(_start_in_workdir(job, secrets, channel, forces=bool(args.get("forces"))))


def _start_in_workdir(
    job: NodeJob, secrets: Dict[str, Any], channel: CallChannel, *, forces: bool
) -> Dict[str, Any]:
    """Start the run while no sync may change its files; return the supervisor's first answer."""
    began = time.monotonic()
    heard: List[str] = []
    environment = job_environment(job, secrets.setdefault("env", {}), heard=heard)
    job["env_init_s"] = round(time.monotonic() - began, 1)
    job["env_init_said"] = "".join(heard)

    def look() -> None:
        require_own_files(job, forces=forces)
        require_commands(job, environment)

    check_with_timeout(job["workdir"], look)
    refuse_container_client(job["argv"])
    remove_stale(job)
    unit = "clusterctl-%s-%s" % (job["run"], job["node"])
    # Slurm kills what a step leaves, in a session of its own too: the step stays for the run.
    channel.outlived = STEP in os.environb
    if channel.outlived:
        become_subreaper()
    outliving = [] if channel.outlived else detach_command(unit)
    paths = NodePaths.of(job)
    env = {os.fsdecode(name): os.fsdecode(value) for name, value in environment.items()}
    start = {"job": job, "env": env, "secrets": secrets}
    markers = [*run_environment(job["run"], job["node"]), ENV_LOCK + b"=" + job["lock"].encode()]
    guard = agent_argv(paths, "clusterctl.node.supervisor.guard:main", paths.folder, unit)
    again = job.get("joined") and os.path.lexists(paths.folder)
    with rejoin.continued_folder(paths) if again else new_folder(paths):
        write_files(paths, job)
        return start_detached(paths, [*outliving, *guard], markers, start)


@contextlib.contextmanager
def new_folder(paths: NodePaths) -> Iterator[None]:
    """Make the run's folder; if the block fails, delete it."""
    paths.create()
    try:
        yield
    except Exception:
        shutil.rmtree(paths.folder, ignore_errors=True)  # it would look like a run that was lost
        raise


@contextlib.contextmanager
def without_syncs(workdir: str) -> Iterator[None]:
    """Keep syncs out of a folder; refuse one whose server does not answer."""

    @contextlib.contextmanager
    def hold() -> Iterator[Optional[Dict[str, Any]]]:
        try:
            with keep_syncs_out(os.fsencode(workdir)):
                yield None
        except OperationError as error:
            yield error.head()["error"]

    with contextlib.ExitStack() as held:
        try:
            error = held.enter_context(held_by_child(CHECK_SECONDS, hold))
        except TimeoutError as problem:
            raise no_answer(workdir, problem) from problem
        if error is not None:
            raise error_from(error)
        yield


def check_with_timeout(workdir: str, check: Callable[[], None]) -> None:
    """Look at files that may be on a share; refuse one whose server does not answer."""

    def refusal() -> Optional[Dict[str, Any]]:
        try:
            check()
        except OperationError as error:
            return error.head()["error"]  # type: ignore[no-any-return]
        return None

    try:
        error = run_with_timeout(CHECK_SECONDS, refusal)
    except TimeoutError as problem:
        raise no_answer(workdir, problem) from problem
    if error is not None:
        raise error_from(error)


def no_answer(workdir: str, problem: TimeoutError) -> OperationError:
    """Return the error for files that did not answer."""
    message = "workdir %s or the job's command: %s" % (workdir, problem)
    hint = "findmnt -T %s (on the node): does its file server answer?" % quote(workdir)
    return OperationError("workdir", message, workdir=workdir, hint=hint)


def error_from(error: Dict[str, Any]) -> OperationError:
    """Return the error that another process reported."""
    return OperationError(error.pop("kind"), error.pop("message"), **error)


def require_workdir(job: NodeJob) -> None:
    """Refuse a working folder that is none, or that this user may not enter."""
    workdir = job["workdir"]
    if not os.path.isdir(workdir) or not os.access(workdir, os.X_OK):
        what = "may not be entered" if os.path.isdir(workdir) else "is not a folder on this node"
        message = "workdir %s %s" % (workdir, what)
        hint = "clusterctl sync, or set `workdir:` in the inventory"
        raise OperationError("workdir", message, workdir=workdir, hint=hint)


def require_own_files(job: NodeJob, *, forces: bool) -> None:
    """Refuse a working folder that a sync left incomplete, or that is shared.

    Shared: two runs on this machine would share a stop file too.
    """
    workdir, stop_file = job["workdir"], job["stop"].get("file")
    if not forces and sync_unfinished(os.fsencode(workdir)):
        message = "the last sync of workdir %s did not finish: its files do not belong together"
        hint = "clusterctl sync, or --force to run what is there"
        raise OperationError("sync", message % workdir, workdir=workdir, hint=hint)
    machine = run_lock.machine_of(job["lock"])
    holder = run_lock.live_run(os.fsencode(workdir), machine) if stop_file else None
    if holder is not None:
        words = (holder.get("run", "?"), workdir, stop_file)
        message = "run %s works in %s too: the file %s would stop both" % words
        hint = "launch with another --workdir, or ask ranks by a signal: `stop:` in the inventory"
        raise OperationError("busy", message, holder=holder, hint=hint)


def require_commands(job: NodeJob, environment: Environment) -> None:
    """Refuse a job of whose commands this node lacks one."""
    inside = [] if job["container"] else [job["launcher_argv"], job["argv"]]
    for argv in (job["container"], job["wrap"], *inside):
        if argv:
            require_command(argv[0], environment, job["workdir"])


def require_command(word: str, environment: Environment, workdir: str) -> None:
    """Refuse a command that this node does not have, before anything is started."""
    path = environment.get(b"PATH", os.fsencode(os.defpath))
    name = os.fsencode(word)
    if b"/" in name:
        name = os.path.join(os.fsencode(workdir), name)
    found = find_program(name, path)
    shown = path.decode("utf-8", "backslashreplace")
    hint = "write its full path, or set `python:` or `env_init:` in the inventory"
    if found is None:
        where = broken_link(name) if "/" in word else " (PATH is %s)" % shown
        message = "command not found: %s%s" % (word, where)
        if "/" not in word and os.path.isfile(os.path.join(workdir, word)):
            hint = "it is in workdir: write {0}, or launch -- bash {0}".format(quote("./" + word))
    elif os.path.isdir(found):
        message = "%s is a folder, not a program" % word
    elif not os.access(found, os.X_OK):
        message = "%s is not a program that this user may run" % word
        hint = "chmod +x {0}, or launch -- bash {0}".format(quote(word))
    else:
        return
    raise OperationError("exec", message, command=word, path=shown, hint=hint)


def refuse_container_client(argv: List[str]) -> None:
    """Refuse a command whose program would run elsewhere: below a daemon, not below us."""
    name = os.path.basename(argv[0])
    if name not in containers.CLIENTS:
        return
    message = "%s is only a client: to kill it leaves the container and its GPU memory" % name
    hint = "write `wrap: [%s, run, IMAGE]` under `job:`, and the command without it" % name
    raise OperationError("exec", message, command=argv[0], hint=hint)


def write_files(paths: NodePaths, job: NodeJob) -> None:
    """Write what the run's folder has from the beginning: its own agent, and what was started."""
    try:
        with open(os.open(paths.agent, WRITE, 0o600), "wb") as file:
            file.write(loader.program(kept=paths.compiled))
        write_json(paths.job, job)
        with open(os.open(paths.hostfile, WRITE, 0o600), "w") as hosts:
            hosts.write(job["hostfile"])
        os.makedirs(paths.nccl, 0o700, exist_ok=True)
    except OSError as error:
        message = "cannot write to %s: %s" % (paths.folder, error.strerror)
        raise OperationError("state-folder", message, hint=FREE_SPACE_HINT) from error


def start_detached(
    paths: NodePaths, argv: List[str], markers: List[bytes], start: Dict[str, Any]
) -> Dict[str, Any]:
    """Start the supervisor in a session of its own, and return its first answer.

    No process waits for its end: when this process exits, pid 1 becomes its parent.
    """
    reader, writer = os.pipe()
    log = os.open(paths.launcher_log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        process = subprocess.Popen(
            [*argv, str(writer)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            cwd="/",
            env={**original_environment(), **dict(entry.split(b"=", 1) for entry in markers)},
            start_new_session=True,
            pass_fds=(writer,),
        )
    except OSError as problem:
        os.close(reader)
        message = "cannot start the supervisor by %s: %s" % (argv[0], problem.strerror)
        raise OperationError("died", message) from problem
    finally:
        os.close(writer)
        os.close(log)
    try:
        send_job(process, start)
        answer = first_answer(reader)
    finally:
        os.close(reader)
    if answer is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # it may be slow only, and must not come up
        text = read_end(paths.launcher_log, 16384).decode("utf-8", "backslashreplace")
        last = text.splitlines()[-LAST_LINES:]
        message = "\n".join(["the supervisor ended before it was up", *last])
        raise OperationError("died", message, output=last)
    if "error" in answer:
        raise error_from(answer.pop("error"))
    return answer


def send_job(process: "subprocess.Popen[bytes]", start: Dict[str, Any]) -> None:
    """Write the job to a process's stdin; one that died or hangs does not get it."""
    assert process.stdin is not None
    descriptor, data = process.stdin.fileno(), json.dumps(start).encode()
    os.set_blocking(descriptor, False)
    with contextlib.suppress(BrokenPipeError):
        while data and select.select([], [descriptor], [], START_SECONDS)[1]:
            data = data[os.write(descriptor, data) :]
    process.stdin.close()


def first_answer(reader: int) -> Optional[Dict[str, Any]]:
    """Read one line; None: the other side ends before that, or is too slow."""
    lines = LineReader()
    while (answer := lines.next(HEAD_LIMIT)) is None:
        ready, _, _ = select.select([reader], [], [], START_SECONDS)
        received = os.read(reader, 65536) if ready else b""
        if not received:
            return None
        lines.feed(received)
    return answer
