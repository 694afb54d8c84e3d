"""Files of axolotl and Surogate: each key is taken, noted, or named with what to write instead."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from train.__main__ import main
from train.config import foreign
from train.config.config import Config
from train.config.datasets import Dataset
from train.config.parse import Arguments, parse
from train.errors import ConfigError

ROOT = Path(__file__).parents[3]
AXOLOTL = """\
base_model: meta-llama/Llama-3.1-8B
model_type: AutoModelForCausalLM
tokenizer_type: AutoTokenizer
load_in_8bit: false
load_in_4bit: false
strict: false
datasets:
  - path: data/train.jsonl
    type: chat_template
    field_messages: messages
    split: train
dataset_prepared_path: last_run_prepared
val_set_size: 0.05
output_dir: ./out
sequence_len: 4096
sample_packing: true
eval_sample_packing: false
pad_to_sequence_len: true
adapter: lora
lora_model_dir:
lora_r: 32
lora_alpha: 64
lora_dropout: 0.05
lora_target_linear: true
lora_target_modules:
lora_fan_in_fan_out:
wandb_project: guides
wandb_entity:
wandb_watch:
wandb_name: first
wandb_log_model:
gradient_accumulation_steps: 4
micro_batch_size: 2
num_epochs: 3
optimizer: adamw_torch_fused
lr_scheduler: cosine
learning_rate: 0.0002
train_on_inputs: false
group_by_length: false
bf16: auto
fp16:
tf32: false
gradient_checkpointing: true
gradient_checkpointing_kwargs:
  use_reentrant: false
early_stopping_patience:
resume_from_checkpoint:
local_rank:
logging_steps: 1
xformers_attention:
flash_attention: false
warmup_ratio: 0.03
save_steps: 100
saves_per_epoch:
debug:
deepspeed:
weight_decay: 0.1
fsdp:
  - full_shard
  - auto_wrap
fsdp_config:
  fsdp_version: 2
  fsdp_offload_params: false
  fsdp_state_dict_type: FULL_STATE_DICT
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer
  fsdp_reshard_after_forward: true
special_tokens:
  pad_token: <|end_of_text|>
"""

SUROGATE = """\
model: meta-llama/Llama-3.1-8B
per_device_train_batch_size: 4
gradient_accumulation_steps: 4
sequence_len: 2048
datasets:
  - path: timdettmers/openassistant-guanaco
    type: text
    text_field: text
