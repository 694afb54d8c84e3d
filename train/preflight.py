"""`python -m train --check`: say in seconds what would fail, without any GPU's work.

The model is made as the training makes it, but without weights (torch's meta device): what
transformers or PEFT would refuse is refused here, and what is trained is counted. For the 107
billion weights of GLM-4.5-Air that takes half a second on a CPU, besides the import of torch.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path

from train import versions
from train.checkpoint import remote
from train.config.batch_size import batch_size
from train.config.config import Config
from train.data import first_lines, hub, token_cache
from train.distributed import host_memory
from train.distributed.env import RankEnv
from train.distributed.gpus import Devices, are_hidden, are_there, find_devices
from train.errors import CheckpointError, ConfigError, LauncherEnvError, counted
from train.finding import Finding, refused
from train.model import memory
from train.model.activations import MASKED
from train.model.kinds import Weights
from train.model.memory import GIB, Memory, Shape, size_in_words
from train.object_store import is_url
from train.observe import trackers

NEEDED = {
    "torch": "torch", "transformers": "transformers", "peft": "peft",
    "safetensors": "safetensors", "numpy": "numpy", "yaml": "PyYAML",
}  # fmt: skip
"""Module → the package that has it."""
CHECKPOINT_BYTES = 12
"""A trained weight on disk: itself and AdamW's two moments, all float32."""
EXPORT_BYTES = 4
"""A weight of an exported adapter."""
FAILED = 2
NODES = (1, 2, 4)


def main(config: Config, notes: Sequence[str] = ()) -> int:
    """Look at everything, print a line each, and return 0 if nothing would fail."""
    hub.settle(config)
    findings = []
    for finding in chain((Finding("keys", note) for note in notes), check(config)):
        findings.append(finding)
        print(f"{finding.state:4}  {finding.about:11} {finding.said}", flush=True)
    failed = [finding for finding in findings if finding.state == "fail"]
    if failed:  # the last line is what `clusterctl check` shows
        first = f"{failed[0].about}: {failed[0].said}"
        print(f"{len(failed)} of {len(findings)} would stop the training; {first}")
    elif any(finding.about == "trained" for finding in findings):
        print("ready to train")
    else:
        print("nothing found that would stop the training; the model was not checked")
    return FAILED if failed else 0


def check(config: Config) -> Iterator[Finding]:
    """Yield what was found, the cheapest first."""
    yield from _packages()
    if _usable():
        from train.model.lora_targets import continued

        try:
            config = continued(config)
        except ConfigError as error:
            yield refused("adapter", error)
    devices = find_devices()
    local = devices.count
    try:
        env = RankEnv.from_environment()
        local = env.local_world_size if env.launched else local
    except LauncherEnvError as error:
        yield refused("ranks", error)
    yield from _devices(devices, local)
    if config.dtype == "auto" and not devices.bfloat16:
        config = replace(config, dtype="float16")  # as the run does
    yield from _batch(config, local)
    found, shape, weights = _model(config)
    yield from found
    if shape and weights:
        yield from _memory(config, shape, weights, devices, local)
        if config.masks_attention and devices.are_gpus:
            yield Finding("attention", MASKED, "warn")
        yield _network(config, shape, weights, local, devices)
    if shape and 0 < shape.positions < config.seq_len:
        said = f"the model was made for {shape.positions} positions, and seq_len is "
        said += f"{config.seq_len}: the banner tells if samples are longer"
        yield Finding("positions", said, "warn")
    data = list(first_lines.data_sets(config))
    yield from data
    if shape and _usable() and not any(finding.state == "fail" for finding in data):
        yield from first_lines.learned(config)
    yield from _folders(config, shape, weights)
    yield from _trackers(config)


def _trackers(config: Config) -> Iterator[Finding]:
    """Look for the packages of report_to; a run does not fail without them."""
    absent = trackers.missing(config.report_to)
    for name in config.report_to:
        said = f"{name} is not installed, nothing is sent to it (hint: pip install {name})"
        yield Finding("report_to", said, "warn") if name in absent else Finding("report_to", name)
    if (config.project or config.run_name) and not {"wandb", "mlflow"} & {*config.report_to}:
        said = "project and run_name have no effect: expected wandb or mlflow, found neither"
        yield Finding("report_to", said, "warn")


