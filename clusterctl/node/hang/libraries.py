"""What NCCL and PyTorch know of a run's ranks on this node.

A child asks them while the stacks are taken: a rank's environment, its home or its pipe on a dead
mount can hang the reader.
"""

from __future__ import annotations

import os
import time
from typing import Any, Dict, List, Mapping, Sequence

from clusterctl.node.agent.child_tasks import Child, gather, run_function
from clusterctl.node.hang import flight_recorder, nccl_ras
from clusterctl.node.run.processes import processes
from clusterctl.wire import from_json, to_json

SECONDS, READ_SECONDS = 4.5, 1.0
"""How long they may take; and, of that, how long their answer may take to be read."""

_LATE = "the flight recorder of rank %d: asked, it wrote no file within %g s"


def ask_libraries(
    job: Mapping[str, Any],
    ranks: Sequence[Mapping[str, Any]],
    of_ranks: Mapping[int, List[int]],
    *,
    nccl: bool,
) -> Child:
    """Start the child.

    Args:
        job: of this node, as it was planned.
        ranks: as in supervisor.json.
        of_ranks: the processes of each rank.
        nccl: also what NCCL knows of all nodes: one of them needs to ask.
    """

    def answer() -> Dict[str, Any]:
        planned = {name: value for name, value, _ in job.get("env", []) if value}
        environs = {one["rank"]: _environ(one) or planned for one in ranks if one["pid"]}
        began = {one["rank"]: one.get("began") or 0.0 for one in ranks}
        pending = flight_recorder.request_all(environs, began)
        pids = [pid for mine in of_ranks.values() for pid in mine]
        communicators, unheard = _communicators(environs, pids) if nccl else ([], [])
        answers = flight_recorder.answers_of(pending)
        asked = {one.rank for one in pending}
        silent = sorted(asked - answers.keys())
        unheard += [_LATE % (rank, flight_recorder.WRITE_SECONDS) for rank in silent]
        collectives = {
            str(rank): flight_recorder.collectives_of(environ, rank, began[rank])
            for rank, environ in environs.items()
            if rank not in asked  # an older file tells of the past
        }
        collectives.update((str(rank), answer) for rank, answer in answers.items())
        return {"collectives": collectives, "communicators": communicators, "unheard": unheard}

    return run_function("libraries", lambda write: write(to_json(answer())), SECONDS)


def answer_of(child: Child) -> Dict[str, Any]:
    """Return `collectives` by rank, `communicators`, and `unheard`: what was not told, and why."""
    child.deadline = max(child.deadline, time.monotonic() + READ_SECONDS)
    gather([child])
    if child.state != "ok" or child.exit_code != 0:
        why = child.stderr.decode("utf-8", "replace")[-100:] or "no answer within %g s" % SECONDS
        unheard = ["what NCCL and PyTorch's flight recorder know: " + why]
        return {"collectives": {}, "communicators": [], "unheard": unheard}
    found: Dict[str, Any] = from_json(child.output)
    return found


def _environ(rank: Mapping[str, Any]) -> Dict[str, str]:
    if rank["state"] == "ended":
        return {}  # another process may have its number
    entries = os.fsdecode(processes.read_proc(rank["pid"], "environ")).split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def _communicators(environs: Mapping[int, Mapping[str, str]], pids: Sequence[int]) -> Any:  # noqa: ANN401
    """Return NCCL's communicators, and why there are none."""
    environ = next((one for one in environs.values() if one.get(nccl_ras.VARIABLE)), None)
    if environ is None or not pids:
        return [], []
    if environ.get(nccl_ras.SWITCH) == "0":
        return [], ["what NCCL knows: %s=0 turns its RAS off" % nccl_ras.SWITCH]
    try:
        return nccl_ras.communicators_of(environ[nccl_ras.VARIABLE], pids), []
    except nccl_ras.NoAnswerError as error:
        return [], ["what NCCL knows: %s" % error]
