"""The check before a run reports what would not work, with numbers, and without a GPU."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import time
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.train.tiny import make_tokenizer
from train import preflight
from train.__main__ import main
from train.config.config import Config
from train.config.datasets import Dataset
from train.distributed import host_memory
from train.distributed.gpus import Devices, Gpu
from train.finding import Finding
from train.model import memory
from train.model.activations import Widths
from train.model.kinds import Weights
from train.model.memory import GIB
from train.preflight import check

# The model is made by torch, on its meta device: seconds once a process.
pytestmark = pytest.mark.torch

RECIPE = Path(__file__).parents[2] / "examples" / "glm-4.5-air" / "config.yaml"
EIGHT_BILLION = memory.Shape(
    parameters=8_000_000_000,
    on_disk=16_000_000_000,
    layers=32,
    width=4096,
    vocabulary=128256,
    widths=Widths.of({"num_hidden_layers": 32, "hidden_size": 4096}),
    complete=True,
)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """Return a training of a model that is a header only: 8 billion weights, no bytes."""
    folder = tmp_path / "model"
    folder.mkdir()
    about = {
        "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32,
        "intermediate_size": 14336, "vocab_size": 128256, "num_attention_heads": 32,
        "num_key_value_heads": 8, "max_position_embeddings": 8192,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(about))
    make_tokenizer(folder)
    header = {
        "lm_head.weight": {"dtype": "BF16", "shape": [8_000_000, 1000], "data_offsets": [0, 0]}
    }
    text = json.dumps(header | {"__metadata__": {"format": "pt"}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
    data = tmp_path / "data.jsonl"
    data.write_text('{"text": "hello"}\n' * 50)
    return Config(
        name_or_path=str(folder),
        dataset_path=str(data),
        output_dir=str(tmp_path / "output"),
        seq_len=2048,
        per_device_train_batch_size=2,
        global_batch_size=128,
    )


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Devices(count=8, memory=80 << 30, name="NVIDIA H100 80GB HBM3")
    monkeypatch.setattr(preflight, "find_devices", lambda: found)
    for name in ("WORLD_SIZE", "NNODES", "GROUP_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def on(monkeypatch: pytest.MonkeyPatch, **devices: Any) -> None:
    found = Devices(count=1, memory=16 << 30, name="Tesla V100-SXM2-16GB", **devices)
    monkeypatch.setattr(preflight, "find_devices", lambda: found)


def test_a_lost_gpu_stops_the_training(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = Gpu(index="3", uuid="", memory=None, capability=None, name="", said="[Unknown Error]")
    on(monkeypatch, lost=(lost,))
    first, second = said(config, "devices")
    assert (first.state, second.state) == ("fail", "ok")
    assert first.said.startswith("GPU 3: expected its memory, found [Unknown Error]")


def test_weights_are_counted_in_float16_where_bfloat16_is_emulated(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    on(monkeypatch)
    assert "weights 14.9" in said(config, "memory")[0].said
    on(monkeypatch, bfloat16=False)
    assert "weights 14.9" in said(config, "memory")[0].said
    assert said(config, "devices")[1].said.endswith("dtype: auto is float16 here")


def said(config: Config, about: str) -> list[Finding]:
    return [finding for finding in check(config) if finding.about == about]


@pytest.mark.usefixtures("gpus")
def test_the_arithmetic_is_told_for_several_nodes(config: Config) -> None:
    assert [finding.said for finding in said(config, "batch")] == [
        "2 local x 8 a node x 1 node x 8 accumulation = 128 samples a step",
        "2 local x 8 a node x 2 nodes x 4 accumulation = 128 samples a step",
        "2 local x 8 a node x 4 nodes x 2 accumulation = 128 samples a step",
    ]
    (first, *_) = said(replace(config, gradient_accumulation_steps=3), "batch")
    assert first.state == "fail"
    assert "2 x 8 ranks x gradient_accumulation_steps 3 = 48" in first.said


@pytest.mark.usefixtures("gpus")
def test_what_fits_is_told(config: Config) -> None:
    (memory,) = said(config, "memory")
    assert memory.state == "ok"
    assert "of 80 GiB; an estimate" in memory.said
    (nodes,) = said(config, "nodes")
    assert nodes.said.startswith("this fits on one GPU")
    (nodes,) = said(replace(config, method="full", activation_checkpointing=True), "nodes")
    assert nodes.said.startswith("this fits on one node")
    (nodes,) = said(replace(config, method="full", per_device_train_batch_size=16), "nodes")
    assert nodes.said.startswith("this does not fit on one node")


def test_the_estimate_is_near_what_one_gpu_took() -> None:
    """LoRA on a Llama of 1.1 billion weights took 36.6 GiB with 8 x 2048 tokens.

    All logits were held then: a model that changes its logits still does so.
    """
    shape = memory.Shape(
        parameters=1_100_000_000,
        on_disk=2_200_000_000,
        layers=22,
        width=2048,
        vocabulary=32000,
        widths=Widths.of(
            {
                "num_hidden_layers": 22,
                "hidden_size": 2048,
                "intermediate_size": 5632,
                "num_attention_heads": 32,
                "num_key_value_heads": 4,
            }
        ),
        changes_logits=True,
        complete=True,
    )
    weights = Weights(every={}, trained={"attention": 4_505_600, "dense MLP": 8_110_080})
    config = Config(name_or_path="m", dataset_path="d", seq_len=2048, per_device_train_batch_size=8)
    need = memory.memory(config, shape, weights, shards=1, gpu=True)
    total = need.total
    # What torch had allocated, when PEFT still cast each adapter's input.
    casts = 8 * 2048 * 22 * 8 * 2048
    assert (total - need.overhead + casts) / GIB == pytest.approx(36.6, rel=0.1)
    plain = replace(shape, changes_logits=False)
    less = total - memory.memory(config, plain, weights, shards=1, gpu=True).total
    assert less == (8 * 2048 * 10 - (1 << 25) // 32000 * 6) * 32000


def test_gradients_take_the_place_of_activations() -> None:
    """All weights of a Llama took 19.78 GiB on one H200, with 2 x 2048 tokens a step."""
    layer = 2 * 2048 * 2048 + 2 * 2048 * 512 + 3 * 2048 * 8192
    about = {
        "num_hidden_layers": 16, "hidden_size": 2048, "intermediate_size": 8192,
        "num_attention_heads": 32, "num_key_value_heads": 8,
    }  # fmt: skip
    shape = memory.Shape(
        parameters=16 * layer + 2 * 32000 * 2048,
        on_disk=0,
        layers=16,
        width=2048,
        vocabulary=32000,
        widths=Widths.of(about),
        complete=True,
    )
    weights = Weights(
        every={}, trained={"dense MLP": 16 * layer, "embeddings and head": 2 * 32000 * 2048}
    )
    config = Config(
        name_or_path="m", dataset_path="d", method="full", seq_len=2048,
        per_device_train_batch_size=2, gradient_accumulation_steps=1,
    )  # fmt: skip

    def allocated(**changes: Any) -> float:
        changed = replace(config, **changes)
        need = memory.memory(changed, shape, weights, shards=1, gpu=True)
        return (need.total - need.overhead) / GIB

    assert allocated() == pytest.approx(19.78, rel=0.05)
    gradients = 4 * shape.parameters / GIB
    for both in ({"gradient_accumulation_steps": 2}, {"global_batch_size": 4}):
        assert allocated(**both) == pytest.approx(allocated() + gradients)
    # Its activations are smaller than the gradients, which are then all that counts.
    small = allocated(per_device_train_batch_size=1, seq_len=256)
    assert small == pytest.approx(16 * shape.parameters / GIB, rel=0.05)


def test_of_a_trained_head_some_rows_of_logits_and_a_gradient_are_counted() -> None:
    shape = replace(EIGHT_BILLION, vocabulary=151_552)
    config = Config(name_or_path="m", dataset_path="d", method="full", seq_len=8192)
    weights = Weights(every={}, trained={"embeddings and head": 8_000_000_000})
    parts, whole = (
        memory.memory(config, each, weights, shards=8, gpu=True).activations
        for each in (shape, replace(shape, changes_logits=True))
    )
    assert whole - parts == (8192 * 10 - 1024 * 6) * 151_552 - 151_552 * 4096 * 4


def test_ranks_that_share_rows_have_whole_keys_and_values_and_a_part_of_the_rest() -> None:
    about = {
        "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
        "num_key_value_heads": 8,
    }  # fmt: skip
    shape = replace(EIGHT_BILLION, widths=Widths.of(about))
    config = Config(
        name_or_path="m", dataset_path="d", seq_len=65536, per_device_train_batch_size=1
    )
    weights = Weights(every={}, trained={"dense MLP": 40_000_000})

    def activations(**changes: Any) -> float:
        changed = replace(config, **changes)
        return memory.memory(changed, shape, weights, shards=8, gpu=True).activations

    keys = 65536 * 2 * 2 * 1024 * 32
    logits = (1 << 25) // 128256 * 128256 * 6  # of some rows at a time
    same = logits + keys - 4 * 40_000_000 / 8  # gradients take the place of some
    for size in (2, 8):
        shared = activations(context_parallel=size)
        assert shared - same == pytest.approx((activations() - same) / size)


def test_what_is_held_whole_is_counted() -> None:
    shape = EIGHT_BILLION
    config = Config(name_or_path="m", dataset_path="d", method="full")
    weights = Weights(every={}, trained={"dense MLP": 8_000_000_000})

    def gathered(*, defers: bool | None = None, **changes: Any) -> float:
        changed = replace(config, **changes)
        need = memory.memory(changed, shape, weights, shards=8, gpu=True, defers=defers)
        return need.gathered

    once = gathered()
    assert gathered(gradient_accumulation_steps=2) == once
    assert gathered(gradient_accumulation_steps=2, method="lora") == once + 4 * shape.parameters
    assert gathered(reshard_after_forward=False) == 2 * shape.parameters
    assert gathered(defers=True) == once
    for accumulates in ({"gradient_accumulation_steps": 2}, {"global_batch_size": 16}):
        assert gathered(defers=True, **accumulates) == once + 4 * shape.parameters
    assert gathered(defers=True, global_batch_size=8) == once


@pytest.mark.usefixtures("gpus")
def test_what_would_stop_it_is_told_all_at_once(config: Config, tmp_path: Path) -> None:
    Path(config.datasets[0].path).write_text('{"instruction": "a"}\n')
    (tmp_path / "file").write_text("")
    wrong = replace(
        config,
        name_or_path=str(tmp_path / "nothing"),
        output_dir=str(tmp_path / "file" / "output"),
        resume_from_checkpoint=str(tmp_path / "step-000001"),
    )
    failed = {finding.about: finding.said for finding in check(wrong) if finding.state == "fail"}
    assert "expected a model's folder" in failed["model"]
    assert "found the keys instruction" in failed["data"]
    assert "expected COMPLETE" in failed["folders"]
    assert preflight.main(wrong) == 2


@pytest.mark.usefixtures("gpus")
def test_each_data_set_is_named_with_its_share(config: Config, tmp_path: Path) -> None:
    paths = [tmp_path / "few.jsonl", tmp_path / "many.jsonl"]
    for path, count in zip(paths, (10, 30), strict=True):
        path.write_text('{"text": "some words"}\n' * count)
    few, many = (Dataset(path=str(path)) for path in paths)
    listed = replace(config, dataset_path=(replace(few, weight=9.0), many))
    assert [finding.said for finding in said(listed, "data")] == [
        f"dataset_path {each.path}: {Path(each.path).name}, 0.0 MiB, about {count} lines; {share}"
        for each, count, share in (
            (few, 10, "weight 9, about 75% of the bytes of an epoch"),
            (many, 30, "weight 1, about 25% of the bytes of an epoch"),
        )
    ]
    paths[0].unlink()
    lacking, here = said(listed, "data")
    assert (lacking.state, here.state) == ("fail", "ok")
    assert here.said.endswith("; weight 1, its share is known once all of them are on this node")
    on_hub, here = said(
        replace(listed, dataset_path=(Dataset(path="org/d", weight=3.0), many)), "data"
    )
    assert "downloaded at start; weight 3, its share is known once" in on_hub.said
    assert "weight 1, its share is known once" in here.said


CHAT = """{%- for m in messages %}[{{ m.role }}]
{%- if m.role == 'assistant' and '</think>' in m.content and not loop.last %}
{{- m.content.split('</think>')[-1] }}{% else %}{{ m.content }}{% endif %}<eos>{% endfor %}
{%- if add_generation_prompt %}[assistant]{% endif %}"""


def write_chats(config: Config, *chats: list[dict[str, object]]) -> None:
    lines = (json.dumps({"messages": chat}) for chat in chats)
    Path(config.datasets[0].path).write_text("\n".join(lines) + "\n")


def test_chats_need_a_template(config: Config) -> None:
    write_chats(config, [{"role": "assistant", "content": "a"}])
    (finding,) = said(config, "data")
    assert (finding.state, "chat template" in finding.said) == ("fail", True)
    template = Path(config.name_or_path) / "chat_template.jinja"
    template.write_text(CHAT)
    first, learned = said(config, "data")
    assert (first.state, learned.state) == ("ok", "ok")
    assert "prints the date" not in first.said
    template.write_text("{{ strftime_now('%Y') }}" + CHAT)
    first, _ = said(config, "data")
    assert first.said.endswith("; the chat template prints the date as 2024-07-26 on every day")


def test_what_is_learned_of_the_first_chats_is_told(config: Config) -> None:
    (Path(config.name_or_path) / "chat_template.jinja").write_text(CHAT)
    thought: dict[str, object] = {"role": "assistant", "content": "<think>Two.</think>4"}
    asked: dict[str, object] = {"role": "user", "content": "2+2? <eos>"}
    write_chats(config, [asked, thought], [asked, thought, asked, thought | {"weight": 0}])
    _, *found = said(config, "data")
    learned, unlearned, special = (finding.said for finding in found)
    first = "dataset_path, first 2 lines: "
    assert learned == (
        f"{first}learned: 2 answers, each with the token that ends it; thoughts in 1, 0 tool calls"
    )
    assert unlearned == (
        f"{first}not learned: thoughts that the template leaves out, in 1 chat; 1 answer of weight "
        "0"
    )
    assert special == (
        f"{first}special tokens within texts of messages: <eos> (3); they are read as the "
        "template's own (split_special_tokens: true keeps them text)"
    )
    assert {finding.state for finding in found} == {"ok"}


@pytest.mark.parametrize(("bad_lines", "state"), [(0, "fail"), (1, "warn")])
def test_a_chat_that_cannot_be_learned_is_told(config: Config, bad_lines: int, state: str) -> None:
    (Path(config.name_or_path) / "chat_template.jinja").write_text(CHAT)
    write_chats(config, [{"role": "assistant", "content": "a"}], [{"role": "user", "content": "b"}])
    *_, finding = said(replace(config, max_bad_lines=bad_lines), "data")
    assert finding.state == state
    assert "data.jsonl:2: messages: expected an answer" in finding.said
    assert finding.said.endswith("(1 of 2 bad)")


@pytest.mark.usefixtures("gpus")
def test_a_missing_shard_of_the_weights_is_told(config: Config) -> None:
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002.safetensors"}}
    path = Path(config.name_or_path) / "model.safetensors.index.json"
    path.write_text(json.dumps(index))
    found = {finding.about: finding for finding in check(config)}
    assert (found["model"].state, "some missing" in found["model"].said) == ("fail", True)
    assert "attention 13,631,488" in found["trained"].said  # the configuration alone says that
    assert "weights 1.9" in found["memory"].said


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize("size", [0, 5, 20])
def test_weights_that_are_cut_off_are_told(config: Config, size: int) -> None:
    path = Path(config.name_or_path) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    (finding,) = said(config, "model")
    assert (finding.state, "cannot be read" in finding.said) == ("fail", True)


def test_weights_that_are_cut_off_behind_their_header_are_told(config: Config) -> None:
    path = Path(config.name_or_path) / "model.safetensors"
    header = {"lm_head.weight": {"dtype": "BF16", "shape": [3, 2], "data_offsets": [0, 12]}}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"\0" * 12)
    (model,) = said(config, "model")
    assert (model.state, model.said) == ("ok", "6 weights, 32 layers")
    whole = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-1])
    (model,) = said(config, "model")
    assert model.state == "fail"
    assert model.said.endswith(f"expected {whole} bytes, found {whole - 1}: it is cut off")


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", b"[]"),
        ("config.json", b'{"hidden_size": [1, 2]}'),
        ("config.json", b'{"text_config": [1]}'),
        ("model.safetensors.index.json", b"[]"),
        ("model.safetensors.index.json", b'{"weight_map": []}'),
        ("model.safetensors", struct.pack("<Q", 2) + b"[]"),
        ("model.safetensors", struct.pack("<Q", 8) + b'{"a": 1}'),
        ("model.safetensors", struct.pack("<Q", 1) + b"\xff"),
    ],
)
def test_files_that_are_no_models_are_told(config: Config, name: str, content: bytes) -> None:
    (Path(config.name_or_path) / name).write_bytes(content)
    (finding,) = said(config, "model")
    assert (finding.state, "cannot be read" in finding.said) == ("fail", True)


@pytest.mark.usefixtures("gpus")
def test_layers_of_several_widths_are_counted(config: Config) -> None:
    path = Path(config.name_or_path) / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"intermediate_size": [8, 16]}))
    assert memory.shape(path.parent).layers == 32
    path.write_text(json.dumps({"n_layers": 4, "d_model": 8, "vocab_size": 10}))  # MPT's names
    assert memory.shape(path.parent).layers == 4


def test_a_template_that_is_no_utf_8_is_told(config: Config) -> None:
    write_chats(config, [{"role": "assistant", "content": "a"}])
    (Path(config.name_or_path) / "chat_template.jinja").write_bytes(b"\xff")
    looked_at, refused = said(config, "data")
    assert (looked_at.state, refused.state) == ("ok", "fail")
    assert "expected a tokenizer" in refused.said


@pytest.mark.usefixtures("gpus")
def test_a_line_too_deep_for_json_is_told(config: Config) -> None:
    Path(config.datasets[0].path).write_text('{"text": ' + "[" * 100_000 + "\n")
    (finding,) = said(config, "data")
    assert (finding.state, "expected a JSON object" in finding.said) == ("fail", True)


def test_a_mixture_of_107_billion_weights_is_looked_at_in_seconds(
    config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The recipe of the examples on the real configuration of GLM-4.5-Air, in seconds of CPU."""
    folder = Path(config.name_or_path)
    header = {
        "lm_head.weight": {"dtype": "BF16", "shape": [106_852_245_504], "data_offsets": [0, 0]}
    }
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
    about = {"model_type": "glm4_moe", "head_dim": 128, "attention_bias": True}
    (folder / "config.json").write_text(json.dumps(about))
    keys = [f"--set={name}={getattr(config, name)}" for name in ("name_or_path", "dataset_path")]
    import_module("tests.train.preload")  # the check's own time is measured, not torch's import
    before = time.process_time()
    code = main(["--check", f"--config={RECIPE}", *keys, f"--output-dir={tmp_path / 'output'}"])
    took = time.process_time() - before
    printed = capsys.readouterr()
    assert code == 0, printed
    said = {line[6:17].strip(): line[18:] for line in printed.out.splitlines()[:-1]}
    assert "attention 31,653,888, shared experts 11,888,640, dense MLP 721,920" in said["trained"]
    assert "routed experts" not in said["trained"]
    assert printed.out.endswith("ready to train\n")
    assert took < 5


