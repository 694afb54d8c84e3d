"""The operations `status` and `runs`: a run on this node, by its supervisor or its files."""

from __future__ import annotations

import os
import time

from clusterctl.node.agent.call_channel import CallChannel, OperationError
from clusterctl.node.file_io import find_end, modified, read_end, read_json
from clusterctl.node.run.files.own_agent import hand_over
from clusterctl.node.run.files.run_paths import (
    NodePaths,
    default_state_folder,
    rank_of,
    run_folders,
    times_of,
)
from clusterctl.node.run.processes.boot import boot_id, uptime
from clusterctl.wire import Message

TYPE_CHECKING = False
# What asks a living run takes longer to import than an ended one to read.
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Sequence, Tuple

    from clusterctl.node.run.processes.processes import ProcessKey

END_FIELDS = (
    "state", "reason", "exit_code", "by", "time", "over", "no_restart", "run_exit_code",
)  # fmt: skip
"""The fields of an end that `status` answers with."""
LIVE = ("starting", "running", "stopping")
START_SECONDS = 60.0
"""After that, a run without a record of its supervisor is lost."""
RULERS = b"=-_*#~+. "
"""A line of these alone tells nothing."""
END_BYTES = 8192
LINE_CHARACTERS, LINES = 500, 4
"""Of the last lines printed: where to look in the log, and how much of them to answer with."""
TIMES_BYTES, FEWEST_GAPS = 8192, 5
"""How much of a log's times is read, and from how many on they have a usual gap."""
BURST_SECONDS = 0.5
"""Lines that come together within this time count as one: between them nothing was waited for."""


def status(args: Dict[str, Any], body: bytes, channel: CallChannel) -> Message:
    """Answer with the state of a run on this node: `cluster`, `run`, `node` and perhaps `state`."""
    del body
    paths = find_run(args)
    hand_over("status", args, channel, paths)
    patterns = read_json(paths.job).get("progress") or ()
    found = {**_with_progress(paths), "last": last_printed_line(paths, patterns)}
    if found["state"] in LIVE:
        from clusterctl.node.run.processes.usage import usage  # noqa: PLC0415  (an ended run uses nothing)

        if found["state"] == "running":
            found["fell"] = use_that_fell(paths)
        found["usage"] = usage(paths, read_json(paths.job), found["ranks"])
    return Message({"node": found})


def list_runs(args: Dict[str, Any], body: bytes, channel: CallChannel) -> Message:
    """Answer with the state of all runs of a cluster that are kept here: `cluster`, `node`.

    With `launched`, the ids of some runs, only those, with what their launches proved.
    """
    del body, channel
    root = args.get("state") or default_state_folder()
    wanted = args.get("node")
    folders = run_folders(root, args["cluster"])
    # By its name first: a folder that all nodes share has a run's job once for each of them.
    own = [paths for paths in folders if wanted in (None, os.path.basename(paths.folder))]
    named = args.get("launched")
    if named is None:
        return Message({"runs": [_with_progress(paths) for paths in own if read_json(paths.job)]})
    runs = []
    for paths in own:
        job = (
            read_json(paths.job)
            if os.path.basename(os.path.dirname(paths.folder)) in named
            else None
        )
        if job:
            runs.append({**node_status(paths), "launched": job.get("launched")})
    return Message({"runs": runs})


def _with_progress(paths: NodePaths) -> Dict[str, Any]:
    from clusterctl.node.run.files.progress import run_progress  # noqa: PLC0415  (`tail` needs none)

    patterns = read_json(paths.job).get("progress") or ()
    return {**node_status(paths), "progress": run_progress(paths, patterns)}


def use_that_fell(paths: NodePaths) -> Optional[Dict[str, Any]]:
    """Return whose use fell, if any: since this attempt began, as one that loads has not fallen."""
    from clusterctl.node.run.samples.falls import find_falls  # noqa: PLC0415  (few operations)
    from clusterctl.node.run.samples.kept import read_rows  # noqa: PLC0415

    try:
        began = os.stat(paths.job).st_mtime  # written by each attempt
    except OSError:
        return None  # its folder is being removed
    return find_falls(read_rows(paths.samples, since=began))


def find_run(args: Dict[str, Any]) -> NodePaths:
    """Return the folder of a run on this node."""
    paths = NodePaths.of(args)
    problem = paths.ownership_problem()
    if problem or not read_json(paths.job):
        from clusterctl.node.run.operations.node_run import LocalRun  # noqa: PLC0415  (imports much)

        where = problem or paths.folder
        if LocalRun.find(args).holds_lock():
            message = "run %s lives on this node, but its folder was deleted (%s)"
            hint = "clusterctl stop %s ends it" % args["run"]
            raise OperationError("no-folder", message % (args["run"], where), hint=hint)
        message = "the folder of run %s is not on this node (%s)" % (args["run"], where)
        raise OperationError("no-run", message, folder=paths.folder)
    return paths


