"""What "complete" means for each kind of checkpoint, quickly by structure and slowly by content.

Runs on nodes: standard library only, Python 3.9. The kinds: `clusterctl` (MANIFEST.json with
sizes and SHA-256, COMPLETE), `dcp` (torch distributed checkpoint), `trainer` (Hugging Face
Trainer's checkpoint-N), `rank-files` (model_state_rank*.pt beside metadata.json) and `file`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional

from clusterctl.node.archives import (
    SAFETENSORS_SUFFIX,
    ZIP_SUFFIXES,
    Broken,
    check_content,
    check_shape,
    check_slice,
    dcp_items,
    digest,
    step_inside,
)

MANIFEST = "MANIFEST.json"
COMPLETE = "COMPLETE"
_METADATA = ".metadata"
_TRAINER_STATE = "trainer_state.json"
_RANK_METADATA = "metadata.json"
_TENSOR_SUFFIXES = (SAFETENSORS_SUFFIX, *ZIP_SUFFIXES)
_RANK_FILE = re.compile(r"model_state_rank_?(\d+)\.(?:pt|pth|bin|safetensors)")
_INDEXES = (
    "model.safetensors.index.json",
    "pytorch_model.bin.index.json",
    "adapter_model.safetensors.index.json",
)
_WHOLE_WEIGHTS = (
    "model.safetensors",
    "pytorch_model.bin",
    "adapter_model.safetensors",
    "adapter_model.bin",
)
SAVE_SECONDS = 900.0
"""The ranks' files of one save are all written within this long."""
_SMALL = 1024 * 1024
"""Files up to this size are compared between nodes by content, larger ones by size."""


class Look(NamedTuple):
    """How closely to look."""

    content: bool
    """Every byte that has a checksum, not only names and sizes."""
    world_size: Optional[int] = None
    """Of the run that wrote it, where known."""

    def at(self, folder: str, names: Iterable[str]) -> None:
        """Check files of a folder by themselves.

        Raises:
            Broken: one is missing, cut or changed.
        """
        for name in sorted(names):
            (check_content if self.content else check_shape)(os.path.join(folder, name))


class Found:
    """What was seen of one checkpoint."""

    def __init__(self) -> None:
        self.identity = ""
        """Equal on two nodes that hold the same checkpoint."""
        self.part: Optional[Dict[str, Any]] = None
        """`ranks` held here of `world_size`, where each node holds its own ranks' files."""
        self.doubts: List[str] = []
        """What speaks against it, though it proves nothing."""


def kind_of(path: str) -> Optional[str]:
    """Name the kind of checkpoint that a path is; None: it is not one."""
    if os.path.isfile(path):
        return "file" if path.endswith(_TENSOR_SUFFIXES) else None
    try:
        names = os.listdir(path)
    except OSError:
        return None
    signs = {
        "clusterctl": MANIFEST in names or COMPLETE in names,
        "dcp": _METADATA in names or any(name.endswith(".distcp") for name in names),
        "rank-files": any(_RANK_FILE.fullmatch(name) for name in names),
        "trainer": _TRAINER_STATE in names
        or bool(re.fullmatch(r"checkpoint-\d+", os.path.basename(path))),
    }
    return next((kind for kind, seen in signs.items() if seen), None)


def step_of(path: str) -> Optional[int]:
    """Return the step that a checkpoint says, else the number its name ends in."""
    for name in (MANIFEST, "state.json", _TRAINER_STATE, _RANK_METADATA):
        state = _json(os.path.join(path, name))
        for key in ("step", "global_step"):
            if isinstance(state.get(key), int):
                return int(state[key])
    numbers = re.findall(r"\d+", os.path.basename(path).rsplit(".tmp", 1)[0])
    return int(numbers[-1]) if numbers else None


def verify(path: str, kind: str, look: Look) -> Found:
    """Check one checkpoint.

    Raises:
        Broken: it is not complete; `str()` says what is missing or changed.
    """
    found = Found()
    _KINDS[kind](path, look, found)
    if not found.identity:
        found.identity = _identity(path)
    return found


