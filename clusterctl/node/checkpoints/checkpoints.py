"""The operation `checkpoints`: the checkpoints of a folder, and which of them are whole."""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
import time
from typing import Any, Dict, List, Optional

from clusterctl.node.agent.call_channel import CallChannel, OperationError
from clusterctl.node.agent.watched_child import ChildCrashed, ChildStalled, Report, watch_child
from clusterctl.node.checkpoints import formats, names
from clusterctl.node.checkpoints.files import TENSOR_SUFFIXES, Inspection, files_of, link_targets
from clusterctl.node.checkpoints.origin import Origin
from clusterctl.node.checkpoints.torch_zip import Invalid, Progress
from clusterctl.wire import Message

STALL_SECONDS = 15.0
"""Seconds in which a folder that works shows something of itself."""
PROGRESS_SECONDS = 0.5
_MAX_CRASHES = 20
DEPTH = 3
"""How far below the folder of the job checkpoints are looked for if it has none itself."""
MOST, MOST_FILES = 1000, 100_000
"""Candidates that are judged, and files of them in an answer: of more, the last written."""


def checkpoints(args: Dict[str, Any], _body: bytes, channel: CallChannel) -> Message:
    """List the candidates, the one last written first, or judge the one that is asked for.

    The controller gets its progress: messages with `read`, the bytes so far.

    Args: `workdir` and `path` (the job's checkpoint folder, relative to it or not, may be None),
    `which` ("latest", or a path: absolute, in workdir or in `path`), `verify` (check content,
    not only structure), `compare` (sum up all content, for other nodes' to be compared with),
    `world_size` (of the run that is resumed), `silence` (seconds), and what `Origin` takes.
    """
    seen: Dict[str, Dict[str, Any]] = {}
    head: Dict[str, Any] = {}
    begun: Dict[str, Dict[str, Any]] = {}
    silence = float(args.get("silence") or STALL_SECONDS)
    for _ in range(_MAX_CRASHES):
        now = ""
        done = list(seen)
        try:
            work = watch_child(lambda report: _work(args, done, report), channel, silence=silence)  # noqa: B023
            with contextlib.closing(work) as reports:
                for message in reports:
                    if "error" in message:
                        raise OperationError(*message["error"])
                    if "candidate" in message:
                        seen[message["candidate"]["path"]] = message["candidate"]
                    head.update(message.get("head", {}))
                    now = message.get("looking", now)
                    begun.update({now: message["begun"]} if "begun" in message else {})
                    if "read" in message:
                        channel.send(Message({"read": message["read"]}))
        except ChildStalled:
            place = now or _folder(args)
            words = "%s does not answer: nothing came from it for %.0f s" % (place, silence)
            raise OperationError("stuck", words, path=place) from None
        except ChildCrashed as crash:
            if not now:
                raise OperationError("crashed", "cannot look: %s" % crash) from crash
            why = "it cannot be read: its reader ended (%s)" % crash
            seen[now] = {**begun.get(now, _blank(now)), "why": why}
            continue
        break
    candidates = sorted(seen.values(), key=lambda one: one["time"], reverse=True)
    files = itertools.accumulate(len(one["files"]) for one in candidates)
    told = [one for one, count in zip(candidates, files) if count <= MOST_FILES]
    return Message({**head, "candidates": told or candidates[:1]})


def _folder(args: Dict[str, Any]) -> str:
    workdir = os.path.expanduser(args.get("workdir") or ".")
    return os.path.join(workdir, os.path.expanduser(args.get("path") or "."))


def _work(args: Dict[str, Any], done: List[str], report: Report) -> None:
    """Judge what is asked for, in a child: each look may hang or crash."""
    progress = _progress_reporter(report)
    folder = _folder(args)
    which = args.get("which") or "latest"
    try:
        if which == "latest":
            paths = _last_written(_found_in(folder, progress))
        else:
            paths = [_resolve(which, os.path.expanduser(args.get("workdir") or "."), folder)]
            folder = os.path.dirname(paths[0])
    except OperationError as error:
        report({"error": [error.kind, str(error)]})
        return
    origin = Origin(args, folder)
    report({"head": {"folder": folder, "knows": origin.has_run}})
    for path in paths:
        if path not in done:
            report({"looking": path})
            found = inspect(path, args, origin, report, progress)
            if which == "latest" and os.path.dirname(path) != os.path.normpath(folder):
                found["name"] = os.path.relpath(path, folder)
            report({"candidate": found})


def _resolve(which: str, workdir: str, folder: str) -> str:
    which = os.path.expanduser(which)
    places = [os.path.join(workdir, which), os.path.join(folder, which)]
    found = next(filter(os.path.exists, places), "")
    if not found:
        raise OperationError("missing", "there is no %s" % " nor ".join(dict.fromkeys(places)))
    # The name that a link such as `latest` leads to tells the step.
    while os.path.islink(found):
        found = os.path.join(os.path.dirname(found), os.readlink(found))
    return os.path.normpath(found)