def _packages() -> Iterator[Finding]:
    missing = [NEEDED[name] for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        hint = versions.install(**dict.fromkeys(missing, ""))
        yield Finding("packages", f"not installed: {', '.join(missing)} (hint: {hint})", "fail")
        return
    try:
        versions.refuse_older()
    except ConfigError as error:
        yield refused("packages", error)
        return
    yield Finding("packages", ", ".join(map(" ".join, versions.installed().items())))
    yield from (Finding("packages", remark, "warn") for remark in versions.remarks())


def _usable() -> bool:
    """Return whether all packages can be imported."""
    return all(importlib.util.find_spec(name) for name in NEEDED) and not versions.older()


def _devices(devices: Devices, local: int) -> Iterator[Finding]:
    """Report what this node computes on, and whether this torch can."""
    for gpu in devices.lost:
        said = f"GPU {gpu.index}: expected its memory, found {gpu.said} (hint: nvidia-smi -q)"
        yield Finding("devices", said, "fail")
    room = f"{devices.memory / GIB:.0f} GiB"
    if devices.are_gpus:
        yield Finding("devices", f"{devices.count} x {devices.name}, {room} each")
    else:
        yield Finding("devices", f"no GPU: processes on CPUs, {room} of memory together")
    if not devices.bfloat16:
        said = f"{devices.name} only emulates bfloat16: dtype: auto is float16 here"
        yield Finding("devices", said, "warn")
    if are_hidden() or not are_there() or not _usable():
        return
    from train.distributed.devices import refuse_unsuitable

    try:
        refuse_unsuitable(local)
    except LauncherEnvError as error:
        yield refused("devices", error)


def _batch(config: Config, local: int) -> Iterator[Finding]:
    """Report local x GPUs x nodes x accumulation for some numbers of nodes."""
    for nodes in NODES:
        try:
            size = batch_size(config, local * nodes)
        except ConfigError as error:
            said = f"{nodes} x {local}: {'; '.join(error.problems)}"
            one = nodes == 1 and config.context_parallel <= local  # ranks of several may share rows
            yield Finding("batch", said, "fail" if one else "warn")
            continue
        empty = f" ({size.empty} places stay empty)" if size.empty else ""
        shared = f"/ {size.context} a row " if size.context > 1 else ""
        yield Finding(
            "batch",
            f"{size.per_device} local x {local} a node x {counted(nodes, 'node')} {shared}x "
            f"{size.accumulation} accumulation = {counted(size.total, 'sample')} a step{empty}",
        )


def _model(config: Config) -> tuple[list[Finding], Shape | None, Weights | None]:
    """Look at the model's files, and make it without its weights.

    The shape is None if the model is not here, the weights also if it cannot be made.
    """
    name = config.name_or_path
    if hub.is_hub_id(name):
        token = "with" if os.environ.get("HF_TOKEN") else "without"
        said = f"{name} is a hub id, downloaded once a node at the start, {token} HF_TOKEN: "
        said += "what would be trained is checked once it is a folder"
        return [Finding("model", said, "warn")], None, None
    try:
        folder = hub.model_folder(config)
        shape = memory.shape(folder)
    except ConfigError as error:
        return [refused("model", error)], None, None
    except (OSError, ValueError) as error:
        return [Finding("model", f"{name}: cannot be read: {error}", "fail")], None, None
    if shape.complete and shape.parameters:
        said = f"{memory.weights_in_words(shape.parameters)}, {shape.layers} layers"
        found = [Finding("model", said)]
    else:  # its config.json is enough for what would be trained, and in how much memory
        said = f"{folder}: expected all its *.safetensors, found some missing"
        found = [Finding("model", said, "fail")]
    if not any((folder / file).is_file() for file in token_cache.TOKENIZER_FILES):
        found.insert(0, Finding("model", f"{folder}: expected a tokenizer, found none", "fail"))
    if not _usable():
        return found, shape, None
    from train.model.load import count_weights

    try:
        weights = count_weights(config, folder)
    except ConfigError as error:
        return [*found, refused("trained", error)], shape, None
    kind = "DoRA" if config.lora_use_dora else "LoRA"
    kind += " on 4 bits" if config.load_in_4bit else ""
    how = f"{kind} r={config.lora_r}" if config.method == "lora" else "all weights"
    trained, share = weights.trained_total, weights.trained_total / weights.total
    found.append(Finding("trained", f"{how}: {trained:,} weights ({share:.2%}): {weights.words()}"))
    return found, shape if shape.complete else replace(shape, parameters=weights.total), weights


def _memory(
    config: Config, shape: Shape, weights: Weights, devices: Devices, local: int
) -> Iterator[Finding]:
    """Report what a rank takes, and how few GPUs or nodes are enough."""
    shards = 1 if config.parallel in {"ddp", "single"} else local
    need = memory.memory(config, shape, weights, shards=shards, gpu=devices.are_gpus)
    room = devices.memory if devices.are_gpus else devices.memory / max(1, local)
    where = "a GPU" if devices.are_gpus else "a process"
    fits = need.total < room
    said = f"{need.words()} on {where}, of {room / GIB:.0f} GiB; an estimate"
    yield Finding("memory", said, "ok" if fits else "warn")
    yield _host_memory(config, shape, need, shards=shards, local=local, gpu=devices.are_gpus)
    whole = replace(config, context_parallel=1)
    alone = memory.memory(whole, shape, weights, shards=1, gpu=devices.are_gpus)
    if alone.total < room:
        said = f"this fits on one {'GPU' if devices.are_gpus else 'process'}: more only add speed"
    elif fits:
        said = "this fits on one node: more nodes only add speed, and need a fast network for it"
    else:
        said = "this does not fit on one node: more nodes with parallel: fsdp, a smaller "
        said += "per_device_train_batch_size or seq_len, or activation_checkpointing: true"
    yield Finding("nodes", said, "ok" if fits else "warn")


def _host_memory(
    config: Config, shape: Shape, need: Memory, *, shards: int, local: int, gpu: bool
) -> Finding:
    """Compare what this node's processes take of its memory with what is available."""
    host = memory.host_memory(config, shape, need, shards=shards, local=local, gpu=gpu)
    left = host_memory.available()
    processes = "one process" if local == 1 else f"{local} processes"
    reading = f"{size_in_words(host.reading)} of it while the base is read"
    said = f"about {size_in_words(host.total)} for {processes} ({reading}), "
    said += f"{size_in_words(left)} available"
    if host.total <= left:
        return Finding("host memory", said)
    stops = gpu and host.certain > left  # without a GPU it may be checked on another machine
    said += f" (hint: {memory.MORE_ROOM})"
    return Finding("host memory", said, "fail" if stops else "warn")


def _network(
    config: Config, shape: Shape, weights: Weights, local: int, devices: Devices
) -> Finding:
    """Report what crosses the network between two nodes in a step, by layout.

    With HSDP a ring all-reduce of the gradients: each of two nodes sends as many bytes as they
    are. With flat FSDP a node takes in its part of the gradients and all weights: once a step where
    they are kept, else for each forward and each backward pass.
    """
    gradients = weights.trained_total * 4
    passes = 1
    if config.reshard_after_forward is not False:
        with suppress(ConfigError):
            passes = 2 * batch_size(config, local * 2).accumulation
    size = memory.dtype_bytes(config, gpu=devices.are_gpus)
    gathered = passes * (shape.parameters * size - weights.shrunk * (size - memory.NF4))
    said = (
        f"each of two nodes sends about {size_in_words(gradients)} of gradients a step with "
        f"hsdp, and takes in {size_in_words(gathered + gradients)} of weights and gradients "
        "with fsdp over nodes"
    )
    return Finding("network", said)


def _folders(config: Config, shape: Shape | None, weights: Weights | None) -> Iterator[Finding]:
    """Try to write where the run will write, and look for room for its checkpoints."""
    folders = {"output_dir": Path(config.output_dir)}
    if config.cache_dir:
        folders["cache_dir"] = Path(config.cache_dir)
    for key, folder in folders.items():
        above = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
        try:
            with tempfile.TemporaryFile(dir=above):
                pass
        except OSError as error:
            said = f"{key}: cannot write in {above}: {error.strerror}"
            yield Finding("folders", said, "fail")
            continue
        free = shutil.disk_usage(above).free
        wanted = 0
        if key == "output_dir" and shape and weights:
            wanted = _checkpoints(config, shape, weights)
        said = f"{key}: {folder} can be written, {free / GIB:.1f} GiB free"
        if wanted:
            said += f", checkpoints and export take about {size_in_words(wanted)}"
        yield Finding("folders", said, "ok" if free > wanted else "fail")
    wanted_from = config.resume_from_checkpoint
    yield from _store(config)
    if not wanted_from or is_url(wanted_from):
        return
    if wanted_from != "latest" and not (Path(wanted_from) / "COMPLETE").exists():
        said = f"resume_from_checkpoint: expected COMPLETE in {wanted_from}, found none"
        yield Finding("folders", said, "fail")


def _store(config: Config) -> Iterator[Finding]:
    """Try to write to upload_to, and look for all files of a checkpoint that is in a store."""
    said: list[str] = []
    if config.upload_to:
        try:
            remote.probe(config.upload_to, said.append)
            fine = f"upload_to: {config.upload_to} can be written"
            yield Finding("store", said[0] if said else fine, "warn" if said else "ok")
        except ConfigError as error:
            yield refused("store", error)
    wanted = config.resume_from_checkpoint
    if wanted and is_url(wanted):
        try:
            there, files = remote.find_whole(wanted, said.append)
        except (ConfigError, CheckpointError) as error:
            yield Finding("store", str(error).replace("\n", " "), "fail")
        else:
            size = size_in_words(sum(entry.size for entry in files.values()))
            said_of = f"{there.url}: {size}, each file is there in its size"
            yield Finding("store", f"{said_of}; hashed at the start")


def _checkpoints(config: Config, shape: Shape, weights: Weights) -> int:
    """Return the bytes that the kept checkpoints, the one being written and the export take."""
    trained, kept = weights.trained_total, config.save_total_limit + 1
    if config.method == "lora":  # each checkpoint has its adapter in it
        return trained * ((CHECKPOINT_BYTES + EXPORT_BYTES) * kept + EXPORT_BYTES)
    return trained * CHECKPOINT_BYTES * kept + shape.on_disk
