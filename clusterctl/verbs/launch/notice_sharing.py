"""Warns of a run that would write to files of another one."""

import posixpath
import re
import shlex
import time
from collections.abc import Collection

from clusterctl.inventory.cluster import Cluster, Job
from clusterctl.model.answers import WritersAnswer
from clusterctl.model.checkpoint import CheckpointsAnswer
from clusterctl.plan.plan import SharingRun
from clusterctl.plan.run_names import before_names
from clusterctl.transport.interface import Request
from clusterctl.verbs.checkpoints.candidates import newest_first
from clusterctl.verbs.checkpoints.other_runs import other_runs
from clusterctl.verbs.events import Emit, Notice
from clusterctl.verbs.rpc import Nodes, call_validated
from clusterctl.verbs.runs.history import unrecorded

_SECONDS = 20.0
_SHOWN = 3
_FRESH = 300.0
"""Seconds: who wrote a file so lately may still be at work."""


def notice_sharing(
    nodes: Nodes, cluster: Cluster, written: Job, run: str, *, resumes: bool, emit: Emit
) -> tuple[SharingRun, ...]:
    """Warn of live runs that write to the same folder, and of checkpoints that are there.

    Args:
        cluster: the nodes and the job as it will run.
        written: the job before `{run}` is filled in.
        resumes: the checkpoints of the run before are expected there.

    Returns:
        The live runs that write to the folder of checkpoints.
    """
    folder = cluster.job.checkpoints
    folders = [folder] if folder else []
    others = other_runs(nodes, cluster, folders, but=[run])
    live = [one for one in others if one.view.live]
    for one in live[:_SHOWN]:
        what = "writes its checkpoints to" if one.place == "checkpoints" else "works in"
        text = f"{one.view.title} is {one.view.state}, and {what} {one.folder}, too"
        emit(Notice(text=text, hint=own_folder_hint(written, one.place), level="warning"))
    sharing = tuple(
        SharingRun(
            run=one.view.run,
            began=one.view.began or 0.0,
            nodes=tuple(answer.node.name for answer in one.view.nodes),
        )
        for one in live
        if one.place == "checkpoints"
    )
    known = {run, *(one.view.run for one in others)}
    noted = folder and _warn_of_unknown(nodes, cluster, written, known, folder, emit=emit)
    if folder and not resumes and not sharing and not noted:
        _warn_of_older(nodes, cluster, written, run, folder, emit=emit)
    return sharing


def _warn_of_unknown(
    nodes: Nodes, cluster: Cluster, written: Job, known: Collection[str], folder: str, *, emit: Emit
) -> bool:
    """Warn of live runs of other inventories, which left a note there; tell whether there are."""
    first = cluster.nodes[0]
    args = {"workdir": first.workdir, "path": folder}
    request = {first.name: Request(op="checkpoint-writers", args=args, stay=True)}
    answers, _ = call_validated(nodes, request, WritersAnswer, timeout=_SECONDS)
    found = [one for each in answers.values() for one in each.writers if one.run not in known]
    for one in found[:_SHOWN]:
        title = f"{one.run} ({one.name})" if one.name else one.run
        text = f"{title}, launched from another inventory, writes its checkpoints to {folder}, too"
        whose = f" (user {one.user} on {one.host})"
        hint = own_folder_hint(written, "checkpoints")
        emit(Notice(text=text + whose, hint=hint, level="warning", node=first.name))
    return bool(found)


def _warn_of_older(
    nodes: Nodes, cluster: Cluster, written: Job, run: str, folder: str, *, emit: Emit
) -> None:
    first = cluster.nodes[0]
    args = {"workdir": first.workdir, "path": folder, **unrecorded(run).args(cluster, first)}
    request = Request(op="checkpoints", args=args, stay=True)
    answers, _ = call_validated(nodes, {first.name: request}, CheckpointsAnswer, timeout=_SECONDS)
    found = {name: answer.candidates for name, answer in answers.items()}
    for name, seen in newest_first(found)[:1]:
        newest = seen[first.name]
        verb = "wrote it" if newest.recorded else "ran then"
        whose = f" ({newest.run} {verb})" if newest.run else ""
        text = f"{folder} has {name} of an earlier run{whose}: this run may overwrite its files"
        ago = time.time() - newest.time
        if not newest.run and 0 <= ago < _FRESH:
            text = (
                f"{folder} has {name}, written {ago:.0f} s ago by no run of {cluster.name}: another"
                " program may be writing there, and a resume or restart could take its files"
            )
        hint = own_folder_hint(written, "checkpoints")
        emit(Notice(text=text, hint=hint, level="warning", node=first.name))


def own_folder_hint(written: Job, place: str) -> str:
    """Return what to type for a run that shares no folder."""
    folder = written.checkpoints or ""
    if place == "workdir":
        return "give it files of its own: --workdir DIR, or {run} in the command's output folder"
    if before_names(folder) != folder:
        return "give the run a name that no other run has: --name NAME"
    folder = folder.rstrip("/")
    own = f"{folder}/{{run}}"
    alone = re.compile(rf"\A((?:[^=]*=)?){re.escape(folder)}(?=/|\Z)")
    command = [
        # A file in it, such as a checkpoint to begin from, stays where it is.
        word if posixpath.splitext(word)[1] else alone.sub(lambda found: found[1] + own, word)
        for word in written.command
    ]
    if command == list(written.command):
        return f"set `checkpoints: {own}` in the inventory, and pass that folder to the program"
    typed = shlex.join(command)
    return f"set `checkpoints: {own}` in the inventory, then: clusterctl launch -- {typed}"
