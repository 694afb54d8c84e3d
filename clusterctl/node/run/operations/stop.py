"""The operation `stop`: ends a run on this node, even without its supervisor, and verifies it."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any, Dict, List

from clusterctl.node.agent.call_channel import CallChannel, ControllerDisconnected, OperationError
from clusterctl.node.file_io import read_json
from clusterctl.node.run.files.own_agent import hand_over
from clusterctl.node.run.files.run_paths import NodePaths
from clusterctl.node.run.operations.node_run import LocalRun
from clusterctl.node.run.processes import containers, foreign_gpu_use, processes, release_check
from clusterctl.node.run.processes.processes import Process
from clusterctl.wire import Message

VERIFY_SECONDS = 8.0
"""Seconds beyond the grace that a living supervisor gets to end everything itself."""


def stop(args: Dict[str, Any], body: bytes, channel: CallChannel) -> Message:
    """End a run on this node: ask, TERM, KILL the whole tree; then verify that nothing is left.

    Works when the supervisor is dead, when the run's folder was deleted, and again later.

    Args:
        args: `cluster`, `run`, `node`, perhaps `state`, `lock`; `grace`, `reason`, `by`;
            `prevent_start`: it may still be about to start, and must not;
            `planned`: what the controller knows of a run that has no folder, as in its job:
            `node_rank`, `master`, `device`; such a run will not start here any more.
        channel: gets `{"stage": …}` as it goes.

    Returns:
        `gone` and `left`: of processes and the GPU memory kept for them; `port_free` and
        `port_holder`; `gpu_free`. What could not be checked is null. `strangers`: processes that
        took GPU memory during the run and are not known to be of it. `nodes`: on the master, all
        nodes of the run. `left_out`: those without which it continued. `elsewhere`: commands of
        the job that started processes where no search looks. `ended`: the state in which it had
        ended here before, or null. `had_run`: the run has a folder here.
    """
    del body
    paths = NodePaths.of(args)
    if is_barred(paths) or (args.get("prevent_start") and bar(paths)):
        return Message({"gone": True, "left": [], "port_free": True, "gpu_free": True})
    if args.get("planned") and not LocalRun.find(args).holds_lock():
        create_placeholder(paths)
    node_run = LocalRun.find(args)
    hand_over("stop", args, channel, node_run.paths)
    node_stop = NodeStop(args, node_run, channel)
    node_stop.ask()
    node_stop.kill()
    node_stop.verify()
    return node_stop.answer()


class NodeStop:
    """The end of a run on this node, step by step; each step needs those before it."""

    def __init__(self, args: Dict[str, Any], run: LocalRun, channel: CallChannel) -> None:
        self._args, self._run, self._channel = args, run, channel
        self._reason = str(args.get("reason") or "stopped")
        self._ended = read_json(run.paths.end).get("state") if run.job else None
        """The state in which it had ended before."""
        self._was_lost = bool(run.job) and run.was_lost()
        self._unkillable: List[Process] = []
        self._left: List[Dict[str, Any]] = []
        """What is left, for the answer."""
        self._verified: Dict[str, Any] = {}

    def ask(self) -> None:
        """Let the supervisor end the run; where there is none, let none start it."""
        self._report("asking")
        if self._run.request_stop({**self._args, "reason": self._reason}):
            grace = float(self._args.get("grace") or 0.0)
            self._run.wait(time.monotonic() + grace + VERIFY_SECONDS)
        else:
            self._run.prevent_start(self._reason)

    def kill(self) -> None:
        """End what did not end by itself."""
        there = self._run.find_all()
        if there:
            self._report("killing", left=len(there))
        else:
            self._report("verifying")
        self._unkillable = self._run.kill()
        self._left = [describe_survivor(process) for process in self._unkillable]
        self._left += containers.remove_and_describe(self._run.job)

    def verify(self) -> None:
        """Look whether the GPUs and the port are free; if no process is left, record the end."""
        run, planned = self._run, self._args.get("planned") or {}
        # Which processes had a GPU only the folder knows.
        used = run.job or (planned if planned.get("device") == "cpu" else {})
        memory = release_check.check_gpu_memory(used, {pid for pid, _ in run.recorded.read()})
        unkillable = {process.pid for process in self._unkillable}
        holders = {pid: what for pid, what in memory.held.items() if pid not in unkillable}
        port_free, port_holder = release_check.check_port(run.job or planned, run.run)
        self._verified = {
            "strangers": foreign_gpu_use.foreign_holders(run.paths, holders),
            "port_free": port_free,
            "port_holder": port_holder,
            "gpu_free": memory.free,
        }
        if not self._left:
            self._record_end()
        self._left += memory.unreleased

    def answer(self) -> Message:
        """Return the answer to the controller."""
        snapshot = read_json(self._run.paths.supervisor)
        head = {"gone": not self._left, "left": self._left, "ended": self._ended}
        head["had_run"] = bool(self._run.job)
        known = {name: snapshot.get(name) for name in ("nodes", "elsewhere")}
        left_out = [one["node"] for one in self._run.job.get("left_out") or ()]
        return Message({**head, **known, "left_out": left_out, **self._verified})

    def _record_end(self) -> None:
        if self._run.job.get("launcher") == "ray":  # its supervisor may have died before it could
            from clusterctl.node.run.files import ray_folder  # noqa: PLC0415

            ray_folder.clean(self._run.paths.folder)
        self._run.write_missing_end(self._reason, lost=self._was_lost)

    def _report(self, stage: str, **details: object) -> None:
        """Report how far it is; a stop is completed whether or not anyone listens."""
        with contextlib.suppress(ControllerDisconnected):
            self._channel.send(Message({"stage": stage, **details}))


def create_placeholder(paths: NodePaths) -> None:
    """Make the folder of a run that has none, so that a start that still hangs cannot.

    The run is not barred by it: it may have been here, and its folder deleted.
    """
    with contextlib.suppress(OperationError):
        paths.create()


def bar(paths: NodePaths) -> bool:
    """Take the folder's place, so that a start under way cannot; False: the run has started."""
    try:
        paths.create()
        os.close(os.open(paths.barred, os.O_WRONLY | os.O_CREAT, 0o600))
    except OperationError:
        return False
    except OSError:
        return True
    return True


def is_barred(paths: NodePaths) -> bool:
    """Tell whether an earlier stop kept this run from starting: there is nothing to verify."""
    return not paths.ownership_problem() and os.path.exists(paths.barred)


def describe_survivor(process: Process) -> Dict[str, Any]:
    """Say of a process that could not be ended which it is, and why."""
    why = "stuck in the kernel (state D)" if process.uninterruptible else ""
    why = why or processes.send(process.key, 0) or "it was started again and again"
    return {"pid": process.pid, "cmd": processes.command_of(process.pid), "why": why}