@pytest.mark.usefixtures("gpus")
def test_what_peft_refuses_is_told(config: Config) -> None:
    about = {"model_type": "glm4_moe", "num_hidden_layers": 2}
    (Path(config.name_or_path) / "config.json").write_text(json.dumps(about))
    (finding,) = said(replace(config, lora_dropout=0.05), "trained")
    assert finding.state == "fail"
    assert "lora_dropout: expected 0 with adapters on single weights" in finding.said
    assert "hint: lora_target_modules: [k_proj, o_proj, q_proj, v_proj]" in finding.said


@pytest.mark.usefixtures("gpus")
def test_disk_and_network_are_reckoned_with_what_is_trained(config: Config) -> None:
    (trained,) = said(config, "trained")
    assert trained.said.startswith("LoRA r=16: 41,943,040 weights (0.52%): attention 13,631,488, ")
    (network,) = said(config, "network")
    assert "about 0.2 GiB of gradients a step with hsdp" in network.said
    # Gathered for 4 forward and 4 backward passes.
    taken_in = (8_000_000_000 * 2 * 8 + 41_943_040 * 4) / GIB
    assert f"takes in {taken_in:.1f} GiB of weights and gradients with fsdp" in network.said
    (kept,) = said(replace(config, reshard_after_forward=False), "network")
    once = (8_000_000_000 * 2 + 41_943_040 * 4) / GIB
    assert f"takes in {once:.1f} GiB of weights and gradients with fsdp" in kept.said
    (folders,) = said(config, "folders")
    # 16 bytes a weight in each of 3 + 1 checkpoints, 4 in the adapter.
    assert f"about {41_943_040 * (16 * 4 + 4) / GIB:.1f} GiB" in folders.said


