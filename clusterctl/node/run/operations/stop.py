"""The operation `stop`: ends a run on this node, even without its supervisor, and verifies it."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any, Dict

from clusterctl.node.agent.call_channel import CallChannel, ControllerDisconnected, OperationError
from clusterctl.node.file_io import read_json
from clusterctl.node.run.files.own_agent import hand_over
from clusterctl.node.run.files.run_paths import NodePaths
from clusterctl.node.run.operations.node_run import NodeRun
from clusterctl.node.run.processes import (
    containers,
    foreign_gpu_use,
    release_check,
)
from clusterctl.node.run.processes import (
    run_processes as processes,
)
from clusterctl.node.run.processes.run_processes import Process
from clusterctl.wire import Message

VERIFY_SECONDS = 8.0
"""Seconds beyond the grace that a living supervisor gets to end everything itself."""


def stop(args: Dict[str, Any], body: bytes, channel: CallChannel) -> Message:
    """End a run on this node: ask, TERM, KILL the whole tree; then verify that nothing is left.

    Works when the supervisor is dead, when the run's folder was deleted, and again later.

    Args:
        args: `cluster`, `run`, `node`, perhaps `state`, `lock`; `grace`, `reason`, `by`;
            `bars`: it may still be about to begin, and must not;
            `planned`: what the controller knows of a run that has no folder, as in its job:
            `node_rank`, `master`, `device`; such a run will not start here any more.
        body: unused.
        channel: gets `{"stage": …}` as it goes.

    Returns:
        `gone` and `left`: of processes and the GPU memory kept for them; `port_free` and
        `port_holder`; `gpu_free`. What could not be checked is null. `strangers`: processes that
        took GPU memory during the run and are not known to be of it. `nodes`: on the master, all
        nodes of the run. `elsewhere`: commands of the job that started processes where no search
        looks. `ended`: the state in which it had ended here before, or null.
    """
    del body
    if was_forbidden(args) or (args.get("bars") and forbid_start(args)):
        return Message({"gone": True, "left": [], "port_free": True, "gpu_free": True})
    if args.get("planned") and not NodeRun.find(args).holds_lock():
        create_placeholder(args)
    node_run = NodeRun.find(args)
    before = read_json(node_run.paths.end).get("state") if node_run.job else None
    lost = bool(node_run.job) and node_run.was_lost()
    hand_over("stop", args, channel, node_run.paths)
    report_stage(channel, "asking")
    reason = str(args.get("reason") or "stopped")
    if node_run.request_stop(args):
        node_run.wait(time.monotonic() + float(args.get("grace", 0)) + VERIFY_SECONDS)
    else:
        node_run.prevent_start(reason)
    there = node_run.find_all()
    if there:
        report_stage(channel, "killing", left=len(there))
    else:
        report_stage(channel, "verifying")
    living = node_run.kill()
    unkillable = {process.pid for process in living}
    left = [describe_survivor(process) for process in living]
    left += containers.remove_and_describe(node_run.job)
    planned: Dict[str, Any] = args.get("planned") or {}
    # Which processes had a GPU only the folder knows.
    used = node_run.job or (planned if planned.get("device") == "cpu" else {})
    memory = release_check.check_gpu_memory(used, {pid for pid, _ in node_run.recorded.read()})
    holders = {pid: what for pid, what in memory.held.items() if pid not in unkillable}
    others = foreign_gpu_use.foreign_holders(node_run.paths, holders)
    port_free, port_holder = release_check.check_port(node_run.job or planned, args["run"])
    if not left:
        if node_run.job.get("launcher") == "ray":  # its supervisor may have died before it could
            from clusterctl.node.run.files import ray_folder  # noqa: PLC0415

            ray_folder.clean(node_run.paths.folder)
        node_run.write_missing_end(reason, lost=lost)
    left += memory.unreleased
    proven = {"port_free": port_free, "port_holder": port_holder, "gpu_free": memory.free}
    snapshot = read_json(node_run.paths.supervisor)
    return Message(
        {
            "gone": not left,
            "left": left,
            "strangers": others,
            "nodes": snapshot.get("nodes"),
            "elsewhere": snapshot.get("elsewhere"),
            **proven,
            "ended": before,
        }
    )


def create_placeholder(args: Dict[str, Any]) -> None:
    """Make the folder of a run that has none, so that a start that still hangs cannot.

    It has no `never_started` in it: the run may have been here, and its folder deleted.
    """
    with contextlib.suppress(OperationError):
        NodePaths.of(args).create()


def forbid_start(args: Dict[str, Any]) -> bool:
    """Take the folder's place, so that a start under way cannot; False: the run has started."""
    paths = NodePaths.of(args)
    try:
        paths.create()
        os.close(os.open(paths.never_started, os.O_WRONLY | os.O_CREAT, 0o600))
    except OperationError:
        return False
    except OSError:
        return True
    return True


def was_forbidden(args: Dict[str, Any]) -> bool:
    """Tell whether an earlier stop kept this run from starting: there is nothing to verify."""
    paths = NodePaths.of(args)
    return not paths.ownership_problem() and os.path.exists(paths.never_started)


def report_stage(channel: CallChannel, stage: str, **details: object) -> None:
    """Report how far it is; a stop is completed whether or not anyone listens."""
    with contextlib.suppress(ControllerDisconnected):
        channel.send(Message({"stage": stage, **details}))


def describe_survivor(process: Process) -> Dict[str, Any]:
    """Say of a process that could not be ended which it is, and why."""
    why = "stuck in the kernel (state D)" if process.uninterruptible else ""
    why = why or processes.send(process.key, 0) or "it was started again and again"
    return {"pid": process.pid, "cmd": processes.command_of(process.pid), "why": why}
