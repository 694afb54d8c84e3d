"""What "complete" means for each kind of checkpoint, quickly by structure and slowly by content.

The kinds: `clusterctl` (MANIFEST.json with
sizes and SHA-256, COMPLETE), `dcp` (torch distributed checkpoint), `trainer` (Hugging Face
Trainer's checkpoint-N), `rank-files` (model_state_rank*.pt with metadata.json), `verl`
(model_world_size_N_rank_R.pt in folders of roles), `folder` (step-N or the like, with files of a
script's own) and `file`.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
from typing import Any, Callable, Collection, Dict, FrozenSet, Iterable, List, Optional, Set, Tuple

from clusterctl.node.checkpoints.copies import SAVE_SECONDS
from clusterctl.node.checkpoints.dcp_files import METADATA, check_dcp
from clusterctl.node.checkpoints.files import (
    TENSOR_SUFFIXES,
    CheckpointContents,
    Inspection,
    digest,
    files_of,
)
from clusterctl.node.checkpoints.names import (
    is_of_rank,
    is_retired,
    is_unfinished,
    of_any_step,
    rank_of,
    read_name,
)
from clusterctl.node.checkpoints.sharded_files import Shards, check_shards, check_zero
from clusterctl.node.checkpoints.torch_files import saved_counters
from clusterctl.node.checkpoints.torch_zip import Invalid
from clusterctl.node.checkpoints.trainer_files import (
    INCOMPLETE,
    TRAINER_STATE,
    check_dcp_folders,
    check_trainer,
    is_trainers,
)
from clusterctl.node.file_io import read_json

MANIFEST = "MANIFEST.json"
COMPLETE = "COMPLETE"
_UNFINISHED = (INCOMPLETE, ".incomplete")
"""Files that are in a checkpoint while it is written; the second one by NeMo AutoModel."""
_RANK_METADATA = "metadata.json"
_RANK_FILE = re.compile(r"model_state_rank_?(\d+)\.(?:pt|pth|bin|safetensors)")
_OWN = re.compile(r"rng_state(?:_\d+)?\.pth|random_states_\d+\.pkl")
"""Files that each node may have of its own next to the same checkpoint."""
_SMALL = 1024 * 1024
"""Files up to this size are compared between nodes by content at a quick inspection, too."""


class PartialCheckpoint(Invalid):
    """What is here is whole, but the other ranks' files are not here."""

    def __init__(self, message: str, found: CheckpointContents) -> None:
        super().__init__(message)
        self.found = found


def checkpoint_kind(path: str) -> Optional[str]:
    """Name the kind of checkpoint that a path is; None: it is not one."""
    if os.path.isfile(path):
        return "file" if path.endswith(TENSOR_SUFFIXES) else None
    try:
        names = os.listdir(path)
    except OSError:
        return None
    own_name = os.path.basename(path)
    trainers_name = bool(names and re.fullmatch(r"checkpoint-\d+", own_name))
    # The last sign: a folder of that name in which nothing is known has lost its weights.
    signs: Tuple[Tuple[str, Callable[[], bool]], ...] = (
        ("clusterctl", lambda: MANIFEST in names or COMPLETE in names),
        ("dcp", lambda: METADATA in names or any(name.endswith(".distcp") for name in names)),
        ("rank-files", lambda: any(_RANK_FILE.fullmatch(name) for name in names)),
        ("verl", lambda: read_name(own_name).any and bool(Shards(path).files)),
        ("trainer", lambda: TRAINER_STATE in names or (trainers_name and is_trainers(names))),
        ("folder", lambda: _is_own(own_name, names)),
        ("trainer", lambda: trainers_name),
    )
    return next((kind for kind, is_seen in signs if is_seen()), None)


def _is_own(own_name: str, names: Iterable[str]) -> bool:
    """Tell whether a folder of that name with these files is one checkpoint."""
    marked = read_name(own_name).any
    return marked and bool(_own_files(names)) and not _of_other_steps(own_name, names)


def _of_other_steps(own_name: str, names: Iterable[str]) -> bool:
    """Tell whether files name other steps or epochs than their folder: each is a checkpoint."""
    own = read_name(own_name)
    files = (read_name(name) for name in names if name.endswith(TENSOR_SUFFIXES))
    return any(one.any and (one.step, one.epoch) != (own.step, own.epoch) for one in files)


def holds_checkpoints(path: str) -> bool:
    """Tell whether a folder is that of a run, with a file for each of its checkpoints."""
    try:
        return _of_other_steps(os.path.basename(path), os.listdir(path))
    except OSError:
        return False


def _own_files(names: Iterable[str]) -> Set[str]:
    """Return the files of a script's own checkpoint; a file of a step is a checkpoint itself."""
    return {n for n in names if n.endswith(TENSOR_SUFFIXES) and not read_name(n).any}


def counters_in(path: str) -> Tuple[Optional[int], Optional[int]]:
    """Return the step and the epoch that a checkpoint itself says."""
    if os.path.isfile(path):
        inside = saved_counters(path)
        return inside.get("step"), inside.get("epoch")
    for name in (MANIFEST, "state.json", TRAINER_STATE, _RANK_METADATA):
        step = _step(read_json(os.path.join(path, name)))
        if step is not None:
            return step, None
    return None, None