validation_split_ratio: 0.1
sample_packing: true
recompute: true
recipe: bf16
optimizer: adamw_torch
lora: true
lora_rank: 16
lora_target_modules: [all]
lr_scheduler_type: linear
final_lr_fraction: 0.1
max_steps: -1
num_epochs: 3
learning_rate: 2e-5
warmup_steps: 100
report_to: [wandb]
wandb_project: guides
resume_from_checkpoint: true
use_cuda_graphs: true
zero_level: 1
output_dir: ./output
"""


def read(folder: Path, text: str, *flags: str) -> Arguments:
    file = folder / "guide.yaml"
    file.write_text(text)
    return parse(["--config", str(file), *flags])


def problems(folder: Path, text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(folder, text)
    return [problem.replace(f"{folder}/", "") for problem in caught.value.problems]


def changed(arguments: Arguments) -> dict[str, object]:
    """Return what differs from the defaults."""
    config = arguments.config()
    plain = Config(name_or_path="m", dataset_path="d")
    return {
        item.name: getattr(config, item.name)
        for item in dataclasses.fields(config)
        if getattr(config, item.name) != getattr(plain, item.name)
    }


def test_a_file_of_axolotl_means_the_same(tmp_path: Path) -> None:
    arguments = read(tmp_path, AXOLOTL)
    assert changed(arguments) == {
        "name_or_path": "meta-llama/Llama-3.1-8B", "dataset_path": "data/train.jsonl",
        "cache_dir": "last_run_prepared", "eval_split": 0.05, "output_dir": "./out",
        "seq_len": 4096, "batching": "packed", "lora_r": 32, "lora_alpha": 64,
        "lora_dropout": 0.05, "project": "guides", "run_name": "first", "report_to": ("wandb",),
        "gradient_accumulation_steps": 4, "per_device_train_batch_size": 2, "num_train_epochs": 3,
        "learning_rate": 2e-4, "activation_checkpointing": True, "warmup_ratio": 0.03,
        "save_steps": 100, "weight_decay": 0.1, "parallel": "fsdp", "reshard_after_forward": True,
    }  # fmt: skip
    noted = {note.split(": ")[1] for note in arguments.notes}
    assert noted == {
        "model_type", "tokenizer_type", "strict", "eval_sample_packing", "pad_to_sequence_len",
        "tf32", "gradient_checkpointing_kwargs", "fsdp_version", "fsdp_state_dict_type",
        "fsdp_auto_wrap_policy", "fsdp_transformer_layer_cls_to_wrap", "pad_token", "datasets",
    }  # fmt: skip


def test_the_guides_file_of_axolotl_for_images_is_read(tmp_path: Path) -> None:
    page = (ROOT / "docs/guides/axolotl-accelerate.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```yaml\n(base_model.*?)```", page, re.DOTALL)
    arguments = read(tmp_path, block)
    found = changed(arguments)
    assert found["name_or_path"] == "llava-hf/llava-1.5-7b-hf"
    assert found["dataset_path"] == "HuggingFaceH4/llava-instruct-mix-vsft"
    targets = found["lora_target_modules"]
    assert isinstance(targets, tuple)
    (pattern,) = targets
    assert re.fullmatch(pattern, "model.language_model.layers.0.self_attn.q_proj")
    assert not re.fullmatch(pattern, "model.vision_tower.encoder.layers.0.self_attn.q_proj")
    noted = {note.split(": ")[1] for note in arguments.notes}
    assert noted > {"processor_type", "skip_prepare_dataset", "remove_unused_columns"}


def test_a_file_of_surogate_means_the_same(tmp_path: Path) -> None:
    assert changed(read(tmp_path, SUROGATE)) == {
        "name_or_path": "meta-llama/Llama-3.1-8B",
        "dataset_path": "timdettmers/openassistant-guanaco", "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 4, "seq_len": 2048, "eval_split": 0.1,
        "batching": "packed", "activation_checkpointing": True, "dtype": "bfloat16",
        "lr_scheduler_type": "linear", "min_lr_ratio": 0.1, "num_train_epochs": 3,
        "learning_rate": 2e-5, "warmup_steps": 100, "report_to": ("wandb",),
        "project": "guides", "resume_from_checkpoint": "latest", "output_dir": "./output",
    }  # fmt: skip


def test_the_guides_cluster_keys_are_named_in_one_error(tmp_path: Path) -> None:
    ray = "distributed:\n  ray_address: auto\n  num_nodes: 2\n  gpus_per_node: 8\n"
    said = problems(tmp_path, f"model: m\nworker_output_dir: null\n{ray}recipe: fp8_hybrid\n")
    assert [line.split(": ")[:2] for line in said] == [
        ["guide.yaml:4", "ray_address"],
        ["guide.yaml:5", "num_nodes"],
        ["guide.yaml:6", "gpus_per_node"],
        ["guide.yaml:7", "recipe"],
    ]
    assert "hosts.yaml" in said[0]
    assert "dtype: bfloat16" in said[3]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("load_in_8bit: true", "load_in_4bit: true"),
        ("quantization_bit: 8", "load_in_4bit: true"),
        ("bnb_4bit_quant_type: fp4", "is NF4 here"),
        ("double_quantization: false", "always in 8 bits"),
        ("adapter: qlora\nload_in_4bit: false", "expected once, found again"),
        ("adapter: llama-adapter", "expected lora, qlora or nothing"),
        ("finetuning_type: freeze", "method: lora, or full"),
        ("fp16: true\nbf16: true", "expected once, found again"),
        ("dataset_mixer: {a: 1}", "weight: 2"),
        ("optimizer: adamw_bnb_8bit", "AdamW"),
        ("deepspeed: zero3.json", "parallel: fsdp"),
        ("fsdp: [full_shard, offload]", "CPU"),
        ("fsdp_config: {fsdp_offload_params: true}", "CPU"),
        ("evals_per_epoch: 4", "eval_steps"),
        ("saves_per_epoch: 4", "save_steps"),
        ("chat_template: chatml", "chat_template.jinja"),
        ("special_tokens: {eos_token: x}", "next to the model"),
        ("early_stopping_patience: 3", "clusterctl stop"),
        ("rl: kto", "expected sft | dpo | orpo, found 'kto'"),
        ("rl: dpo\ndpo_use_weighting: true", "plain sigmoid"),
        ("shuffle_merged_datasets: false", "shuffled"),
        ("wandb_mode: offline", "WANDB_MODE"),
        ("wandb_api_key: hunter2", "WANDB_API_KEY"),
        ("tensor_parallel_size: 4", "data and context parallelism"),
        ("qlora_bnb: true", "is NF4 here"),
        ("plugins: [a.B]", "no code"),
        ("datasets: [{path: a.jsonl, type: gpteacher}]", "type of a.jsonl: expected alpaca or"),
        ("datasets: [{path: a, split: test}]", "split of a: expected train, found test"),
        ("datasets: [{path: a, type: alpaca, shards: 4}]", "shards of a: prepare the data"),
        ("datasets: [{type: alpaca}]", "expected a path"),
        (
            "test_datasets: [{path: a}, {path: b, weight: 2}]",
            "expected paths of evaluation samples",
        ),
        ("test_datasets: [{path: a, field_messages: c}]", "expected paths of evaluation samples"),
        ("datasets: [{path: a, field_messages: [b, c]}]", "expected a mapping of keys to names"),
        ("datasets: [{path: a, columns: [b]}]", "expected a mapping as the columns of a, found"),
        ("datasets: [{path: a, message_property_mappings: b}]", "as the columns of a, found 'b'"),
        ("excess_length_strategy: raise", "expected cut | drop"),
        ("truncation_strategy: left", "expected cut | drop"),
        ("sample_packing: true\ngroup_by_length: true", "expected once, found again"),
    ],
)
def test_what_is_not_done_here_is_named(tmp_path: Path, text: str, said: str) -> None:
    (problem,) = problems(tmp_path, f"{text}\n")
    assert said in problem
    assert "hunter2" not in problem


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("adapter:", "method", "full"),
        ("adapter: FULL", "method", "full"),
        ("adapter: qlora\nload_in_4bit: true", "load_in_4bit", True),
        ("quantization_bit: 4\nquantization_method: bnb", "load_in_4bit", True),
        ("bf16:\nfp16: true", "dtype", "float16"),
        ("peft_use_dora: true", "lora_use_dora", True),
        ("use_rslora: true", "lora_use_rslora", True),
        ("lora_modules_to_save: [lm_head]", "lora_modules_to_save", ("lm_head",)),
        (
            "additional_target: lm_head,embed_tokens",
            "lora_modules_to_save",
            ("lm_head", "embed_tokens"),
        ),
        ("lora: {rank_pattern: {down_proj: 4}}", "lora_rank_pattern", {"down_proj": 4}),
        ("flash_attention: true", "attn_implementation", "flash_attention_2"),
        ("sdp_attention: true", "attn_implementation", "sdpa"),
        ("sample_packing: false\ngroup_by_length: true", "batching", "balanced"),
        ("sample_packing: false\ngroup_by_length: false", "batching", "plain"),
        ("group_by_length: false\nsample_packing: false", "batching", "plain"),
        ("group_by_length: false\nsample_packing: true", "batching", "packed"),
        ("fsdp: [hybrid_shard]", "parallel", "hsdp"),
        ("ddp: true", "parallel", "ddp"),
        ("auto_resume_from_checkpoints: true", "resume_from_checkpoint", "latest"),
        ("saves_per_epoch: 1", "save_epochs", 1),
        ("evals_per_epoch: 1\neval_split: 0.1", "eval_epochs", 1),
        ("val_set_size: 500", "eval_split", 500.0),
        ("use_tensorboard: true\nwandb_project: a", "report_to", ("tensorboard", "wandb")),
        ("report_to: none", "report_to", ()),
        ('tensorboard: "on"', "report_to", ("tensorboard",)),
        ("lr_scheduler: constant_with_warmup", "lr_scheduler_type", "constant"),
        (
            "datasets: [{path: json, data_files: [b.jsonl], type: alpaca}]",
            "dataset_path",
            "b.jsonl",
        ),
        (
            "datasets: [{path: a, type: alpaca}, {path: b, weight: 2}, c]",
            "dataset_path",
            (Dataset(path="a"), Dataset(path="b", weight=2.0), Dataset(path="c")),
        ),
        (
            "datasets: [{path: parquet, data_files: [a, b], weight: 2}]",
            "dataset_path",
            (Dataset(path="a", weight=2.0), Dataset(path="b", weight=2.0)),
        ),
        ("test_datasets: [{path: c.jsonl, type: completion}]", "eval_dataset_path", "c.jsonl"),
        ("datasets: [{path: a, roles_to_train: [assistant]}]", "dataset_path", "a"),
        (
            "datasets: [{path: a, field_messages: conversations, message_field_role: from}]",
            "dataset_path",
            "a",
        ),
        (
            (
                "datasets: [{path: a, field_messages: chat, roles: {user: [visitor, guest]}, "
                "message_property_mappings: {role: speaker, content: content}}]"
            ),
            "dataset_path",
            (
                Dataset(
                    path="a",
                    columns={"messages": "chat", "role": "speaker"},
                    roles={"visitor": "user", "guest": "user"},
                ),
            ),
        ),
        (
            "datasets: [{path: a, type: completion, field: body}]",
            "dataset_path",
            (Dataset(path="a", columns={"text": "body"}),),
        ),
        ("excess_length_strategy: drop", "overlong", "drop"),
        ("excess_length_strategy: truncate", "overlong", "cut"),
        ("truncation_strategy: delete", "overlong", "drop"),
        ("mask_history: true", "learn", "last"),
        ("method: dpo", "objective", "dpo"),
        ("stage: dpo\npref_loss: orpo\npref_beta: 0.2", "objective", "orpo"),
        ("rl: orpo\norpo_alpha: 0.3", "beta", 0.3),
        (
            "datasets: [{path: a, ds_type: json, field_chosen: win, field_rejected: lose}]",
            "dataset_path",
            (Dataset(path="a", columns={"chosen": "win", "rejected": "lose"}),),
        ),
        ("streaming: true\nmax_steps: 5\nbuffer_size: 100", "stream_window", 100),
        ("pretraining_dataset: [{path: a, type: pretrain}]\nmax_steps: 5", "dataset_path", "a"),
        ("pretraining_dataset: a\nmax_steps: 5", "stream", True),
        ("test_datasets: [{path: c.jsonl}, {path: d.csv}]", "eval_dataset_path", "c.jsonl,d.csv"),
    ],
)
def test_what_means_the_same_is_taken(tmp_path: Path, text: str, key: str, value: object) -> None:
    assert read(tmp_path, f"{text}\n").given[key].value == value


def test_no_project_is_no_tracker(tmp_path: Path) -> None:
    given = read(tmp_path, "wandb_project: none\n").given
    assert "report_to" not in given
    assert given["project"].value is None


def test_one_value_in_two_spellings_is_no_contradiction(tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text("torch_dtype: bfloat16\nbf16: true\nfsdp_config:\nstage: sft\n")
    assert (
        parse(["--config", str(file)]).config(name_or_path="m", dataset_path="d").dtype
        == "bfloat16"
    )
    file.write_text("torch_dtype: float32\nbf16: true\n")
    with pytest.raises(ConfigError, match="bf16: expected once, found again"):
        parse(["--config", str(file)])


@pytest.mark.parametrize(
    ("text", "flags", "method"),
    [
        ("base_model: m", (), None),
        ("base_model: m\nlora_r: 8", (), None),  # axolotl does not look at it then
        ("base_model: m\nadapter:", (), "full"),
        ("base_model: m", ("--method", "lora"), "lora"),
        ("model_name_or_path: m", (), None),
        ("model_name_or_path: m\nlora_r: 8", (), "lora"),
        ("model_name_or_path: m\nuse_peft: false", (), "full"),
        ("name_or_path: m", (), "lora"),
    ],
)
def test_all_weights_are_never_trained_as_an_adapter(
    tmp_path: Path, text: str, flags: tuple[str, ...], method: str | None
) -> None:
    if method is None:
        assert "expected method: lora or full" in problems(tmp_path, text)[0]
        return
    config = read(tmp_path, text, *flags).config(dataset_path="d")
    assert config.method == method


def test_a_key_has_one_meaning() -> None:
    tables = (foreign.REFUSED, foreign.NO_EFFECT, foreign.ALWAYS)
    names = [name for table in tables for name in table]
    names += " ".join(foreign.TABLES["same"].values()).split()
    names += [item.name for item in dataclasses.fields(Config)]
    assert sorted(names) == sorted(set(names))
    assert set(foreign.ALIASES.values()) <= {item.name for item in dataclasses.fields(Config)}
    assert foreign.NEUTRAL.keys() <= foreign.REFUSED.keys()


def test_check_lists_the_notes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "guide.yaml"
    file.write_text("model: org/m\ndataset: org/d\ntf32: true\nrun_name: first\n")
    assert main(["--config", str(file), "--check", "--output-dir", str(tmp_path / "o")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"ok keys {file}:3: tf32: has no effect: " in said
    assert "warn report_to project and run_name have no effect" in said
