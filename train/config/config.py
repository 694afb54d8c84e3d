"""What a person can say about a training: one frozen value, its keys, the rules between them."""
# ruff: noqa: RUF009  (_key returns a dataclasses.field, which ruff cannot see)

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from train.config.datasets import Dataset, conflicts, listed
from train.config.save_every import SaveEvery
from train.errors import ConfigError

Method = Literal["lora", "full"]
Dtype = Literal["auto", "bfloat16", "float32"]
Parallel = Literal["auto", "fsdp", "hsdp", "ddp", "single"]
Batching = Literal["balanced", "packed", "plain"]
NodeData = Literal["whole", "strided"]
Schedule = Literal["cosine", "linear", "constant"]
Storage = Literal["auto", "shared", "per-node"]
Learn = Literal["all", "last"]
Overlong = Literal["cut", "drop"]
TRACKERS = ("tensorboard", "wandb", "mlflow")


def _key(  # (dataclasses.field is typed as what it stands for)
    section: str,
    default: Any,  # noqa: ANN401
    text: str,
    *,
    also: str = "",
    least: float | None = None,
) -> Any:  # noqa: ANN401
    """Describe one key: its section in the file, its default, what it means, other spellings."""
    about = {"section": section, "text": text, "also": tuple(also.split()), "least": least}
    return field(default=default, metadata=about)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One training, every choice made; read from a file and flags by `train.config.parse`."""

    name_or_path: str = _key(
        "model",
        "",
        "The base model: a folder on every node, or a Hugging Face hub id. Required.",
        also="model_name_or_path model_name base_model model_path model_id pretrained_model",
    )
    revision: str | None = _key("model", None, "Branch, tag or commit of a hub model.")
    method: Method = _key(
        "model",
        "lora",
        "`lora` trains small adapters next to the frozen base; `full` trains every weight.",
        also="finetuning_type adapter train_type",
    )
    dtype: Dtype = _key(
        "model",
        "auto",
        "Numbers of the base model; `auto` is bfloat16 on GPUs that compute in it, else float32. "
        "What is trained is always kept in float32.",
        also="torch_dtype precision",
    )
    attn_implementation: str = _key(
        "model", "sdpa", "How attention is computed, as transformers names it.", also="attention"
    )
    activation_checkpointing: bool = _key(
        "model",
        False,
        "Recompute activations in the backward pass: much less memory, about a third more time.",
        also="gradient_checkpointing",
    )
    trust_remote_code: bool = _key(
        "model", False, "Run Python that comes with the model. Only for models you have read."
    )
    offline: bool = _key(
        "model", False, "Never ask the hub: take only what this machine has.", also="hf_hub_offline"
    )

    lora_r: int = _key("lora", 16, "Rank of the adapters.", also="lora_rank", least=1)
    lora_alpha: int = _key("lora", 32, "Scale of the adapters (the factor is alpha / r).")
    lora_dropout: float = _key("lora", 0.0, "Share of the adapters' inputs dropped.", least=0)
    lora_target_modules: tuple[str, ...] = _key(
        "lora",
        ("all-linear",),
        "Which modules get an adapter, by the end of their name; `all-linear` is every "
        "linear layer but the output head and, in a mixture of experts, but the routed experts "
        "and the router.",
        also="lora_target lora_target_linear",
    )
    lora_target_parameters: tuple[str, ...] = _key(
        "lora",
        (),
        "Single weights that get an adapter besides, by the end of their name: routed experts "
        "(`[experts.gate_up_proj, experts.down_proj]`), a router (`[mlp.gate.weight]`). PEFT folds "
        "each product into the weights, so memory grows with them.",
    )

    parallel: Parallel = _key(
        "distributed",
        "auto",
        "`fsdp` shards over all ranks. `hsdp` shards within each node and replicates over the "
        "nodes. `ddp` keeps the whole model on each rank. `single` is one process. `auto`: single "
        "for one rank, hsdp for several equal nodes if a node's share of the model fits, else "
        "fsdp.",
        also="strategy parallelism",
    )
    reshard_after_forward: bool | None = _key(
        "distributed",
        None,
        "Free gathered weights after each layer's forward pass, and gather them again for the "
        "backward pass. Default: only where keeping them would, by the estimate of `--check`, fill "
        "more than 60 % of a rank's memory.",
    )
    start_timeout: float = _key(
        "distributed",
        300.0,
        "Seconds a collective may take until the first step is done. A rank that downloads or "
        "tokenizes may take hours, but at most this long without a heartbeat.",
        also="ddp_timeout init_timeout",
        least=1,
    )
    step_timeout: float = _key(
        "distributed", 100.0, "Seconds a collective may take after the first step.", least=1
    )

    dataset_path: str | tuple[Dataset, ...] = _key(
        "data",
        "",
        "Training samples in JSON lines, a JSON array, Parquet, CSV or TSV: a file, a pattern "
        "(`data/*.jsonl`), a folder and those below it, a hub dataset id, or several with commas. "
        "Where files are named by split (train, validation, test), only those of train. Or a list "
        "of these, or of `{path: PATH, weight: 2}`, whose samples come twice an epoch. An item may "
        "have `columns` and `roles` of its own. Required.",
        also="dataset dataset_name train_path train_file data_path train_data datasets",
    )
    eval_dataset_path: str | None = _key(
        "data",
        None,
        "Evaluation samples in the same form; of split files those of validation, else of test.",
        also="eval_path eval_file validation_path eval_dataset validation_file val_path",
    )
    eval_split: float = _key(
        "data",
        0.0,
        "Without eval_dataset_path: share of the training samples held out for evaluation.",
        also="val_set_size validation_split eval_fraction val_size",
        least=0,
    )
    seq_len: int = _key(
        "data",
        1024,
        "Longest sample in tokens. Longer text continues in the next sample; longer prompts, "
        "completions and chats are cut.",
        also="sequence_len sequence_length max_length max_seq_length max_seq_len cutoff_len "
        "block_size",
        least=2,
    )
    overlong: Overlong = _key(
        "data",
        "cut",
        "What happens to prompts with completions and to chats that are longer than seq_len: `cut` "
        "at the end, or `drop` them. The banner counts them.",
        also="excess_length_strategy truncation_strategy",
    )
    columns: Mapping[str, str] | None = _key(
        "data",
        None,
        "Other names of what is read: `{prompt: question, completion: answer}` reads the column "
        "`question` as `prompt`. Also of the keys in messages: `{messages: chat, role: speaker, "
        "content: said}`.",
    )
    roles: Mapping[str, str] | None = _key(
        "data",
        None,
        "Other names of roles: `{visitor: user, bot: assistant}`. Known without it: human, gpt, "
        "chatgpt, bot, model, function, observation, function_response, in any case.",
    )
    learn: Learn = _key(
        "data",
        "all",
        "Which answers of a chat the loss counts: `all`, or only the `last` one.",
        also="mask_history",
    )
    split_special_tokens: bool = _key(
        "data",
        False,
        "Keep a special token in a text of a chat, such as `<|im_end|>` in a question, as text. "
        "Otherwise it is read as the template's own, and the banner counts it.",
    )
    chat_template_kwargs: Mapping[str, Any] | None = _key(
        "data",
        None,
        "What the chat template is given besides messages and tools, such as "
        "`{enable_thinking: false}`. A line may have its own under the same name, which win.",
        also="chat_template_args",
    )
    batching: Batching = _key(
        "data",
        "balanced",
        "`balanced` gives each rank samples of about the same work; `packed` joins short samples "
        "to rows of seq_len (they do not see each other); `plain` takes them as they come. The "
        "spelling `packing: true` means packed.",
    )
    max_bad_lines: int = _key(
        "data",
        0,
        "Lines that may be unusable (named with file and line, and left out) before it is an "
        "error.",
        least=0,
    )
    node_data: NodeData = _key(
        "data",
        "whole",
        "`whole`: every node reads all samples, and results do not depend on how many nodes there "
        "are. `strided`: node i keeps only the samples i, i+N, ... of N nodes; another number of "
        "nodes resumes from the end of an epoch only.",
    )
    cache_dir: str | None = _key(
        "data",
        None,
        "Where tokenized data is kept, shared or per node. Default: `tokens` in output_dir.",
        also="dataset_prepared_path worker_output_dir data_cache_dir",
    )

    per_device_train_batch_size: int = _key(
        "batch",
        1,
        "Samples in one forward pass of one rank.",
        also="per_device_batch_size micro_batch_size batch_size train_batch_size",
        least=1,
    )
    gradient_accumulation_steps: int | None = _key(
        "batch",
        None,
        "Forward passes of one rank in one step. Default: what global_batch_size needs, else 1.",
        also="grad_accum accumulation_steps gradient_accumulation",
        least=1,
    )
    global_batch_size: int | None = _key(
        "batch",
        None,
        "Samples in one step over all ranks; kept on any number of nodes.",
        also="total_batch_size effective_batch_size train_batch_size_global",
        least=1,
    )
    per_device_eval_batch_size: int | None = _key(
        "batch",
        None,
        "Samples in one forward pass of evaluation. Default: per_device_train_batch_size.",
        also="eval_batch_size",
        least=1,
    )

    learning_rate: float = _key("optimization", 1e-4, "Highest learning rate.", also="lr", least=0)
    weight_decay: float = _key(
        "optimization",
        0.0,
        "AdamW's weight decay. As in transformers' Trainer, biases and norms have none.",
        least=0,
    )
    adam_beta1: float = _key("optimization", 0.9, "AdamW's first moment.", least=0)
    adam_beta2: float = _key("optimization", 0.999, "AdamW's second moment.", least=0)
    adam_epsilon: float = _key("optimization", 1e-8, "AdamW's epsilon.", least=0)
    lr_scheduler_type: Schedule = _key(
        "optimization",
        "cosine",
        "How the learning rate falls after the warm-up.",
        also="lr_scheduler schedule scheduler",
    )
    warmup_steps: int = _key(
        "optimization",
        0,
        "Steps in which the learning rate rises from 0; at most all steps of the run.",
        also="warmup",
        least=0,
    )
    warmup_ratio: float = _key("optimization", 0.0, "The same as a share of all steps.", least=0)
    min_lr_ratio: float = _key(
        "optimization", 0.0, "Where the schedule ends, as a share of learning_rate.", least=0
    )
    max_grad_norm: float = _key(
        "optimization",
        1.0,
        "Gradients are scaled down to this norm; 0 leaves them as they are.",
        also="clip gradient_clipping grad_clip clip_grad_norm",
        least=0,
    )
    num_train_epochs: float = _key(
        "optimization",
        1,
        "Times over the data, unless max_steps. Of 0.5 or 1.5, steps are rounded up.",
        also="num_epochs epochs",
        least=0,
    )
    max_steps: int | None = _key(
        "optimization", None, "Steps to train, instead of num_train_epochs.", least=1
    )
    seed: int = _key(
        "optimization",
        42,
        "Seed of the order of the data and of dropout.",
        also="data_seed",
        least=0,
    )
    deterministic: bool = _key(
        "optimization",
        False,
        "Only operations that give the same bits each time; slower on GPUs.",
        also="full_determinism",
    )

    output_dir: str = _key(
        "checkpoint",
        "output",
        "Folder of the run: checkpoints, adapter, metrics.jsonl, status.json.",
        also="output_path save_dir checkpoint_dir",
    )
    save_steps: int | None = _key(
        "checkpoint", None, "A checkpoint every so many steps.", also="save_every", least=1
    )
    save_epochs: int | None = _key(
        "checkpoint",
        None,
        "A checkpoint every so many epochs. The spelling `save_strategy: epoch` means 1.",
        least=1,
    )
    save_minutes: float | None = _key(
        "checkpoint",
        None,
        "A checkpoint where the last one is so many minutes old, by rank 0's clock; also "
        "with save_steps or save_epochs. Default: 30 and each epoch's end, where none of the "
        "three is set. 0 or `save_strategy: no`: never. There is always one at the end.",
        least=0,
    )
    save_total_limit: int = _key(
        "checkpoint", 3, "Good checkpoints kept.", also="keep keep_checkpoints", least=1
    )
    async_save: bool = _key(
        "checkpoint", False, "Write checkpoints while training continues.", also="async"
    )
    checkpoint_storage: Storage = _key(
        "checkpoint",
        "auto",
        "Whether all nodes see one output_dir; `auto` finds out with a file.",
        also="shared shared_storage",
    )
    resume_from_checkpoint: str | None = _key(
        "checkpoint", None, "`latest`, or the path of a checkpoint.", also="resume resume_from"
    )

    eval_steps: int | None = _key(
        "evaluation",
        None,
        "Evaluate every so many steps. Default: at the end only, where there is evaluation data.",
        also="eval_every eval_freq",
        least=1,
    )
    eval_epochs: int | None = _key(
        "evaluation",
        None,
        "Evaluate at the end of every so many epochs. The spelling `eval_strategy: epoch` means 1.",
        least=1,
    )

    logging_steps: int = _key("logging", 1, "A step line every so many steps.", least=1)
    report_to: tuple[str, ...] = _key(
        "logging",
        (),
        "Where metrics go besides metrics.jsonl: `tensorboard`, `wandb`, `mlflow`, or `all`. A "
        "tracker that is not installed or fails is reported, and the training continues.",
    )
    project: str | None = _key(
        "logging",
        None,
        "W&B project and MLflow experiment. Default: WANDB_PROJECT, MLFLOW_EXPERIMENT_NAME.",
        also="wandb_project mlflow_experiment_name",
    )
    run_name: str | None = _key(
        "logging",
        None,
        "Name of the run in W&B and MLflow. Default: the tracker invents one.",
        also="wandb_name mlflow_run_name",
    )
    slow_ratio: float = _key(
        "logging",
        1.2,
        "A rank that takes this many times the median is named as slow.",
        least=1,
    )

    def __post_init__(self) -> None:
        """Refuse what cannot be, all reasons at once."""
        problems = tuple(_conflicts(self))
        if problems:
            raise ConfigError(problems)

    @property
    def datasets(self) -> tuple[Dataset, ...]:
        """What is trained on."""
        return listed(self.dataset_path)

    @property
    def save_every(self) -> SaveEvery:
        """How often a checkpoint is written; the defaults keep the cost of a failure small."""
        if self.save_steps is None and self.save_epochs is None and self.save_minutes is None:
            return SaveEvery(epochs=1, minutes=30.0)
        return SaveEvery(
            steps=self.save_steps or 0,
            epochs=self.save_epochs or 0,
            minutes=self.save_minutes or 0.0,
        )

    @property
    def eval_batch_size(self) -> int:
        """Samples in one forward pass of evaluation."""
        return self.per_device_eval_batch_size or self.per_device_train_batch_size

    @property
    def flash_attention(self) -> bool:
        """Whether attention is flash attention, or another kernel of the hub: without a mask."""
        return "flash" in self.attn_implementation or "/" in self.attn_implementation

    @property
    def masks_attention(self) -> bool:
        """Whether attention gets a mask of its own, which keeps packed documents apart."""
        return self.batching == "packed" and self.attn_implementation == "sdpa"

    def to_dict(self) -> dict[str, Any]:
        """Return the keys and values as JSON has them."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in dataclasses.asdict(self).items()
        }