def run_in(path: str) -> str:
    """Return the run that a checkpoint itself says wrote it; empty: it says none."""
    run = read_json(os.path.join(path, MANIFEST)).get("run")
    return run if isinstance(run, str) else ""


def _step(state: Dict[str, Any]) -> Optional[int]:
    steps = (state.get(key) for key in ("step", "global_step"))
    return next((step for step in steps if type(step) is int), None)


def verify(path: str, kind: str, inspection: Inspection) -> CheckpointContents:
    """Check one checkpoint; raise Invalid, which says what is missing or changed."""
    found = CheckpointContents()
    for name in _UNFINISHED:
        if os.path.exists(os.path.join(path, name)):
            raise Invalid("%s is there: it was not written to its end" % name)
    _KINDS[kind](path, inspection, found)
    if not found.identity:
        _fingerprint(path, inspection, found)
    return found


def _check_clusterctl(path: str, inspection: Inspection, found: CheckpointContents) -> None:
    manifest = os.path.join(path, MANIFEST)
    if not os.path.isfile(manifest):
        raise Invalid("%s is missing" % MANIFEST)
    if not os.path.isfile(os.path.join(path, COMPLETE)):
        raise Invalid("%s is missing: it was not written to its end" % COMPLETE)
    found.identity = digest(manifest)
    with open(os.path.join(path, COMPLETE), "rb") as stream:
        sealed = stream.read(4096)
    if sealed != b"%s\n" % found.identity.encode():  # to the byte, as the training compares it
        raise Invalid("%s is not the one that %s was written for" % (MANIFEST, COMPLETE))
    for name, wanted in _manifest_files(manifest).items():
        _compare(os.path.join(path, name), name, wanted, inspection)


def _manifest_files(manifest: str) -> Dict[str, Dict[str, Any]]:
    files = read_json(manifest).get("files")
    if not isinstance(files, dict) or not files:
        raise Invalid("%s lists no files" % MANIFEST)
    for name, wanted in files.items():
        inside = not os.path.isabs(name) and ".." not in name.split("/")
        if not (inside and isinstance(wanted, dict) and {"size", "sha256"} <= set(wanted)):
            raise Invalid("%s has a broken entry: %r" % (MANIFEST, name))
    return files


def _compare(path: str, name: str, wanted: Dict[str, Any], inspection: Inspection) -> None:
    if not os.path.isfile(path):
        raise Invalid("%s is missing" % name)
    size = os.path.getsize(path)
    if size != wanted["size"]:
        raise Invalid("%s has %d bytes, %s says %s" % (name, size, MANIFEST, wanted["size"]))
    if inspection.content and digest(path, inspection.progress) != wanted["sha256"]:
        raise Invalid("%s is changed: its SHA-256 is not the one in %s" % (name, MANIFEST))


def _dcp(path: str, inspection: Inspection, found: CheckpointContents) -> None:
    doubts, mixed = check_dcp(path, content=inspection.content, progress=inspection.progress)
    found.doubts += doubts
    found.mixed = found.mixed or mixed


def _rank_files(path: str, inspection: Inspection, found: CheckpointContents) -> None:
    names = os.listdir(path)
    matches = [match for match in map(_RANK_FILE.fullmatch, names) if match]
    ranks = sorted({int(match[1]) for match in matches})
    metadata = read_json(os.path.join(path, _RANK_METADATA))
    found.add_unverified(
        inspection.check_files(path, [name for name in names if name.endswith(TENSOR_SUFFIXES)])
    )
    files = [os.path.join(path, match[0]) for match in matches]
    inside = {os.path.basename(file): saved_counters(file) for file in files}
    world_size = _world_size([metadata, *inside.values()]) or inspection.world_size
    steps = _one_save(files, inside, metadata)
    if not steps:
        found.doubts.append("nothing in the ranks' files says of which save they are")
    missing = sorted(set(range(world_size or ranks[-1] + 1)) - set(ranks))
    found.part = {
        "ranks": ranks,
        "world_size": world_size,
        "supposed": inspection.expected_world_size,
        "metadata": bool(metadata),
        "steps": steps,
        "saved": [min(map(os.path.getmtime, files)), max(map(os.path.getmtime, files))],
        "whole": not missing and bool(metadata),
    }
    if found.part["whole"]:
        return
    found.identity = "rank-files"
    why = "model_state_rank%d.pt is missing" % missing[0] if missing else ""
    raise PartialCheckpoint(why or "%s, which rank 0 writes, is missing" % _RANK_METADATA, found)


def _verl(path: str, inspection: Inspection, found: CheckpointContents) -> None:
    why = check_shards(path, inspection, found)
    if why:
        found.identity = "verl"
        raise PartialCheckpoint(why, found)


def _world_size(parts: Iterable[Dict[str, Any]]) -> Optional[int]:
    """Return the first number of ranks that a part names."""
    keys = ("world_size", "num_ranks", "num_processes")
    numbers = (one.get(key) for one in parts for key in keys)
    return next((number for number in numbers if type(number) is int), None)


