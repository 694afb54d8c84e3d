"""What a user can set for a training: one frozen value and its keys; foreign.yaml has aliases."""
# ruff: noqa: RUF009  (_key returns a dataclasses.field, which ruff cannot see)

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from train.config import rules
from train.config.datasets import Dataset
from train.config.save_every import SaveEvery
from train.errors import ConfigError

Method = Literal["lora", "full"]
Objective = Literal["sft", "dpo", "orpo"]
Dtype = Literal["auto", "bfloat16", "float16", "float32"]
Parallel = Literal["auto", "fsdp", "hsdp", "ddp", "single"]
Batching = Literal["balanced", "packed", "plain"]
NodeData = Literal["whole", "strided"]
Schedule = Literal["cosine", "linear", "constant"]
Storage = Literal["auto", "shared", "per-node"]
Learn = Literal["all", "last"]
Overlong = Literal["cut", "drop"]


def _key(section: str, default: Any, *, least: float | None = None) -> Any:
    """Describe one key: its section in the file, its default, its least value."""
    return field(default=default, metadata={"section": section, "least": least})


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One training, every choice made; read from a file and flags by `train.config.parse`."""

    name_or_path: str = _key("model", "")
    """The base model: a folder on every node, or a Hugging Face hub id. Required."""
    revision: str | None = _key("model", None)
    """Branch, tag or commit of a hub model."""
    method: Method = _key("model", "lora")
    """`lora` trains small adapters next to the frozen base; `full` trains every weight."""
    objective: Objective = _key("model", "sft")
    """`sft` learns the texts. `dpo` and `orpo` learn from pairs to prefer `chosen` to `rejected`.
    `dpo` compares with the model as it was without its adapter; `orpo` compares with nothing, and
    learns the chosen text too. `method: dpo` means this with LoRA."""
    beta: float = _key("optimization", 0.1, least=0)
    """With dpo how much a change of the model counts, with orpo the weight of the odds ratio."""
    label_smoothing: float = _key("optimization", 0.0, least=0)
    """With dpo the share of pairs that may be the wrong way round."""
    dtype: Dtype = _key("model", "auto")
    """Numbers of the base model; `auto` is bfloat16 on GPUs that compute in it, float16 on older
    ones, float32 on CPUs. In float16 losses are scaled. What is trained is kept in float32."""
    load_in_4bit: bool = _key("model", False)
    """QLoRA: keep the linear layers of the frozen base in 4 bits (NF4), but for the output head. It
    needs bitsandbytes. Routed experts that transformers holds in one tensor stay in `dtype`."""
    attn_implementation: str = _key("model", "sdpa")
    """How attention is computed, as transformers names it."""
    activation_checkpointing: bool = _key("model", False)
    """Recompute activations in the backward pass: much less memory, about a third more time."""
    trust_remote_code: bool = _key("model", False)
    """Run Python that comes with the model. Only for models you have read."""
    offline: bool = _key("model", False)
    """Never ask the hub: take only what this machine has."""

    lora_r: int = _key("lora", 16, least=1)
    """Rank of the adapters."""
    lora_alpha: int = _key("lora", 32)
    """Scale of the adapters (the factor is alpha / r)."""
    lora_dropout: float = _key("lora", 0.0, least=0)
    """Share of the adapters' inputs dropped."""
    lora_target_modules: tuple[str, ...] = _key("lora", ("all-linear",))
    """Which modules get an adapter, by the end of their name; `all-linear` is every linear layer
    but the output head and, in a mixture of experts, but the routed experts and the router."""
    lora_target_parameters: tuple[str, ...] = _key("lora", ())
    """Single weights that get an adapter besides, by the end of their name: routed experts
    (`[experts.gate_up_proj, experts.down_proj]`), a router (`[mlp.gate.weight]`). PEFT folds each
    product into the weights, so memory grows with them."""
    lora_rank_pattern: Mapping[str, Any] | None = _key("lora", None)
    """Other ranks of some modules, by the end of their name: `{down_proj: 4}`."""
    lora_alpha_pattern: Mapping[str, Any] | None = _key("lora", None)
    """The same for lora_alpha."""
    lora_use_rslora: bool = _key("lora", False)
    """Rank-stabilized LoRA: the factor is alpha / sqrt(r)."""
    lora_use_dora: bool = _key("lora", False)
    """DoRA: a magnitude of its own for each row of a weight. Slower, and takes more memory."""
    lora_modules_to_save: tuple[str, ...] = _key("lora", ())
    """Modules that are trained whole, by the end of their name: `[embed_tokens, lm_head]`."""
    lora_init_from: str | None = _key("lora", None)
    """The folder of a trained adapter, to train it further as a new run. Its files say what other
    lora keys are."""

    freeze_vision_tower: bool = _key("vision", True)
    """Leave what turns images into features as it is. If false, it is trained too; with `lora` its
    linear layers get adapters."""
    freeze_multi_modal_projector: bool = _key("vision", True)
    """The same for what hands these features to the language model."""

    parallel: Parallel = _key("distributed", "auto")
    """`fsdp` shards over all ranks. `hsdp` shards within each node and replicates over the nodes.
    `ddp` keeps the whole model on each rank. `single` is one process. `auto`: single for one rank,
    hsdp for several equal nodes if a node's share of the model fits, else fsdp."""
    reshard_after_forward: bool | None = _key("distributed", None)
    """Free gathered weights after each layer's forward pass, and gather them again for the backward
    pass. Default: only if keeping them would, by the estimate of `--check`, fill more than 60 %
    of a rank's memory."""
    context_parallel: int = _key("distributed", 1, least=1)
    """Ranks that share the rows of a batch, each with a part of every row: for rows that are too
    long for one GPU. It divides the number of ranks. A step's batch is that of the groups."""
    start_timeout: float = _key("distributed", 300.0, least=1)
    """Seconds a collective may take until the first step is done. A rank that downloads or
    tokenizes may take hours, but at most this long without a heartbeat."""
    step_timeout: float = _key("distributed", 100.0, least=1)
    """Seconds a collective may take after the first step."""

    dataset_path: str | tuple[Dataset, ...] = _key("data", "")
    """Training samples in JSON lines, a JSON array, Parquet, CSV, TSV or WebDataset: a file, a
    pattern (`data/*.jsonl`), a folder and those below it, a hub dataset id, a URL in an object
    store (`s3://bucket/data.jsonl`), or several with commas. Where files are named by split (train,
    validation, test), only those of train. Or a list of these, or of `{path: PATH, weight: 2}`,
    whose samples come twice an epoch. An item may have `columns` and `roles` of its own. Required.
    """
    eval_dataset_path: str | None = _key("data", None)
    """Evaluation samples in the same form; of split files those of validation, else of test."""
    eval_split: float = _key("data", 0.0, least=0)
    """Without eval_dataset_path: share of the training samples held out for evaluation, or from 2
    on how many of them."""
    seq_len: int = _key("data", 1024, least=2)
    """Longest sample in tokens. Longer text continues in the next sample; longer prompts,
    completions and chats are cut."""
    overlong: Overlong = _key("data", "cut")
    """What happens to prompts with completions and to chats that are longer than seq_len: `cut` at
    the end, or `drop` them. The banner counts them."""
    columns: Mapping[str, str] | None = _key("data", None)
    """Other names of what is read: `{prompt: question, completion: answer}` reads the column
    `question` as `prompt`. Also of the keys in messages: `{messages: chat, role: speaker, content:
    said}`."""
    roles: Mapping[str, str] | None = _key("data", None)
    """Other names of roles: `{visitor: user, bot: assistant}`. Known without it: human, gpt,
    chatgpt, bot, model, function, observation, function_response, in any case."""
    learn: Learn = _key("data", "all")
    """Which answers of a chat the loss counts: `all`, or only the `last` one."""
    split_special_tokens: bool = _key("data", False)
    """Keep a special token in a text of a chat, such as `<|im_end|>` in a question, as text.
    Otherwise it is read as the template's own, and the banner counts it."""
    chat_template_kwargs: Mapping[str, Any] | None = _key("data", None)
    """What the chat template is given besides messages and tools, such as `{enable_thinking:
    false}`. A line may have its own under the same name, which win."""
    batching: Batching = _key("data", "balanced")
    """`balanced` gives each rank samples of about the same work; `packed` joins short samples to
    rows of seq_len (they do not see each other); `plain` takes them as they come. The spelling
    `packing: true` means packed."""
    image_dir: str | None = _key("data", None)
    """Folder in which relative paths of images begin. Default: the folder of the file that names
    them."""
    max_bad_lines: int = _key("data", 0, least=0)
    """Lines that may be unusable (named with file and line, and left out) before it is an error."""
    node_data: NodeData = _key("data", "whole")
    """`whole`: every node reads all samples, and results do not depend on how many nodes there are.
    `strided`: node i keeps only the samples i, i+N, ... of N nodes; another number of nodes resumes
    from the end of an epoch only."""
    cache_dir: str | None = _key("data", None)
    """Where tokenized data is kept, shared or per node. Default: `tokens` in output_dir."""

    stream: bool = _key("data", False)
    """Tokenize the samples as the training needs them, not before its first step; max_steps ends
    it. For data that is too large to wait for."""
    stream_window: int = _key("data", 8192, least=0)
    """With stream: samples are shuffled, and packed, within so many lines; with 0 they come in the
    order of the data."""

    per_device_train_batch_size: int = _key("batch", 1, least=1)
    """Samples in one forward pass of one rank."""
    gradient_accumulation_steps: int | None = _key("batch", None, least=1)
    """Forward passes of one rank in one step. Default: what global_batch_size needs, else 1."""
    global_batch_size: int | None = _key("batch", None, least=1)
    """Samples in one step over all ranks; kept on any number of nodes."""
    per_device_eval_batch_size: int | None = _key("batch", None, least=1)
    """Samples in one forward pass of evaluation. Default: per_device_train_batch_size."""

    learning_rate: float = _key("optimization", 1e-4, least=0)
    """Highest learning rate."""
    weight_decay: float = _key("optimization", 0.0, least=0)
    """AdamW's weight decay. As in transformers' Trainer, biases and norms have none."""
    adam_beta1: float = _key("optimization", 0.9, least=0)
    """AdamW's first moment."""
    adam_beta2: float = _key("optimization", 0.999, least=0)
    """AdamW's second moment."""
    adam_epsilon: float = _key("optimization", 1e-8, least=0)
    """AdamW's epsilon."""
    lr_scheduler_type: Schedule = _key("optimization", "cosine")
    """How the learning rate falls after the warm-up."""
    warmup_steps: int = _key("optimization", 0, least=0)
    """Steps in which the learning rate rises from 0; at most all steps of the run."""
    warmup_ratio: float = _key("optimization", 0.0, least=0)
    """The same as a share of all steps."""
    min_lr_ratio: float = _key("optimization", 0.0, least=0)
    """Where the schedule ends, as a share of learning_rate."""
    max_grad_norm: float = _key("optimization", 1.0, least=0)
    """Gradients are scaled down to this norm; 0 leaves them as they are."""
    num_train_epochs: float = _key("optimization", 1, least=0)
    """Times over the data, unless max_steps. Of 0.5 or 1.5, steps are rounded up."""
    max_steps: int | None = _key("optimization", None, least=1)
    """Steps to train, instead of num_train_epochs."""
    seed: int = _key("optimization", 42, least=0)
    """Seed of the order of the data and of dropout."""
    deterministic: bool = _key("optimization", False)
    """Only operations that give the same bits each time; slower on GPUs."""

    output_dir: str = _key("checkpoint", "output")
    """Folder of the run: checkpoints, adapter, metrics.jsonl, status.json."""
    save_steps: int | None = _key("checkpoint", None, least=1)
    """A checkpoint every so many steps."""
    save_epochs: int | None = _key("checkpoint", None, least=1)
    """A checkpoint every so many epochs. The spelling `save_strategy: epoch` means 1."""
    save_minutes: float | None = _key("checkpoint", None, least=0)
    """A checkpoint if the last one is so many minutes old, by rank 0's clock; also with
    save_steps or save_epochs. Default: 30 and each epoch's end, if none of the three is set. 0
    or `save_strategy: no`: never. There is always one at the end."""
    save_total_limit: int = _key("checkpoint", 3, least=1)
    """Good checkpoints kept."""
    async_save: bool = _key("checkpoint", False)
    """Write checkpoints while training continues."""
    checkpoint_storage: Storage = _key("checkpoint", "auto")
    """Whether all nodes see one output_dir; `auto` finds out with a file."""
    resume_from_checkpoint: str | None = _key("checkpoint", None)
    """`latest`, the path of a checkpoint, or its URL in an object store
    (`s3://bucket/run/step-000120`). Below a URL, `latest` is the one that was uploaded last."""
    upload_to: str | None = _key("checkpoint", None)
    """Where in an object store (`s3://bucket/run`) finished checkpoints are copied to, by a process
    of its own. Nothing is removed there. Each training needs a URL of its own."""
    upload_timeout: float = _key("checkpoint", 1800.0, least=0)
    """Seconds that the end of a training waits for its last upload."""

    eval_steps: int | None = _key("evaluation", None, least=1)
    """Evaluate every so many steps. Default: at the end only, if there is evaluation data."""
    eval_epochs: int | None = _key("evaluation", None, least=1)
    """Evaluate at the end of every so many epochs. The spelling `eval_strategy: epoch` means 1."""

    logging_steps: int = _key("logging", 1, least=1)
    """A step line every so many steps."""
    report_to: tuple[str, ...] = _key("logging", ())
    """Where metrics go besides metrics.jsonl: `tensorboard`, `wandb`, `mlflow`, or `all`. A tracker
    that is not installed or fails is reported, and the training continues."""
    project: str | None = _key("logging", None)
    """W&B project and MLflow experiment. Default: WANDB_PROJECT, MLFLOW_EXPERIMENT_NAME."""
    run_name: str | None = _key("logging", None)
    """Name of the run in W&B and MLflow. Default: the tracker invents one."""
    slow_ratio: float = _key("logging", 1.2, least=1)
    """A rank that takes this many times the median is named as slow."""

    def __post_init__(self) -> None:
        """Refuse what cannot be, all reasons at once."""
        problems = tuple(rules.conflicts(self))
        if problems:
            raise ConfigError(*problems)

    @property
    def datasets(self) -> tuple[Dataset, ...]:
        """What is trained on; a path alone is a data set of weight 1."""
        named = self.dataset_path
        return (Dataset(path=named),) if isinstance(named, str) else named

    @property
    def tokens(self) -> Path:
        """The folder for tokens, and for data that is downloaded."""
        return Path(self.cache_dir) if self.cache_dir else Path(self.output_dir) / "tokens"

    @property
    def save_every(self) -> SaveEvery:
        """How often a checkpoint is written; the defaults keep the cost of a failure small."""
        steps, epochs, minutes = self.save_steps, self.save_epochs, self.save_minutes
        if steps is epochs is minutes is None:
            return SaveEvery(epochs=1, minutes=30.0)
        return SaveEvery(steps=steps or 0, epochs=epochs or 0, minutes=minutes or 0.0)

    @property
    def in_pairs(self) -> bool:
        """Whether a sample is a pair of a chosen and a rejected text."""
        return self.objective != "sft"

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
        packed = self.batching == "packed" and self.context_parallel == 1
        return packed and self.attn_implementation == "sdpa"

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
    "start_timeout", "step_timeout", "upload_timeout", "upload_to",
})  # fmt: skip
"""Keys that may change between a run and its continuation without changing a loss."""