def _found_in(folder: str, progress: Progress, depth: int = DEPTH) -> List[str]:
    """List what in a folder is a checkpoint or is named as one; the folder itself if it is one.

    What is named so and cannot be used is listed too: an older one must not be taken unnoticed.
    Without any, those in folders below: each run of a program may have one, `exp2/weights`.
    """
    try:
        inside = sorted(name for name in os.listdir(folder) if not names.is_retired(name))
    except OSError as error:
        raise OperationError("missing", "cannot list %s: %s" % (folder, error.strerror)) from error
    kinds: Dict[str, Optional[str]] = {}
    for name in inside:
        kinds[name] = formats.checkpoint_kind(os.path.join(folder, name))
        progress(0)
    folders = [name for name in inside if kinds[name] not in (None, "file")]
    if formats.checkpoint_kind(folder) not in (None, "folder") and not folders:
        return [os.path.normpath(folder)]
    found = [
        name
        for name in inside
        if _is_candidate(folder, name, kinds[name], beside_folders=bool(folders))
    ]
    # Such as `2026-11-30_04-45-40`, which a run of Hydra has, with its checkpoints further below.
    dated = all(kinds[name] is None and names.is_only_dated(name) for name in found)
    below: List[str] = []
    for name in inside if depth and dated else ():
        path = os.path.join(folder, name)
        if os.path.isdir(path) and not os.path.islink(path) and not name.startswith("."):
            with contextlib.suppress(OperationError):
                below += _found_in(path, progress, depth - 1)
    return below or [os.path.normpath(os.path.join(folder, name)) for name in found]


def _last_written(paths: List[str]) -> List[str]:
    def written(path: str) -> float:
        try:
            return os.lstat(path).st_mtime
        except OSError:
            return 0.0

    return sorted(paths, key=written)[-MOST:] if len(paths) > MOST else paths


def _is_candidate(folder: str, name: str, kind: Optional[str], *, beside_folders: bool) -> bool:
    marked = names.read_name(name).any
    if kind == "file":
        # Next to checkpoint-N are model.safetensors and training_args.bin: not checkpoints.
        return marked or not beside_folders
    path = os.path.join(folder, name)
    if kind is None and not os.path.isdir(path):
        special = os.path.lexists(path) and not os.path.isfile(path)
        return marked and special and name.endswith(TENSOR_SUFFIXES)
    if kind is None and formats.holds_checkpoints(path):
        return False
    return kind is not None or marked or names.is_unfinished(name)


def _blank(path: str) -> Dict[str, Any]:
    """Return the answer about a path of which nothing is known yet."""
    name = os.path.basename(path)
    counters = names.read_name(name)
    return {
        "path": path,
        "name": name,
        "real": [],
        "format": "unknown",
        "step": counters.step,
        "epoch": counters.epoch,
        "date": counters.date,
        "time": 0.0,
        "run": "",
        "older": False,
        "recorded": False,
        "beside": [],
        "complete": False,
        "verified": False,
        "why": "",
        "hash": "",
        "files": {},
        "part": None,
        "doubts": [],
        "mixed": "",
        "bytes": 0,
    }


def _progress_reporter(report: Report) -> Progress:
    """Return what tells the parent how much was read, not too often; that it lives, by the same."""
    read, reported = 0, time.monotonic()

    def progress(count: int) -> None:
        nonlocal read, reported
        read += count
        now = time.monotonic()
        if now - reported >= PROGRESS_SECONDS:
            reported = now
            report({"read": read})

    return progress


def inspect(
    path: str, args: Dict[str, Any], origin: Origin, report: Report, progress: Progress
) -> Dict[str, Any]:
    """Return what there is to say of one path; whatever is wrong with it is part of that."""
    answer = _blank(path)
    try:
        answer["time"] = os.stat(path).st_mtime
        answer["real"] = link_targets(path, progress)
    except OSError:
        answer["why"] = "it was renamed or removed while we looked"
        return answer
    answer.update(origin.writer(answer["time"])._asdict())
    report({"begun": answer})
    kind = formats.checkpoint_kind(path)
    answer["format"] = kind or "unknown"
    if names.is_unfinished(answer["name"]) and os.path.isdir(path):
        answer["why"] = "it is being written, or its writer died"
    elif kind is None:
        answer["why"] = _why_none(path)
    else:
        try:
            _verify(path, kind, answer, args, origin, progress)
        except Invalid as broken:
            answer["why"] = str(broken)
        except OSError as error:
            answer["why"] = "it cannot be read: %s" % error
        except Exception as error:  # noqa: BLE001  (damage leads to any, and hides no other)
            answer["why"] = "it cannot be read: %r" % error
        answer["complete"] = not answer["why"]
    return answer


def _verify(
    path: str,
    kind: str,
    answer: Dict[str, Any],
    args: Dict[str, Any],
    origin: Origin,
    progress: Progress,
) -> None:
    step, epoch = formats.counters_in(path)
    answer["step"] = answer["step"] if step is None else step
    answer["epoch"] = answer["epoch"] if epoch is None else epoch
    files = dict(files_of(path, progress))
    if files:
        answer["time"] = max(status.st_mtime for status in files.values())
    answer["bytes"] = sum(status.st_size for status in files.values())
    writer = origin.writer(answer["time"], formats.run_in(path))
    answer.update(writer._asdict())
    inspection = Inspection(
        content=bool(args.get("verify")),
        compare=bool(args.get("compare")),
        world_size=origin.world_size(writer.run),
        expected_world_size=args.get("world_size"),
        progress=progress,
    )
    answer["verified"] = inspection.content
    try:
        found = formats.verify(path, kind, inspection)
    except formats.PartialCheckpoint as part:
        found = part.found
        answer["why"] = str(part)
    answer.update(hash=found.identity, files=found.files, part=found.part)
    answer.update(doubts=found.doubts, mixed=found.mixed)


def _why_none(path: str) -> str:
    try:
        if not os.path.isdir(path):
            regular = stat.S_ISREG(os.stat(path).st_mode)
            return "it is none of the known kinds of checkpoint" if regular else "it is not a file"
        if not os.listdir(path):
            return "it is empty"
    except OSError as error:
        return "it cannot be listed: %s" % error.strerror
    return "it is none of the known kinds of checkpoint"