def _one_save(
    files: List[str], inside: Dict[str, Dict[str, Optional[int]]], metadata: Dict[str, Any]
) -> List[int]:
    """Return the step that the files say; raise Invalid if the folder was saved into twice."""
    by_file = {name: numbers.get("step") for name, numbers in inside.items()}
    by_all = all(step is not None for step in by_file.values())
    every = {**by_file, _RANK_METADATA: _step(metadata)}
    steps = sorted({step for step in every.values() if step is not None})
    if len(steps) > 1:
        listed = (one for one in sorted(every.items()) if one[1] is not None)
        raise Invalid(
            "two saves are mixed: %s" % ", ".join("%s of step %s" % one for one in listed)
        )
    times = [os.path.getmtime(file) for file in files]
    span = max(times) - min(times)
    if span > SAVE_SECONDS and not by_all:  # copied one by one they still say the same step
        raise Invalid("two saves are mixed: the ranks' files were written %.0f s apart" % span)
    return [step for step in by_file.values() if step is not None][:1]


def _folder(path: str, inspection: Inspection, found: CheckpointContents) -> None:
    """Nothing lists the files of a script's own; those of older checkpoints say what belongs."""
    written, own = _written_in(path)
    parent = os.path.dirname(path)
    for name in sorted(os.listdir(parent)):
        if is_retired(name) or is_unfinished(name):
            continue
        inspection.progress(0)
        before, files = _written_in(os.path.join(parent, name))
        lost = sorted(files - own)
        if lost and before < written:
            raise Invalid("%s, which %s has, is missing" % (lost[0], name))
    found.add_unverified(inspection.check_files(path, own))
    check_zero(own, inspection.world_size)
    inside = sorted(os.listdir(path))
    parts = [n for n in inside if checkpoint_kind(os.path.join(path, n)) == "dcp"]
    check_dcp_folders(path, parts, inspection, found)
    _of_ranks(path, own, inspection, found)


def _of_ranks(
    path: str, own: Collection[str], inspection: Inspection, found: CheckpointContents
) -> None:
    """Note whose files they are, if each has the part of one rank.

    Whether that is all of them, only what all nodes have can tell: see `copies`.
    """
    ranks = {rank_of(name) for name in own}
    held = sorted(rank for rank in ranks if rank is not None)
    if len(held) < len(ranks) or not held:
        return
    times = [os.path.getmtime(os.path.join(path, name)) for name in own]
    found.part = {
        "ranks": held,
        "world_size": inspection.world_size,
        "supposed": inspection.world_size,
        "metadata": True,  # each file stands for itself
        "steps": [],
        "saved": [min(times), max(times)],
        "whole": True,
    }


@functools.lru_cache(maxsize=None)
def _written_in(folder: str) -> Tuple[float, FrozenSet[str]]:
    """Return when a script last wrote into its own checkpoint, and its files; none: it is no such.

    Each one is compared with all others, and read once: the process looks once, and ends.
    """
    try:
        if checkpoint_kind(folder) != "folder":
            return 0.0, frozenset()
        return os.path.getmtime(folder), frozenset(_own_files(os.listdir(folder)))
    except OSError:  # it was just removed, as old ones are
        return 0.0, frozenset()


def _file(path: str, inspection: Inspection, found: CheckpointContents) -> None:
    """Ranks may have written files of their own next to it: those of older steps say which."""
    own = read_name(os.path.basename(path)).step
    files: Dict[int, Set[str]] = {}
    for name in filter(is_of_rank, os.listdir(os.path.dirname(path)) if own is not None else ()):
        step = read_name(name).step
        if step is not None:
            files.setdefault(step, set()).add(of_any_step(name))
    here = files.get(own or 0, set())
    older = set().union(*(names for step, names in files.items() if step < (own or 0)))
    if here and older - here:
        raise Invalid("%s of step %s is missing: older ones have it" % (min(older - here), own))
    found.add_unverified(inspection.check_files(os.path.dirname(path), [os.path.basename(path)]))


def _fingerprint(path: str, inspection: Inspection, found: CheckpointContents) -> None:
    """Sum up names, sizes and content, to recognize the same checkpoint on another node."""
    summed = hashlib.sha256()
    for name, status in sorted(files_of(path, inspection.progress)):
        if _OWN.fullmatch(name):
            continue
        content = "size %d" % status.st_size
        file = path if os.path.isfile(path) else os.path.join(path, name)
        if inspection.compare or status.st_size <= _SMALL:
            content = digest(file, inspection.progress)
        found.files[name] = content
        line = "%s %d %s\n" % (name, status.st_size, content)
        summed.update(line.encode("utf-8", "surrogateescape"))
    found.identity = summed.hexdigest()


_Check = Callable[[str, Inspection, CheckpointContents], None]
_KINDS: Dict[str, _Check] = {
    "clusterctl": _check_clusterctl,
    "dcp": _dcp,
    "trainer": check_trainer,
    "rank-files": _rank_files,
    "verl": _verl,
    "folder": _folder,
    "file": _file,
}