@pytest.mark.usefixtures("gpus")
def test_host_memory_is_compared_with_what_is_available(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_memory, "available", lambda: 100 * GIB)
    (enough,) = said(config, "host memory")
    # A rank in eight of eight processes holds 3 of an eighth of a layer.
    reading = 3 * 8_000_000_000 / 33 * 2
    assert enough.state == "ok"
    assert enough.said == (
        f"about {(reading + 16 * GIB) / GIB:.1f} GiB for 8 processes "
        f"({reading / GIB:.1f} GiB of it while the base is read), 100.0 GiB available"
    )
    monkeypatch.setattr(host_memory, "available", lambda: 10 * GIB)
    (tight,) = said(config, "host memory")
    assert (tight.state, "hint: more nodes" in tight.said) == ("warn", True)
    monkeypatch.setattr(host_memory, "available", lambda: GIB)
    (short,) = said(config, "host memory")
    assert short.state == "fail"


def test_without_gpus_the_weights_are_in_host_memory(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_memory, "available", lambda: 20 * GIB)
    (finding,) = said(config, "host memory")
    assert finding.state == "warn"
    assert float(finding.said.split()[1]) > 8_000_000_000 * 4 / GIB


@pytest.mark.usefixtures("gpus")
def test_a_hub_id_is_not_called_ready(config: Config, capsys: pytest.CaptureFixture[str]) -> None:
    assert preflight.main(replace(config, name_or_path="meta-llama/Llama-3.1-8B")) == 0
    out = capsys.readouterr().out
    assert "ready to train" not in out
    assert out.endswith("the model was not checked\n")


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (8_030_261_248, "8.03 billion weights"),
        (70_600_000_000, "70.6 billion weights"),
        (131_840, "132 thousand weights"),
        (12, "12 weights"),
    ],
)
def test_a_models_size_is_said_as_people_do(count: int, said: str) -> None:
    assert memory.weights_in_words(count) == said


