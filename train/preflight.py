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
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from train import versions
from train.config.batch_size import batch_size
from train.config.config import Config
from train.data import dataset, formats, hub, lines, token_cache
from train.data.bad_line import BadLine
from train.data.chat import DATE
from train.data.dataset import label
from train.data.formats import Rules
from train.data.tally import Tally
from train.distributed import host_memory
from train.distributed.env import RankEnv
from train.distributed.gpus import Devices, are_hidden, are_there, find_devices
from train.errors import ConfigError, LauncherEnvError, counted
from train.model import memory
from train.model.activations import MASKED
from train.model.memory import GIB
from train.observe import trackers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from train.data.encoding import Encoded
    from train.model.kinds import Weights
    from train.model.memory import Memory, Shape

NEEDED = {
    "torch": "torch", "transformers": "transformers", "peft": "peft",
    "safetensors": "safetensors", "numpy": "numpy", "yaml": "PyYAML",
}  # fmt: skip
"""Module → the package that has it."""
LOOKED_AT = 100
CHECKPOINT_BYTES = 12
"""A trained weight on disk: itself and AdamW's two moments, all float32."""
EXPORT_BYTES = 4
"""A weight of an exported adapter."""
FAILED = 2
NODES = (1, 2, 4)


State = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check."""

    about: str
    state: State
    said: str


def _finding(about: str, said: str, state: State = "ok") -> Finding:
    return Finding(about=about, state=state, said=said)


def _refused(about: str, error: ConfigError) -> Finding:
    """Return what the training would be refused with."""
    hint = f" (hint: {error.hint})" if error.hint else ""
    return _finding(about, "; ".join(error.problems) + hint, "fail")


def main(config: Config, notes: Sequence[str] = ()) -> int:
    """Look at everything, print a line each, and return 0 if nothing would fail."""
    hub.settle(config)
    findings = []
    of_keys = (_finding("keys", note) for note in notes)
    for finding in chain(of_keys, check(config)):
        findings.append(finding)
        print(f"{finding.state:4}  {finding.about:11} {finding.said}", flush=True)
    failed = sum(finding.state == "fail" for finding in findings)
    if failed:
        print(f"{failed} of {len(findings)} would stop the training")
    elif any(finding.about == "trained" for finding in findings):
        print("ready to train")
    else:
        print("nothing found that would stop the training; the model was not checked")
    return FAILED if failed else 0


def check(config: Config) -> Iterator[Finding]:
    """Yield what was found, the cheapest first."""
    yield from _packages()
    devices = find_devices()
    local = devices.count
    try:
        env = RankEnv.from_environment()
        local = env.local_world_size if env.launched else local
    except LauncherEnvError as error:
        yield _finding("ranks", str(error).replace("\nhint: ", " (hint: ") + ")", "fail")
    yield from _devices(devices, local)
    if config.dtype == "auto" and not devices.bfloat16:
        config = replace(config, dtype="float32")  # as the run does
    yield from _batch(config, local)
    look = _look(config)
    yield from look.findings
    if look.shape and look.weights:
        yield from _memory(config, look.shape, look.weights, devices, local)
        if config.masks_attention and devices.are_gpus:
            yield _finding("attention", MASKED, "warn")
        yield _network(config, look.shape, look.weights, local, devices)
    if look.shape and 0 < look.shape.positions < config.seq_len:
        said = f"the model was made for {look.shape.positions} positions, and seq_len is "
        said += f"{config.seq_len}: the banner tells if samples are longer"
        yield _finding("positions", said, "warn")
    data = list(_data(config))
    yield from data
    if look.shape and _usable() and not any(finding.state == "fail" for finding in data):
        yield from _learned(config)
    yield from _folders(config, look)
    yield from _trackers(config)


def _trackers(config: Config) -> Iterator[Finding]:
    """Look for the packages of report_to; a run does not fail without them."""
    absent = trackers.missing(config.report_to)
    for name in config.report_to:
        said = f"{name} is not installed, nothing is sent to it (hint: pip install {name})"
        yield _finding("report_to", said, "warn") if name in absent else _finding("report_to", name)
    if (config.project or config.run_name) and not {"wandb", "mlflow"} & {*config.report_to}:
        said = "project and run_name have no effect: expected wandb or mlflow, found neither"
        yield _finding("report_to", said, "warn")


def _packages() -> Iterator[Finding]:
    missing = [NEEDED[name] for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        said = f"not installed: {', '.join(missing)}"
        hint = versions.install(**dict.fromkeys(missing, ""))
        yield _finding("packages", f"{said} (hint: {hint})", "fail")
        return
    try:
        versions.refuse_older()
    except ConfigError as error:
        yield _refused("packages", error)
        return
    yield _finding("packages", ", ".join(map(" ".join, versions.installed().items())))
    yield from (_finding("packages", remark, "warn") for remark in versions.remarks())


def _devices(devices: Devices, local: int) -> Iterator[Finding]:
    """Report what this node computes on, and whether this torch can."""
    for gpu in devices.lost:
        said = f"GPU {gpu.index}: expected its memory, found {gpu.said} (hint: nvidia-smi -q)"
        yield _finding("devices", said, "fail")
    said = (
        f"{devices.count} x {devices.name}, {devices.memory / GIB:.0f} GiB each"
        if devices.are_gpus
        else f"no GPU: processes on CPUs, {devices.memory / GIB:.0f} GiB of memory together"
    )
    yield _finding("devices", said)
    if not devices.bfloat16:
        said = f"{devices.name} only emulates bfloat16: dtype: auto is float32 here"
        yield _finding("devices", said, "warn")
    if are_hidden() or not are_there() or not _usable():
        return
    from train.distributed.devices import refuse_unsuitable  # noqa: PLC0415  (as in _make)

    try:
        refuse_unsuitable(local)
    except LauncherEnvError as error:
        yield _finding("devices", str(error).replace("\nhint: ", " (hint: ") + ")", "fail")


def _batch(config: Config, local: int) -> Iterator[Finding]:
    """Report local x GPUs x nodes x accumulation for some numbers of nodes."""
    for nodes in NODES:
        try:
            size = batch_size(config, local * nodes)
        except ConfigError as error:
            said = f"{nodes} x {local}: {'; '.join(error.problems)}"
            yield _finding("batch", said, "fail" if nodes == 1 else "warn")
            continue
        of_nodes = counted(nodes, "node")
        said = (
            f"{size.per_device} local x {local} a node x {of_nodes} x {size.accumulation} "
            f"accumulation = {counted(size.total, 'sample')} a step"
        )
        if size.empty:
            said += f" ({size.empty} places stay empty)"
        yield _finding("batch", said)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What was found of the model."""

    findings: tuple[Finding, ...]
    shape: Shape | None = None
    weights: Weights | None = None
    """None where the model is not here, or cannot be made."""