def node_status(paths: NodePaths) -> Dict[str, Any]:
    """Return the state of a run on this node, from its supervisor, or else from its files."""
    # The end is read first: a supervisor that has left since would otherwise seem to be lost.
    end = read_json(paths.end)
    job = read_json(paths.job)
    saved = read_json(paths.supervisor)
    alive = not end and is_alive(saved)
    live = ask_supervisor(job, saved["pid"]) if alive else None
    if not end and not alive:
        end = read_json(paths.end)  # written while we looked
    snapshot = live or saved
    ranks = [dict(rank) for rank in snapshot.get("ranks", [])]
    if end:
        state, ranks = end["state"], end.get("ranks", ranks)
    elif alive:
        state = snapshot.get("state", "starting")
    elif not saved and _begins(paths):
        state = "starting"
    else:
        state = "lost"
        living = {key[0] for key in RecordedProcesses(paths).read() if is_there(key)}
        for rank in ranks:
            if rank["pid"] not in living:
                rank["state"] = "ended"
    shown = end or snapshot.get("end")
    return {
        "schema": 1,
        **{
            name: job.get(name)
            for name in ("run", "cluster", "node", "workdir", "checkpoints", "master")
        },
        "rank0": job.get("first_rank"),
        "name": job.get("name"),
        "command": job.get("argv"),
        "launcher": job.get("launcher"),
        "launcher_joined": snapshot.get("launcher_joined"),
        "alone": snapshot.get("alone", ""),
        "world_size": job.get("world_size"),
        "min_nodes": job.get("min_nodes", 0),
        "resumed": job.get("resumed"),
        "attempt": job.get("attempt", 1),
        "attempts": snapshot.get("attempts", 1),
        "restart_reason": (job.get("again") or {}).get("why", ""),
        "again": snapshot.get("again") if state == "starting" else None,
        "waits": snapshot.get("waits") if alive else None,
        "blamed": read_json(paths.attempts).get("blamed", {}) if job.get("restart") else {},
        "notify_problem": snapshot.get("notify_problem", ""),
        "time_left_s": live.get("seconds_left") if live else None,
        "nodes": snapshot.get("nodes"),
        "standby": bool(job.get("standby")),
        "spares": job.get("spares", []),
        "left_out": job.get("left_out", []),
        "hung": snapshot.get("hung") if state == "running" else None,
        "false_alarms": snapshot.get("false_alarms", 0),
        "stragglers": snapshot.get("stragglers", []) if state == "running" else [],
        "state": state,
        "ranks": ranks,
        "supervisor": {
            "pid": saved.get("pid"),
            "alive": alive,
            "beat_age_s": 0.0 if live else beat_age(paths),
            "rebooted": bool(saved) and saved.get("boot_id") != boot_id(),
        },
        "end": _end_of(shown) if shown else None,
        "began": snapshot.get("began"),
        "ray": read_json(paths.ray) or None,
    }


def _begins(paths: NodePaths) -> bool:
    """Tell whether the supervisor may not have written its first record yet: a node may be busy."""
    return time.time() - modified(paths.job) < START_SECONDS


def _end_of(shown: Dict[str, Any]) -> Dict[str, Any]:
    end = {name: shown.get(name) for name in END_FIELDS}
    return {**end, "stacks": bool(shown.get("stacks"))}  # an earlier version knows no such field


def last_printed_line(paths: NodePaths, patterns: Sequence[str] = ()) -> Optional[Dict[str, Any]]:
    """Return what the log written last ends with; None if nothing was printed.

    That is `rank`, `line`, `age_s`, `every_s` (usually from line to line), the last `lines`,
    `own`, what the job's patterns find in them, and `earlier`: those that were the last ones
    `age_s` ago.

    A launcher's log counts only while no rank has printed anything.
    """
    newest: Optional[Tuple[bool, float, str]] = None
    for log in paths.logs():
        try:
            known = os.stat(os.path.join(paths.folder, log))
        except OSError:
            continue
        found = (rank_of(log) is not None, known.st_mtime, log)
        if known.st_size and (newest is None or found > newest):
            newest = found
    if newest is None:
        return None
    _, written, log = newest
    path = os.path.join(paths.folder, log)
    now = time.time()
    # Between two attempts nothing was printed: how fast it is shows in the newest alone.
    began = modified(paths.job)  # each attempt writes it
    times = [one for one in _last_times(path) if one[0] >= began]
    begin, end = find_end(path, END_BYTES)
    lines, earlier = _told_lines(end), _earlier_lines(times, begin, end, now, patterns)
    own = {"own": _own(patterns, lines)} if patterns else {}
    return {
        "rank": rank_of(log),
        "line": lines[-1] if lines else "",
        "age_s": round(max(0.0, now - written), 1),
        "every_s": _usual_gap([moment for moment, _ in times]),
        "lines": lines,
        "earlier": earlier,
        **own,
    }


def _own(patterns: Sequence[str], lines: List[str]) -> Optional[Dict[str, Any]]:
    from clusterctl.node.run.files.progress import own_progress  # noqa: PLC0415  (`tail` needs none)

    return own_progress(patterns, "\n".join(lines).encode()) or None


