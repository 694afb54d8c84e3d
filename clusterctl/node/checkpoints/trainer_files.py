"""Check a checkpoint of Hugging Face's Trainer: weights of all its kinds, and its last file."""

from __future__ import annotations

import os
import re
from typing import Any, Dict, Iterable

from clusterctl.node.checkpoints.dcp_files import check_dcp
from clusterctl.node.checkpoints.files import TENSOR_SUFFIXES, CheckpointContents, Inspection
from clusterctl.node.checkpoints.safetensors_files import SUFFIX as SAFETENSORS
from clusterctl.node.checkpoints.safetensors_files import check_safetensors
from clusterctl.node.checkpoints.sharded_files import check_zero
from clusterctl.node.checkpoints.torch_zip import Invalid
from clusterctl.node.file_io import read_json

TRAINER_STATE = "trainer_state.json"
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
_OPTIMIZERS = ("optimizer.pt", "optimizer.bin")
INCOMPLETE = "checkpoint-is-incomplete.txt"
_TRAINERS = {*_INDEXES, *_WHOLE_WEIGHTS, INCOMPLETE, "training_args.bin"}
_TRAINERS_NAME = re.compile(r"pytorch_model_fsdp.*|optimizer_\d+|global_step\d+")


def is_trainers(names: Iterable[str]) -> bool:
    """Tell whether a folder has a file or folder that the Trainer writes, and few scripts do."""
    return any(name in _TRAINERS or _TRAINERS_NAME.fullmatch(name) for name in names)


def check_trainer(path: str, inspection: Inspection, found: CheckpointContents) -> None:
    """Raise Invalid unless a checkpoint of Hugging Face's Trainer is complete."""
    names = set(os.listdir(path))
    if not names:
        raise Invalid("it is empty")
    deepspeed = _check_weights(path, names, inspection, found)
    found.add_unverified(
        inspection.check_files(path, [name for name in names if name.endswith(TENSOR_SUFFIXES)])
    )
    if not read_json(os.path.join(path, TRAINER_STATE)):
        raise Invalid("%s, which is written last, is missing or broken" % TRAINER_STATE)
    sharded = any(re.fullmatch(r"optimizer_\d+", name) for name in names)
    if not (sharded or deepspeed or names.intersection(_OPTIMIZERS)):
        found.doubts.append(
            "optimizer.pt is missing: the Trainer would silently resume with a new optimizer"
        )


def _check_weights(
    path: str, names: Iterable[str], inspection: Inspection, found: CheckpointContents
) -> bool:
    """Return whether the weights are DeepSpeed's, with the optimizer's state."""
    present = set(names)
    sharded = sorted(n for n in present if re.fullmatch(r"(pytorch_model_fsdp|optimizer)_\d+", n))
    check_dcp_folders(path, sharded, inspection, found)
    for index in sorted(present.intersection(_INDEXES)):
        weights = read_json(os.path.join(path, index)).get("weight_map")
        if not isinstance(weights, dict):
            raise Invalid("%s is broken" % index)
        # Their content is read once, with all other files.
        inspection._replace(content=False).check_files(path, set(map(str, weights.values())))
        _check_index(path, index, weights)
    deepspeed = False
    for name in sorted(n for n in present if re.fullmatch(r"global_step\d+", n)):
        deepspeed |= _check_deepspeed(os.path.join(path, name), name, inspection, found)
    fsdp = any(name.startswith("pytorch_model_fsdp") for name in present)
    if not (fsdp or deepspeed or present.intersection((*_INDEXES, *_WHOLE_WEIGHTS))):
        raise Invalid("it holds no weights")
    return deepspeed


def check_dcp_folders(
    path: str, names: Iterable[str], inspection: Inspection, found: CheckpointContents
) -> None:
    """Check the folders that are torch's distributed checkpoints; skip what is no folder."""
    for name in names:
        folder = os.path.join(path, name)
        if os.path.isdir(folder):
            try:
                doubts, mixed = check_dcp(
                    folder, content=inspection.content, progress=inspection.progress
                )
                found.doubts += [doubt.replace(": ", ": %s/" % name, 1) for doubt in doubts]
                found.mixed = found.mixed or mixed
            except Invalid as broken:
                raise Invalid("%s: %s" % (name, broken)) from broken


def _check_index(path: str, index: str, weights: Dict[str, Any]) -> None:
    """Raise Invalid unless every tensor that an index names is in the header of its file."""
    for file in sorted(set(map(str, weights.values()))):
        if file.endswith(SAFETENSORS):
            wanted = {name for name, place in weights.items() if place == file}
            lost = sorted(wanted - set(check_safetensors(os.path.join(path, file))))
            if lost:
                raise Invalid("%s holds no %s, which %s says" % (file, lost[0], index))


def _check_deepspeed(
    folder: str, name: str, inspection: Inspection, found: CheckpointContents
) -> bool:
    files = [file for file in os.listdir(folder) if file.endswith(TENSOR_SUFFIXES)]
    try:
        unproven = inspection.check_files(folder, files)
        check_zero(files, inspection.world_size)
    except Invalid as broken:
        raise Invalid("%s: %s" % (name, broken)) from broken
    found.add_unverified({"%s/%s" % (name, file) for file in unproven})
    return any(file.endswith("model_states.pt") for file in files)