def _look(config: Config) -> Look:
    """Look at the model's files, and make it without its weights."""
    name = config.name_or_path
    if hub.is_hub_id(name):
        token = "with" if os.environ.get("HF_TOKEN") else "without"
        said = f"{name} is a hub id, downloaded once a node at the start, {token} HF_TOKEN: "
        said += "what would be trained is checked once it is a folder"
        return Look(findings=(_finding("model", said, "warn"),))
    try:
        folder = hub.model_folder(config)
        shape = memory.shape(folder)
    except ConfigError as error:
        return Look(findings=(_refused("model", error),))
    except (OSError, ValueError) as error:
        return Look(findings=(_finding("model", f"{name}: cannot be read: {error}", "fail"),))
    if shape.complete and shape.parameters:
        said = f"{memory.weights_in_words(shape.parameters)}, {shape.layers} layers"
        found = [_finding("model", said)]
    else:  # its config.json is enough for what would be trained, and in how much memory
        said = f"{folder}: expected all its *.safetensors, found some missing"
        found = [_finding("model", said, "fail")]
    if not any((folder / file).is_file() for file in token_cache.TOKENIZER_FILES):
        found.insert(0, _finding("model", f"{folder}: expected a tokenizer, found none", "fail"))
    return _make(config, folder, shape, found)


def _usable() -> bool:
    """Return whether all packages can be imported."""
    return all(importlib.util.find_spec(name) for name in NEEDED) and not versions.older()


def _make(config: Config, folder: Path, shape: Shape, found: list[Finding]) -> Look:
    """Make the model without its weights, and add what came of it to what was found."""
    if not _usable():
        return Look(findings=tuple(found), shape=shape)
    from train.model.load import survey  # noqa: PLC0415  (seconds, and torch may not be there)

    try:
        weights = survey(config, folder)
    except ConfigError as error:
        return Look(findings=(*found, _refused("trained", error)), shape=shape)
    found.append(_finding("trained", _trained(config, weights)))
    if not shape.complete:
        shape = replace(shape, parameters=weights.total)
    return Look(findings=tuple(found), shape=shape, weights=weights)


