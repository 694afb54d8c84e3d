"""The operation `dump`: the stacks of a run's ranks on this node, now or as they were kept."""

from __future__ import annotations

import contextlib
import os
import time
import zlib

from clusterctl.node import run_lock
from clusterctl.node.agent.call_channel import CallChannel, OperationError
from clusterctl.node.agent.child_tasks import run_with_timeout
from clusterctl.node.file_io import read_json
from clusterctl.node.hang import tools
from clusterctl.node.hang.saved import newest_dump, save_dump
from clusterctl.node.hang.take import answer_file, limit_of, take
from clusterctl.node.run.files.run_paths import NodePaths
from clusterctl.node.run.operations.status import LIVE, find_run, node_status
from clusterctl.wire import Message

TYPE_CHECKING = False
# The supervisor's child takes the stacks: this process only asks, and imports no more than that.
if TYPE_CHECKING:
    from typing import Any, Dict, Mapping, Optional

POLL_SECONDS = 0.02
JUST_HUNG_SECONDS = 30.0
"""For so long, the stacks that the supervisor kept when the run became hung are as good as new."""


def dump(args: Dict[str, Any], body: bytes, channel: CallChannel) -> Message:
    """Answer with the stacks of a run's ranks; of a run that is over, with those it kept.

    It reads files of the run that are the same in all versions: an earlier one's agent, which has
    no such operation, is not needed.

    Args:
        args: `cluster`, `run`, `node`, perhaps `state`; `only`: ranks; `native`; `locals`;
            `keep`: also in the run's folder; `steady`: but not if the run ends meanwhile, and if
            it has just become hung, those that the supervisor keeps then will do;
            `tool`: `hash` and `machine` of the controller's py-spy;
            `kept`: of a run that lives, too, only what it has kept;
            `store`: take none, only keep py-spy for what the node looks at by itself.
        body: that program, compressed, if the first answer asked for it.

    Returns:
        `needs_tool`, and nothing else: the same call is awaited with a body. Else `dump`, null if
        there is none; `state` of the run here by then; `note`: what was not as it should be.
    """
    del channel
    paths = find_run(args)
    status = node_status(paths)
    living = [rank for rank in status["ranks"] if rank["state"] == "running"]
    if args.get("kept") or (status["state"] not in LIVE and not living):
        return Message({"dump": newest_dump(paths) or None, "state": status["state"]})
    tool, note = args.get("tool") or {}, ""
    if tool and tool["machine"] != os.uname().machine:
        note = "this machine is %s: py-spy for %s does not run here" % (
            os.uname().machine,
            tool["machine"],
        )
    elif body:
        note = _keep_tool(paths, tool["hash"], body)
    elif tool and not tools.has_tool(paths, tool["hash"]):
        return Message({"needs_tool": True})
    if args.get("store"):
        from clusterctl.node.hang.stacks import find_py_spy  # noqa: PLC0415

        program, problem = find_py_spy(paths, read_json(paths.job))
        return Message({"state": status["state"], "note": "" if program else note or problem})
    known = {"state": status["state"], "nodes": status["nodes"] or []}
    kept = _kept_as_it_hung(paths, status) if args.get("steady") else None
    if kept is not None:
        return Message({"dump": kept, "note": note, **known})
    order = {name: args[name] for name in ("only", "native", "locals") if args.get(name)}
    found = _ask_supervisor(paths, order)
    if found is None:
        found = _take_here(paths, order, status["ranks"])
    # The end of a run ends ranks: stacks that were taken meanwhile tell of another reason.
    state = node_status(paths)["state"]
    if args.get("keep") and (state == "running" or not args.get("steady")):
        try:
            save_dump(paths, found)
        except OSError as error:
            note = "the stacks could not be kept on this node: %s" % error.strerror
    return Message({"dump": found, "note": note, **known, "state": state})


def _kept_as_it_hung(paths: NodePaths, status: Mapping[str, Any]) -> Optional[Dict[str, Any]]:
    """Return the stacks that the supervisor keeps as the run becomes hung, once they are there.

    None: that was long ago, or they lack something, as before the node had py-spy.
    """
    hung = status["hung"]
    began = hung["since"] + hung["quiet_s"] - 0.1 if hung else 0.0  # rounded
    if not 0.0 <= time.time() - began < JUST_HUNG_SECONDS:
        return None
    until = time.monotonic() + limit_of({})
    found: Dict[str, Any] = {}
    while found.get("time", 0.0) < began and time.monotonic() < until:
        time.sleep(POLL_SECONDS)
        found = newest_dump(paths)
    processes = [one for rank in found.get("ranks", []) for one in rank["processes"]]
    whole = bool(processes) and not any(one["missing"] for one in processes)
    return found if found.get("time", 0.0) >= began and whole else None


def _keep_tool(paths: NodePaths, digest: str, body: bytes) -> str:
    """Keep py-spy for this and later dumps; return why that failed."""
    unpacking = zlib.decompressobj()
    try:
        program = unpacking.decompress(body, tools.SIZE_LIMIT)
        tools.keep_tool(paths, digest, program)
    except (OSError, zlib.error, tools.WrongToolError) as error:
        return "py-spy could not be put on this node: %s" % error
    return ""


def _ask_supervisor(paths: NodePaths, order: Dict[str, Any]) -> Optional[Dict[str, Any]]:
    """Return the dump that the supervisor's child takes; None: there is no such supervisor.

    A rank allows only the supervisor and its descendants to read it, where Yama restricts that.
    """
    job = read_json(paths.job)
    wanted = {**order, "answer": "%d-%s" % (os.getpid(), os.urandom(6).hex())}
    request = {"ask": "dump", "run": job["run"], "node": job["node"], "order": wanted}
    taker = (run_lock.query(job["lock"], request) or {}).get("taker")
    if not taker:
        return None
    limit = limit_of(order)
    until = time.monotonic() + limit
    path = answer_file(paths, wanted)
    proc = "/proc/%d" % taker[0]
    while not os.path.exists(path) and os.path.exists(proc) and time.monotonic() < until:
        time.sleep(POLL_SECONDS)
    found = read_json(path)
    if not found and os.path.exists(proc):
        raise OperationError("dump", "no stacks could be taken within %g s" % limit)
    with contextlib.suppress(OSError):
        os.unlink(path)
    return found or None


def _take_here(paths: NodePaths, order: Dict[str, Any], ranks: Any) -> Dict[str, Any]:  # noqa: ANN401
    """Return a dump that a child of this process takes."""
    try:
        found: Dict[str, Any] = run_with_timeout(limit_of(order), lambda: take(paths, order, ranks))
    except (TimeoutError, ChildProcessError) as error:
        raise OperationError("dump", "no stacks could be taken: %s" % error) from error
    return found