def _told_lines(end: bytes) -> List[str]:
    """Return the last lines that tell something, the newest last."""
    # A progress bar's last state is a line too.
    lines = [line.strip() for line in end.replace(b"\r", b"\n").split(b"\n") if line.strip()]
    told = [line for line in lines if line.strip(RULERS)] or lines
    return [line.decode("utf-8", "backslashreplace")[:LINE_CHARACTERS] for line in told[-LINES:]]


def parse_times(data: bytes, *, cut: bool) -> List[Tuple[float, int]]:
    """Return when a log had which size, by the whole lines of its times; the first may be cut."""
    found = []
    for line in data.split(b"\n")[cut:-1]:
        try:
            written, size = line.split()
            found.append((float(written), int(size)))
        except ValueError:
            continue  # a power failure leaves zeros
    return found


def _last_times(log: str) -> List[Tuple[float, int]]:
    """Return when a log had which size, the last times that are known, the newest last.

    Of lines that came together there is only the first time.
    """
    found: List[Tuple[float, int]] = []
    data = read_end(times_of(log), TIMES_BYTES)
    for entry in parse_times(data, cut=len(data) == TIMES_BYTES):
        if not found or not 0 <= entry[0] - found[-1][0] < BURST_SECONDS:
            found.append(entry)
    return found


def _usual_gap(moments: List[float]) -> Optional[float]:
    """Return the usual seconds from one line to the next; None: there are too few."""
    gaps = sorted(max(0.0, after - before) for before, after in zip(moments, moments[1:]))
    return round(gaps[len(gaps) // 2], 1) if len(gaps) >= FEWEST_GAPS else None


def _earlier_lines(
    times: List[Tuple[float, int]], begin: int, end: bytes, now: float, patterns: Sequence[str]
) -> Optional[Dict[str, Any]]:
    """Return the lines that were the end some time ago, and how long ago; None: unknown.

    What was printed before the first step counts only if no later line tells a step.
    """
    from clusterctl.node.run.files.progress import progress_in  # noqa: PLC0415  (`tail` needs none)

    found = None
    for moment, size in times[:-1]:
        lines = _told_lines(end[: max(0, size - begin)])
        if lines and (begin == 0 or size - begin > LINE_CHARACTERS):  # not one that is cut off
            one: Dict[str, Any] = {"lines": lines, "age_s": round(max(0.0, now - moment), 1)}
            if patterns:
                one["own"] = _own(patterns, lines)
            if "step" in (one.get("own") or progress_in("\n".join(lines).encode()) or {}):
                return one
            found = found or one
    return found


def is_alive(saved: Dict[str, Any]) -> bool:
    """Tell whether the supervisor of that supervisor.json still runs, or its guard.

    Pids of another boot have no meaning.
    """
    if not saved or saved.get("boot_id") != boot_id():
        return False
    return any(map(is_there, supervisor_keys(saved)))


def is_there(key: ProcessKey) -> bool:
    """Tell whether this very process still runs."""
    from clusterctl.node.run.processes.processes import alive  # noqa: PLC0415

    return alive(key)


def supervisor_keys(saved: Dict[str, Any]) -> List[ProcessKey]:
    """Return the supervisor of that supervisor.json and its guard."""
    guard = saved.get("guard") or (saved["pid"], saved["start"])
    return [(saved["pid"], saved["start"]), (guard[0], guard[1])]


def ask_supervisor(job: Dict[str, Any], pid: int) -> Optional[Dict[str, Any]]:
    """Return the living supervisor's snapshot; None if it does not answer."""
    from clusterctl.node import run_lock  # noqa: PLC0415

    request = {"ask": "state", "run": job["run"], "node": job["node"]}
    answer = run_lock.query(job["lock"], request) or {}
    snapshot: Optional[Dict[str, Any]] = answer.get("account")
    return snapshot if answer.get("pid") == pid else None


def beat_age(paths: NodePaths) -> Optional[float]:
    """Return seconds since the supervisor was last known alive, None where that is not known."""
    try:
        with open(paths.heartbeat) as file:
            return round(max(0.0, uptime() - float(file.read())), 1)
    except (OSError, ValueError):
        return None


class RecordedProcesses:
    """The processes that the supervisor recorded as the run's, reread only after a change.

    After a reboot the same pids and start times are other processes: none is returned then.
    """

    def __init__(self, paths: NodePaths) -> None:
        self._path = paths.processes
        self._this_boot = read_json(paths.job).get("boot_id") == boot_id()
        self._version = (0, 0, 0)
        self._keys: List[ProcessKey] = []

    def read(self) -> List[ProcessKey]:
        """Return them; none if the file cannot be read."""
        if not self._this_boot:
            return []
        try:
            with open(self._path) as file:
                seen = os.fstat(file.fileno())
                version = (seen.st_ino, seen.st_size, seen.st_mtime_ns)
                if version != self._version:
                    numbers = [int(word) for word in file.read().split()]
                    self._keys = list(zip(numbers[::2], numbers[1::2]))
                    self._version = version
        except OSError:
            return []
        return self._keys