def _trained(config: Config, weights: Weights) -> str:
    how = f"LoRA r={config.lora_r}" if config.method == "lora" else "all weights"
    share = weights.trained_total / weights.total
    return f"{how}: {weights.trained_total:,} weights ({share:.2%}): {weights.words()}"


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
    yield _finding("memory", said, "ok" if fits else "warn")
    yield _host_memory(config, shape, need, shards=shards, local=local, gpu=devices.are_gpus)
    alone = memory.memory(config, shape, weights, shards=1, gpu=devices.are_gpus)
    if alone.total < room:
        said = f"this fits on one {'GPU' if devices.are_gpus else 'process'}: more only add speed"
    elif fits:
        said = "this fits on one node: more nodes only add speed, and need a fast network for it"
    else:
        said = "this does not fit on one node: more nodes with parallel: fsdp, a smaller "
        said += "per_device_train_batch_size or seq_len, or activation_checkpointing: true"
    yield _finding("nodes", said, "ok" if fits else "warn")


def _host_memory(
    config: Config, shape: Shape, need: Memory, *, shards: int, local: int, gpu: bool
) -> Finding:
    """Compare what this node's processes take of its memory with what is available."""
    host = memory.host_memory(config, shape, need, shards=shards, local=local, gpu=gpu)
    left = host_memory.available()
    processes = "one process" if local == 1 else f"{local} processes"
    said = (
        f"about {memory.size_in_words(host.total)} for {processes} "
        f"({memory.size_in_words(host.reading)} of it while the base is read), "
        f"{memory.size_in_words(left)} available"
    )
    if host.total <= left:
        return _finding("host memory", said)
    stops = gpu and host.certain > left  # without a GPU it may be checked on another machine
    said += f" (hint: {memory.MORE_ROOM})"
    return _finding("host memory", said, "fail" if stops else "warn")


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
    gathered = shape.parameters * memory.dtype_bytes(config, gpu=devices.are_gpus) * passes
    said = (
        f"each of two nodes sends about {memory.size_in_words(gradients)} of gradients a step with "
        f"hsdp, and takes in {memory.size_in_words(gathered + gradients)} of weights and gradients "
        "with fsdp over nodes"
    )
    return _finding("network", said)


def _data(config: Config) -> Iterator[Finding]:
    found = [
        _dataset(config, "dataset_path", each.path, Rules.of(config, each))
        for each in config.datasets
    ]
    seen = [each.weight * size for each, (_, size) in zip(config.datasets, found, strict=True)]
    for each, size, (finding, _) in zip(config.datasets, seen, found, strict=True):
        if len(found) == 1 or finding.state == "fail":
            yield finding
            continue
        # Only the start counts tokens: the banner has their shares.
        share = f"about {size / sum(seen):.0%} of the bytes of an epoch"
        share = share if all(seen) else "its share is known once all of them are on this node"
        yield replace(finding, said=f"{finding.said}; weight {each.weight:g}, {share}")
    if config.eval_dataset_path:
        rules = Rules.of(config)
        yield _dataset(config, "eval_dataset_path", config.eval_dataset_path, rules)[0]


def _dataset(config: Config, key: str, name: str, rules: Rules) -> tuple[Finding, float]:
    """Return what was found of a data set, and its bytes as JSON lines; 0 if they are unknown."""
    if hub.is_hub_dataset(name):
        said = f"{name} is a hub id: downloaded at start"
        return _finding("data", said), 0
    try:
        files = hub.dataset_files(name, config, key=key)
        return _lines(config, label(config, key, name), files, rules)
    except ConfigError as error:
        return _refused("data", error), 0