NOT_THE_NUMBERS = frozenset({
    "async_save", "cache_dir", "checkpoint_storage", "eval_epochs", "eval_steps", "logging_steps",
    "offline", "output_dir", "project", "report_to", "resume_from_checkpoint", "run_name",
    "save_epochs", "save_minutes", "save_steps", "save_total_limit", "slow_ratio",
    "start_timeout", "step_timeout",
})  # fmt: skip
"""Keys that may change between a run and its continuation without changing a loss."""


def _conflicts(config: Config) -> list[str]:
    """Return what cannot be as written: required keys, ranges, and then _quarrels."""
    found = [
        f"{name}: expected {what}, found nothing"
        for name, what in (
            ("name_or_path", "the base model's folder or hub id"),
            (
                "dataset_path",
                "a .jsonl, .json, .parquet or .csv file, a folder of them, or a hub dataset id",
            ),
            ("output_dir", "a folder for checkpoints and the adapter"),
        )
        if not getattr(config, name)
    ]
    found += conflicts(config.datasets) if config.dataset_path else ()
    for item in dataclasses.fields(config):
        value, least = getattr(config, item.name), item.metadata["least"]
        if least is not None and value is not None and not value >= least:
            found.append(f"{item.name}: expected {least:g} or more, found {value}")
    found += [
        f"{name}: expected a share below 1, found {getattr(config, name)}"
        for name in ("lora_dropout", "eval_split", "warmup_ratio", "adam_beta1", "adam_beta2")
        if getattr(config, name) >= 1
    ]
    if config.min_lr_ratio > 1:
        found.append(f"min_lr_ratio: expected at most 1, found {config.min_lr_ratio}")
    if not config.num_train_epochs:
        found.append("num_train_epochs: expected more than 0, found 0")
    if config.seed >= 1 << 64:
        found.append(f"seed: expected a number of 64 bits, found {config.seed}")
    return found + _quarrels(config)