def _ours(path: str, look: Look, found: Found) -> None:
    manifest = os.path.join(path, MANIFEST)
    if not os.path.isfile(manifest):
        raise Broken("%s is missing" % MANIFEST)
    if not os.path.isfile(os.path.join(path, COMPLETE)):
        raise Broken("%s is missing: it was not written to its end" % COMPLETE)
    found.identity = digest(manifest)
    with open(os.path.join(path, COMPLETE), encoding="utf-8", errors="replace") as stream:
        sealed = stream.read().strip()
    if found.identity != sealed:
        raise Broken("%s is not the one that %s was written for" % (MANIFEST, COMPLETE))
    for name, wanted in _manifest_files(manifest).items():
        _compare(os.path.join(path, name), name, wanted, look)


def _manifest_files(manifest: str) -> Dict[str, Dict[str, Any]]:
    files = _json(manifest).get("files")
    if not isinstance(files, dict) or not files:
        raise Broken("%s lists no files" % MANIFEST)
    for name, wanted in files.items():
        inside = not os.path.isabs(name) and ".." not in name.split("/")
        if not (inside and isinstance(wanted, dict) and {"size", "sha256"} <= set(wanted)):
            raise Broken("%s has a broken entry: %r" % (MANIFEST, name))
    return files


def _compare(path: str, name: str, wanted: Dict[str, Any], look: Look) -> None:
    if not os.path.isfile(path):
        raise Broken("%s is missing" % name)
    size = os.path.getsize(path)
    if size != wanted["size"]:
        raise Broken("%s has %d bytes, %s says %s" % (name, size, MANIFEST, wanted["size"]))
    if look.content and digest(path) != wanted["sha256"]:
        raise Broken("%s is changed: its SHA-256 is not the one in %s" % (name, MANIFEST))


def _dcp(path: str, look: Look, found: Found) -> None:
    metadata = os.path.join(path, _METADATA)
    if not os.path.isfile(metadata):
        raise Broken("%s is missing: it was not written to its end" % _METADATA)
    for name, offset, length in dcp_items(metadata):
        shard = os.path.join(path, name)
        if not os.path.isfile(shard):
            raise Broken("%s is missing" % name)
        size = os.path.getsize(shard)
        if size < offset + length:
            raise Broken("%s has %d bytes, wanted %d" % (name, size, offset + length))
        if os.path.getmtime(shard) > os.path.getmtime(metadata) + 1 and not found.doubts:
            # A copy that keeps no times looks the same, so this alone refuses nothing.
            doubt = "%s is newer than %s: a copy, or two saves that are mixed" % (name, _METADATA)
            found.doubts.append(doubt)
        if look.content:
            check_slice(shard, offset, length)


def _trainer(path: str, look: Look, _found: Found) -> None:
    names = set(os.listdir(path))
    if "checkpoint-is-incomplete.txt" in names:
        raise Broken("checkpoint-is-incomplete.txt says so")
    _check_weights(path, names, look)
    look.at(path, [name for name in names if name.endswith(_TENSOR_SUFFIXES)])
    if not _json(os.path.join(path, _TRAINER_STATE)):
        raise Broken("%s, which is written last, is missing or broken" % _TRAINER_STATE)


def _check_weights(path: str, names: Iterable[str], look: Look) -> None:
    present = set(names)
    sharded = sorted(name for name in present if name.startswith("pytorch_model_fsdp_"))
    for name in sharded:
        if os.path.isdir(os.path.join(path, name)):
            _dcp(os.path.join(path, name), look, Found())
    for index in present.intersection(_INDEXES):
        weights = _json(os.path.join(path, index)).get("weight_map")
        if not isinstance(weights, dict):
            raise Broken("%s is broken" % index)
        look.at(path, sorted(set(map(str, weights.values()))))
    deepspeed = any(re.fullmatch(r"global_step\d+", name) for name in present)
    if not (sharded or deepspeed or present.intersection((*_INDEXES, *_WHOLE_WEIGHTS))):
        raise Broken("it holds no weights")