def _lines(
    config: Config, named: str, files: tuple[Path, ...], rules: Rules
) -> tuple[Finding, float]:
    """Look at the first lines: enough to see a wrong file, not to see one wrong line."""
    columns = frozenset(rules.columns_of_lines.values())
    first = list(islice(lines.read(files, columns=columns), LOOKED_AT))
    bad = []
    chats = False
    for line in first:
        try:
            chats = formats.is_chat(rules.record_of(line.content), rules) or chats
        except BadLine as error:
            bad.append(f"{line.where}: {error}")
    size = sum(path.stat().st_size for path in files)
    if not first:
        return _finding("data", f"{named}: expected lines, found none", "fail"), 0
    if len(bad) > config.max_bad_lines:
        return _finding("data", f"{bad[0]} ({len(bad)} of {len(first)} bad)", "fail"), 0
    templates = _templates(Path(config.name_or_path)) if chats else None
    if templates == []:
        said = f"{named}: expected a chat template in the model's folder for messages, found none"
        return _finding("data", said, "fail"), 0
    each = sum(len(line.content) for line in first if isinstance(line.content, bytes)) / len(first)
    count = lines.count(files, each) if each else len(first)
    names = files[0].name + (f" and {len(files) - 1} more" if len(files) > 1 else "")
    said = f"{named}: {names}, {size / 2**20:.1f} MiB, about {counted(count, 'line')}"
    if any("strftime_now" in text for text in templates or ()):
        said += f"; the chat template prints the date as {DATE:%Y-%m-%d} on every day"
    return _finding("data", said), count * each


def _learned(config: Config) -> Iterator[Finding]:
    """Read the first lines as the training will: say what is learned of them, and what is wrong."""
    names = [each.path for each in config.datasets]
    names += [config.eval_dataset_path] if config.eval_dataset_path else []
    if any(map(hub.is_hub_dataset, names)):
        return
    try:
        tokenizer = dataset.load_tokenizer(hub.model_folder(config), config)
        for located in dataset.locate(config):
            first = list(islice(dataset.preview(config, located, tokenizer), LOOKED_AT))
            yield from _of_first(config, located.label, first)
    except ConfigError as error:
        yield _refused("data", error)


def _of_first(config: Config, named: str, first: Sequence[Encoded]) -> Iterator[Finding]:
    tally = Tally()
    for sample in chain.from_iterable(each.samples for each in first):
        if sample.tally:
            tally.add(sample.tally)
    of_first = f"{named}, first {len(first)} lines" if len(first) > 1 else f"{named}, first line"
    for note in tally.notes():
        yield _finding("data", f"{of_first}: {note}")
    dropped = [each.reason for each in first if each.usable and each.reason]
    if dropped:
        said = f"{of_first}: {counted(len(dropped), 'line')} {dropped[0]}"
        yield _finding("data", said, "warn" if len(dropped) < len(first) else "fail")
    bad = [f"{each.line.where}: {each.reason}" for each in first if not each.usable]
    if bad:
        state: State = "fail" if len(bad) > config.max_bad_lines else "warn"
        yield _finding("data", f"{bad[0]} ({len(bad)} of {len(first)} bad)", state)


def _templates(folder: Path) -> list[str] | None:
    """Return the files with a model's chat templates; None if the folder is not here yet."""
    if not folder.is_dir():
        return None
    names = ("chat_template.jinja", "tokenizer_config.json", "chat_template.json")
    texts = {
        path: path.read_text(encoding="utf-8", errors="replace")
        for name in names
        if (path := folder / name).is_file()
    }
    return [
        text for path, text in texts.items() if path.suffix == ".jinja" or '"chat_template"' in text
    ]


def _folders(config: Config, look: Look) -> Iterator[Finding]:
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
            yield _finding("folders", said, "fail")
            continue
        free = shutil.disk_usage(above).free
        wanted = _checkpoints(config, look) if key == "output_dir" else 0
        said = f"{key}: {folder} can be written, {free / GIB:.1f} GiB free"
        if wanted:
            said += f", checkpoints and export take about {memory.size_in_words(wanted)}"
        yield _finding("folders", said, "ok" if free > wanted else "fail")
    wanted_from = config.resume_from_checkpoint
    if wanted_from and wanted_from != "latest" and not (Path(wanted_from) / "COMPLETE").exists():
        said = f"resume_from_checkpoint: expected COMPLETE in {wanted_from}, found none"
        yield _finding("folders", said, "fail")


def _checkpoints(config: Config, look: Look) -> int:
    """Return the bytes that the kept checkpoints, the one being written and the export take."""
    if look.shape is None or look.weights is None:
        return 0
    trained, kept = look.weights.trained_total, config.save_total_limit + 1
    if config.method == "lora":  # each checkpoint has its adapter in it
        return trained * ((CHECKPOINT_BYTES + EXPORT_BYTES) * kept + EXPORT_BYTES)
    return trained * CHECKPOINT_BYTES * kept + look.shape.on_disk