def _quarrels(config: Config) -> list[str]:
    """Return the keys that exclude each other, or need another beside them."""
    found = [
        f"{name}: expected a folder, found {value}; object stores are not written to: mount the "
        "store, or write to a folder and copy whole checkpoints"
        for name in ("output_dir", "cache_dir", "resume_from_checkpoint")
        if "://" in (value := getattr(config, name) or "")
    ]
    for one, other in (
        ("warmup_steps", "warmup_ratio"),
        ("save_steps", "save_epochs"),
        ("eval_steps", "eval_epochs"),
        ("eval_dataset_path", "eval_split"),
    ):
        if getattr(config, one) and getattr(config, other):
            found.append(f"{one} and {other}: expected one of them, found both")
    found += [
        f"{name}: expected eval_dataset_path or eval_split with it, found neither"
        for name in ("eval_steps", "eval_epochs")
        if getattr(config, name) and not (config.eval_dataset_path or config.eval_split)
    ]
    several = config.per_device_train_batch_size > 1
    if config.flash_attention and config.batching == "packed" and several:
        # transformers tells packed documents apart there only where they are one row.
        found.append(
            f"per_device_train_batch_size: expected 1 for packed rows with "
            f"{config.attn_implementation}, whose documents would see each other otherwise, found "
            f"{config.per_device_train_batch_size}; a longer seq_len fills the GPU as well, and "
            "attn_implementation: sdpa takes several rows"
        )
    name = "adapter" if config.method == "lora" else "model"
    export = Path(config.output_dir, name).resolve()
    if Path(config.name_or_path).resolve().is_relative_to(export):
        found.append(
            f"output_dir: expected a folder whose {name}/ is not the base model, found "
            f"{config.output_dir}, and the export would replace {config.name_or_path}"
        )
    if unknown := [name for name in config.report_to if name not in TRACKERS]:
        found.append(f"report_to: expected any of {', '.join(TRACKERS)}, found {unknown[0]}")
    named = config.lora_target_modules or config.lora_target_parameters
    if config.method == "lora" and not named:
        found.append("lora_target_modules: expected names of modules or all-linear, found none")
    return found