def _rank_files(path: str, look: Look, found: Found) -> None:
    names = os.listdir(path)
    matches = [match for match in map(_RANK_FILE.fullmatch, names) if match]
    ranks = sorted(int(match[1]) for match in matches)
    metadata = _json(os.path.join(path, _RANK_METADATA))
    world_size = look.world_size
    for key in ("world_size", "num_ranks", "num_processes"):
        if isinstance(metadata.get(key), int):
            world_size = metadata[key]
    look.at(path, [name for name in names if name.endswith(_TENSOR_SUFFIXES)])
    files = [os.path.join(path, match[0]) for match in matches]
    steps = _one_save(files, metadata)
    if not steps:
        found.doubts.append("nothing in the files of the ranks says of which save they are")
    missing = sorted(set(range(world_size or ranks[-1] + 1)) - set(ranks))
    if not missing and metadata:
        found.identity = _identity(path)
        return
    found.identity = "rank-files"
    found.part = {
        "ranks": ranks,
        "world_size": world_size,
        "metadata": bool(metadata),
        "steps": steps,
        "saved": [min(map(os.path.getmtime, files)), max(map(os.path.getmtime, files))],
    }
    why = "model_state_rank%d.pt is missing" % missing[0] if missing else ""
    raise PartOnly(why or "%s, which rank 0 writes, is missing" % _RANK_METADATA, found)


def _one_save(files: List[str], metadata: Dict[str, Any]) -> List[int]:
    """Return the step that the files say; the same folder may have been saved into twice.

    Raises:
        Broken: they are of several saves.
    """
    said = {os.path.basename(file): step_inside(file) for file in files}
    said[_RANK_METADATA] = next(
        (metadata[key] for key in ("step", "global_step") if isinstance(metadata.get(key), int)),
        None,
    )
    steps = sorted({step for step in said.values() if step is not None})
    if len(steps) > 1:
        names = ", ".join(
            "%s of step %s" % one for one in sorted(said.items()) if one[1] is not None
        )
        raise Broken("two saves are mixed: %s" % names)
    times = [os.path.getmtime(file) for file in files]
    if max(times) - min(times) > SAVE_SECONDS:
        span = max(times) - min(times)
        raise Broken("two saves are mixed: the ranks' files were written %.0f s apart" % span)
    return [step for name, step in said.items() if step is not None and name != _RANK_METADATA][:1]


class PartOnly(Broken):
    """What is here is whole, but the other ranks' files are not here."""

    def __init__(self, message: str, found: Found) -> None:
        super().__init__(message)
        self.found = found


def _file(path: str, look: Look, found: Found) -> None:
    look.at(os.path.dirname(path), [os.path.basename(path)])
    found.identity = digest(path) if look.content else "size %d" % os.path.getsize(path)


def _identity(path: str) -> str:
    """Sum up a folder: names and sizes, and the content of what is small."""
    found = hashlib.sha256()
    for folder, folders, names in os.walk(path):
        folders.sort()
        for name in sorted(names):
            file = os.path.join(folder, name)
            size = os.path.getsize(file)
            content = digest(file) if size <= _SMALL else ""
            line = "%s %d %s\n" % (os.path.relpath(file, path), size, content)
            found.update(line.encode("utf-8", "surrogateescape"))
    return found.hexdigest()


def _json(path: str) -> Dict[str, Any]:
    """Read a JSON object; an empty one for what is missing or something else."""
    try:
        with open(path, "rb") as stream:
            value = json.load(stream)
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def files_of(path: str) -> List[str]:
    """List a checkpoint's files."""
    if os.path.isfile(path):
        return [path]
    return [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]


_Check = Callable[[str, Look, Found], None]
_KINDS: Dict[str, _Check] = {
    "clusterctl": _ours,
    "dcp": _dcp,
    "trainer": _trainer,
    "rank-files": _rank_files,
    "file": _file,
}