def test_a_reader_that_ends_early_gives_no_traceback(config: Config) -> None:
    keys = ("name_or_path", "dataset_path", "output_dir")
    words = [f"--set={key}={getattr(config, key)}" for key in keys]
    argv = [sys.executable, "-m", "train", "--check", *words]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as done:
        assert done.stdout
        assert done.stderr
        done.stdout.close()
        assert "Traceback" not in done.stderr.read()
    assert done.returncode == 1


def test_a_seq_len_beyond_the_positions_of_the_model_is_a_remark(config: Config) -> None:
    assert said(config, "positions") == []
    (finding,) = said(replace(config, seq_len=8193), "positions")
    assert finding.state == "warn"
    assert finding.said.startswith("the model was made for 8192 positions, and seq_len is 8193")


def test_mapped_columns_are_known_and_misnamed_ones_are_not(config: Config) -> None:
    Path(config.datasets[0].path).write_text('{"q": "a", "a": "b"}\n')
    (finding,) = said(config, "data")
    assert finding.state == "fail"
    assert "columns that name others), found the keys q, a (1 of 1 bad)" in finding.said
    mapped = replace(config, columns={"question": "q", "answer": "a"})
    (finding,) = said(mapped, "data")
    assert finding.state == "ok"
    chat = {"chat": [{"role": "bot", "content": "a"}]}
    Path(config.datasets[0].path).write_text(json.dumps(chat))
    (finding,) = said(replace(config, columns={"messages": "chat"}), "data")
    assert "expected a chat template in the model's folder" in finding.said


def test_lines_that_are_dropped_are_told(config: Config) -> None:
    (Path(config.name_or_path) / "chat_template.jinja").write_text(CHAT)
    long: list[dict[str, object]] = [{"role": "assistant", "content": "a b c " * 40}]
    write_chats(config, long, [{"role": "assistant", "content": "a"}])
    dropping = replace(config, seq_len=32, overlong="drop")
    *_, finding = said(dropping, "data")
    assert finding.state == "warn"
    assert "1 line dropped: " in finding.said
    write_chats(config, long)
    assert said(dropping, "data")[-1].state == "fail"


def test_a_table_without_a_good_row_is_told(config: Config, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('text,b\n"a"b,1\n')
    (*_, finding) = said(replace(config, dataset_path=str(path), max_bad_lines=5), "data")
    assert "a.csv:row 2: expected a row of cells" in finding.said
