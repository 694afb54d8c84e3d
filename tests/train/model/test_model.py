"""The model is what we think: sharded where it must be, filled, and exported as PEFT reads it."""

from __future__ import annotations

import functools
import json
import math
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests.lazy_torch import dist, torch
from tests.train.families import make_family
from tests.train.outcome import close
from tests.train.world import Training, World
from train.config.config import Config
from train.errors import ConfigError

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing"),  # peft asks for it
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),  # read in this process
]


def short_of_memory(_: int) -> None:
    """Have the model's forward pass find no memory, as CUDA says it."""
    from train.model.model import Model

    def loss(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    Model.loss = loss  # type: ignore[method-assign,assignment]


def short_of_moments(_: int) -> None:
    """Have AdamW find no memory for its moments in the first step, as CUDA says it."""

    def step(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    torch.optim.AdamW.step = step  # type: ignore[method-assign,assignment]


def too_large(_: int) -> None:
    """Have the model itself find no memory, as CUDA says it."""

    def to_empty(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    torch.nn.Module.to_empty = to_empty  # type: ignore[method-assign,assignment]


def slow_to_load(rank: int) -> None:
    """Have rank 0 take longer to load the base than a collective may."""
    from transformers import AutoModelForCausalLM

    load = AutoModelForCausalLM.from_pretrained

    def slowly(*args: object, **how: object) -> object:
        time.sleep(6.0)
        return load(*args, **how)

    if rank == 0:
        AutoModelForCausalLM.from_pretrained = slowly


EMBEDDING = ("embed_tokens", "q_proj")


@pytest.mark.parametrize(
    ("model", "targets"),
    [
        ("tied", ("all-linear",)),
        ("model", EMBEDDING),
        pytest.param("model", ("all-linear",), marks=pytest.mark.soak),
    ],
)
def test_peft_loads_the_adapter_and_says_the_same(
    world: World, tiny: Path, model: str, targets: tuple[str, ...]
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from train.model import export

    how: dict[str, Any] = {"lora_target_modules": targets}
    run = world.run(nodes=(3,), name_or_path=str(tiny / model), max_steps=3, **how)
    base = AutoModelForCausalLM.from_pretrained(tiny / model)
    tokens = AutoTokenizer.from_pretrained(tiny / model)("Python is", return_tensors="pt").input_ids
    before = base(tokens).logits
    theirs = PeftModel.from_pretrained(base, run.output / "adapter").eval()
    # Ours, from the shards: every trained weight put into a model that never saw the export.
    from peft import get_peft_model_state_dict
    from safetensors.torch import load_file

    from train.model.load import make

    ours: Any = make(run.config, tiny / model, torch.float32)
    loss_mask = export.weights(run.output / "step-000003")
    missing = ours.load_state_dict(loss_mask, strict=False).unexpected_keys
    assert not missing
    stored = load_file(run.output / "adapter/adapter_model.safetensors")
    assert stored.keys() == get_peft_model_state_dict(ours, save_embedding_layers=False).keys()
    assert torch.equal(theirs(tokens).logits, ours.eval()(tokens).logits)
    assert not torch.allclose(theirs(tokens).logits, before)
    about = json.loads((run.output / "adapter/metadata.json").read_text())
    assert about["step"] == 3
    # Its configuration is the one that PEFT itself saves: names resolved, for inference.
    ours.save_pretrained(world.folder / "peft", save_embedding_layers=False)
    mine, pefts = (
        json.loads((folder / "adapter_config.json").read_text())
        for folder in (run.output / "adapter", world.folder / "peft")
    )
    for shape in (mine, pefts):
        shape["target_modules"] = sorted(shape["target_modules"])  # PEFT writes sets in any order
    assert mine == pefts
    assert set(mine["target_modules"]) != {"all-linear"}


TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"


def test_an_adapters_folder_is_all_that_peft_needs(
    world: World, tiny: Path, tmp_path: Path
) -> None:
    """AutoPeftModel and vLLM take the tokenizer and its chat template from there."""
    from peft import AutoPeftModelForCausalLM, PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    base = shutil.copytree(tiny / "model", tmp_path / "base")
    (base / "chat_template.jinja").write_text(TEMPLATE)
    (base / "additional_chat_templates").mkdir()
    (base / "additional_chat_templates/tools.jinja").write_text("tools")
    run = world.run(name_or_path=str(base), max_steps=2)
    adapter = run.output / "adapter"
    names = {path.name for path in adapter.iterdir()}
    assert names == {
        "adapter_model.safetensors", "adapter_config.json", "metadata.json", "tokenizer.json",
        "tokenizer_config.json", "chat_template.jinja", "additional_chat_templates",
    }  # fmt: skip
    found = AutoTokenizer.from_pretrained(adapter)
    theirs = AutoTokenizer.from_pretrained(base)
    chat = [{"role": "user", "content": "Python is"}]
    assert found.apply_chat_template(chat, tokenize=False) == "user: Python is\n"
    assert found.get_vocab() == theirs.get_vocab()
    assert found.eos_token == "<eos>"
    tokens = found("Python is", return_tensors="pt").input_ids
    alone = AutoPeftModelForCausalLM.from_pretrained(adapter).eval()
    on_base = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), adapter).eval()
    assert torch.equal(alone(tokens).logits, on_base(tokens).logits)
    assert len({path.stat().st_mode for path in adapter.iterdir() if path.is_file()}) == 1


def test_a_fully_trained_model_loads_as_any_other(world: World, tiny: Path) -> None:
    """What is exported says what was trained, has the hub's names, and is trained further."""
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from train.model import export
    from train.model.load import make

    make_family(world.folder / "glm4_moe", "glm4_moe", tiny / "model")
    how: dict[str, Any] = {"method": "full", "max_steps": 2}
    exports = []
    for folder in (tiny / "tied", world.folder / "glm4_moe"):
        run = world.run(nodes=(2,), name_or_path=str(folder), **how)
        exports.append(str(run.output / "model"))
        exported = AutoModelForCausalLM.from_pretrained(run.output / "model")
        about = AutoTokenizer.from_pretrained(run.output / "model")("Python", return_tensors="pt")
        tokens = {"input_ids": about.input_ids}
        base = AutoModelForCausalLM.from_pretrained(folder)
        assert not torch.allclose(exported(**tokens).logits, base(**tokens).logits)
        trained: Any = make(run.config, folder, torch.float32).eval()
        held = export.weights(run.output / "step-000002")
        lacking = set(trained.load_state_dict(held, strict=False).missing_keys)
        assert lacking <= {"lm_head.weight"}, "tied to the embeddings"
        trained.tie_weights()
        assert torch.equal(exported(**tokens).logits, trained(**tokens).logits)
        files = (load_file(path / "model.safetensors") for path in (run.output / "model", folder))
        written, theirs = ({n: (t.shape, t.dtype) for n, t in file.items()} for file in files)
        assert written == theirs
    again = world.run(**how | {"max_steps": 1}, name_or_path=exports[-1])
    assert again.status()["state"] == "done"


CODE = """
from transformers import LlamaConfig, LlamaForCausalLM

class OwnConfig(LlamaConfig):
    model_type = "own"

class OwnModel(LlamaForCausalLM):
    config_class = OwnConfig
"""


def keeps_code(folder: Path, _: int) -> None:
    """Have transformers keep its copy of a model's code here, and not in the person's cache."""
    from transformers import dynamic_module_utils

    patch.object(dynamic_module_utils, "HF_MODULES_CACHE", str(folder)).start()


def test_a_model_with_code_of_its_own_is_exported_with_it(
    world: World, tiny: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny / "model", tmp_path / "own")
    classes = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}
    about = json.loads((folder / "config.json").read_text())
    about |= {"model_type": "own", "auto_map": classes}
    (folder / "config.json").write_text(json.dumps(about))
    (folder / "own.py").write_text(CODE)
    run = world.run(
        nodes=(1,),
        name_or_path=str(folder),
        method="full",
        trust_remote_code=True,
        max_steps=1,
        before=functools.partial(keeps_code, tmp_path / "modules"),
    )
    assert (run.output / "model/own.py").read_text() == CODE
    modes = {path.stat().st_mode for path in (run.output / "model").iterdir()}
    assert len(modes) == 1, "who can read the configuration can read the weights"


EXPERTS = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM


class OwnConfig(LlamaConfig):
    model_type = "own"


class Experts(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.experts = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(8))

    def forward(self, x):
        chosen = x[:, 0, :8].argmax(-1).tolist()
        return torch.stack([self.experts[one](row) for one, row in zip(chosen, x)])


class OwnModel(LlamaForCausalLM):
    config_class = OwnConfig

    def __init__(self, config):
        super().__init__(config)
        for layer in self.model.layers:
            layer.mlp = Experts(config.hidden_size)
        self.post_init()
"""


def test_experts_that_are_modules_may_get_no_token_on_a_rank(
    world: World, tiny: Path, tmp_path: Path
) -> None:
    import sys

    from torch.distributed.fsdp import FSDPModule

    folder = shutil.copytree(tiny / "model", tmp_path / "own")
    classes = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}
    about = json.loads((folder / "config.json").read_text())
    about |= {"model_type": "own", "auto_map": classes, "architectures": ["OwnModel"]}
    (folder / "config.json").write_text(json.dumps(about))
    (folder / "own.py").write_text(EXPERTS)
    with patch.object(sys, "path", [str(folder), *sys.path]):
        import own  # type: ignore[import-not-found]
    torch.manual_seed(0)
    own.OwnModel(own.OwnConfig(**about)).save_pretrained(folder / "weights")
    shutil.copyfile(folder / "weights/model.safetensors", folder / "model.safetensors")
    shutil.rmtree(folder / "weights")
    shutil.rmtree(folder / "__pycache__", ignore_errors=True)
    how: dict[str, Any] = {
        "name_or_path": str(folder), "method": "full", "trust_remote_code": True, "max_steps": 3,
        "learning_rate": 1e-3,
        "before": functools.partial(keeps_code, tmp_path / "modules"),
    }  # fmt: skip
    alone = world.run(nodes=(1,), **how)
    if hasattr(FSDPModule, "set_reduce_scatter_unused_params"):
        assert close(alone.losses(), world.run(nodes=(2,), **how).losses())
    else:  # torch before 2.13
        two = world.start(nodes=(2,), **how)
        assert two.wait() == [2, 2]
        assert "parallel: expected torch >= 2.13 to shard trained experts" in two.said()
    # DDP would wait for a gradient of each expert, in several micro-batches together too.
    repeated = world.run(nodes=(2,), parallel="ddp", per_device_train_batch_size=1, **how)
    assert close(alone.losses(), repeated.losses())
    assert "find_unused_parameters" not in repeated.said()


def test_any_error_of_a_library_that_makes_the_model_is_a_named_refusal(
    base: Config, tmp_path: Path
) -> None:
    from train.model.load import count_weights

    about = json.loads((Path(base.name_or_path) / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(about | {"vocab_size": -5}))
    with pytest.raises(ConfigError, match=f"language model in {tmp_path}, found: RuntimeError: "):
        count_weights(base, tmp_path)


def test_a_conversion_that_cannot_be_reversed_is_refused_before_the_training(base: Config) -> None:
    from transformers import conversion_mapping
    from transformers.core_model_loading import ConversionOps, WeightConverter

    from train.model.load import count_weights

    class OneWay(ConversionOps):  # type: ignore[misc]
        """Has no reverse operation."""

        def convert(self, input_dict: dict[str, Any], *_: Any, **__: Any) -> dict[str, Any]:
            return input_dict

    one_way = WeightConverter("q.weight", "q_proj.weight", operations=[OneWay()])
    count_weights(replace(base, method="full"), Path(base.name_or_path))
    with patch.object(
        conversion_mapping, "get_model_conversion_mapping", lambda *_, **__: [one_way]
    ):
        count_weights(base, Path(base.name_or_path))  # an adapter needs none of it
        with pytest.raises(ConfigError, match="cannot reverse: NotImplementedError") as refusal:
            count_weights(replace(base, method="full"), Path(base.name_or_path))
    assert str(refusal.value).endswith("hint: method: lora exports an adapter instead")


@pytest.mark.parametrize("leaks", [True, False])
def test_a_document_that_changes_the_next_one_in_its_row_is_found(
    base: Config, *, leaks: bool
) -> None:
    from train.model.load import make
    from train.model.model import Model

    network: Any = make(replace(base, method="full"), Path(base.name_or_path), torch.float32)
    if leaks:
        # A state that continues through the row, as Mamba's does.
        layer = network.model.layers[0]
        layer.register_forward_hook(lambda _, __, hidden: hidden + hidden.cumsum(1))
    mesh: Any = None
    model = Model(network, network, "single", mesh, torch.float32, ())
    if leaks:
        with pytest.raises(ConfigError, match="in LlamaForCausalLM a document changes") as refusal:
            model.try_packing()
        assert refusal.value.hint == "batching: balanced"
    else:
        model.try_packing()


def test_bfloat16_bases_keep_float32_adapters(world: World) -> None:
    from safetensors.torch import load_file

    layouts: tuple[dict[str, Any], ...] = (
        {"nodes": (1,)},
        {"nodes": (2,)},
        {"nodes": (2,), "parallel": "ddp"},
    )
    losses = []
    for how in layouts:
        run = world.run(dtype="bfloat16", max_steps=3, **how)
        stored = load_file(run.output / "adapter/adapter_model.safetensors")
        assert {str(tensor.dtype) for tensor in stored.values()} == {"torch.float32"}
        losses.append(run.losses()[3])
    assert max(losses) - min(losses) < 0.02, "roundings differ, the training does not"


def test_ddp_of_a_model_that_uses_all_its_weights_warns_of_nothing(world: World) -> None:
    for method in ("lora", "full"):
        run = world.run(nodes=(2,), parallel="ddp", max_steps=2, method=method)
        assert "find_unused_parameters" not in run.said()


def unused_weight(_: int) -> None:
    """Let every model have a weight that it never uses, as keys that layers share with others."""
    from train.model import model

    plainly = model._materialized

    def with_one_more(*args: Any) -> Any:
        network, remarks = plainly(*args)
        device = next(network.parameters()).device
        network.never = torch.nn.Parameter(torch.ones(2, device=device))
        return network, remarks

    patch.object(model, "_materialized", with_one_more).start()


def test_ddp_does_not_wait_for_a_weight_that_a_model_never_uses(world: World) -> None:
    how: dict[str, Any] = {"max_steps": 3}
    alone = world.run(**how)
    both = world.run(nodes=(2,), parallel="ddp", before=unused_weight, **how)
    assert close(alone.losses(), both.losses())


def test_unequal_nodes_are_sharded_flat_and_it_is_said(world: World) -> None:
    run = world.run(nodes=(2, 1), max_steps=1)
    assert "sharded over 3 ranks (FSDP)" in run.said()
    assert "nodes differ in ranks" in run.said()


def test_a_first_try_shortens_the_warm_up_and_says_it(world: World) -> None:
    how: dict[str, Any] = {"max_steps": 3}
    run = world.run(warmup_steps=100, learning_rate=3e-3, **how)
    assert "Steps:      3; warmup_steps: 100 is shortened to 3\n" in run.said()
    lines = (run.output / "metrics.jsonl").read_text().splitlines()
    rates = [row["lr"] for row in map(json.loads, lines) if row["kind"] == "step"]
    assert rates == pytest.approx([1e-3, 2e-3, 3e-3])
    assert "shortened" not in world.run(warmup_steps=3, **how).said()


def test_half_an_epoch_is_rounded_up_to_steps_and_the_step_line_has_it(world: World) -> None:
    how: dict[str, Any] = {"max_steps": None}
    half = world.run(num_train_epochs=0.5, **how).said()
    found = re.search(r"Data: +(\d+) samples", half)
    assert found
    samples = int(found[1])
    an_epoch = math.ceil(samples / 12)
    wanted = math.ceil(an_epoch / 2)
    assert f"Step {wanted}/{wanted} | Epoch: {wanted * 12 / samples:.2f} | " in half
    more = world.run(num_train_epochs=1.5, **how).said()
    steps = math.ceil(1.5 * an_epoch)
    assert f"Step {an_epoch}/{steps} | Epoch: 1.00 | " in more
    last = 1 + (steps - an_epoch) * 12 / samples
    assert f"Step {steps}/{steps} | Epoch: {last:.2f} | " in more


def test_one_sample_is_one(world: World, tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    path.write_text(json.dumps({"text": "some words to learn"}) + "\n")
    how: dict[str, Any] = {"global_batch_size": 1, "per_device_train_batch_size": 1}
    how |= {"max_steps": 1}
    said = world.run(dataset_path=str(path), **how).said()
    assert "Data:       1 sample\n" in said
    assert "global batch 1 sample a step" in said


def test_the_banner_says_what_will_happen(world: World, usual: Callable[..., Training]) -> None:
    said = world.run(nodes=(2, 2), max_steps=1).said()
    for words in (
        "World size: 4",
        "2 nodes x 2 ranks",
        "LoRA r=16",
        "tokens a step",
        "Steps:      1",
        "a checkpoint at the end; adapter/ at the end",
    ):
        assert words in said
    how: dict[str, Any] = {"global_batch_size": 4, "batching": "packed"}
    how["per_device_train_batch_size"] = 2
    packed = world.run(num_train_epochs=1, max_steps=None, **how)
    rows = [json.loads(line) for line in (packed.output / "metrics.jsonl").read_text().splitlines()]
    tokens = [row["tokens"] for row in rows if row["kind"] == "step"]
    mean = round(sum(tokens) / len(tokens))
    assert f"global batch 4 rows a step, about {mean} tokens a step" in packed.said()
    alone = usual(max_steps=2).said()
    assert "no distributed variables are set: a single process" in alone


@pytest.mark.parametrize(
    ("how", "code", "words"),
    [
        ({"nodes": (1,), "lora_target_modules": ("q_proj", "v_projj")}, 2, "found no v_projj"),
        (
            {"nodes": (1,), "name_or_path": "tied", "lora_target_modules": ("q_proj", "lm_head")},
            2,
            "shares the input embeddings' weights, found lm_head",
        ),
        ({"nodes": (1,), "attn_implementation": "flash_attention_2"}, 2, "packages installed"),
        ({"nodes": (2,), "before": short_of_memory}, 2, "the batch: expected room"),
        (
            {"nodes": (1,), "before": short_of_memory, "eval_steps": 3},
            2,
            "a batch of the evaluation: expected room",
        ),
        ({"nodes": (1,), "before": too_large}, 2, "the base model: expected room"),
        ({"nodes": (1,), "before": short_of_moments}, 2, "the optimizer: expected room"),
        ({"nodes": (2,), "parallel": "single"}, 3, "expected one process for single, found 2"),
        ({"nodes": (2, 1), "parallel": "hsdp"}, 3, "nodes with different numbers of ranks"),
        ({"nodes": (1,), "name_or_path": "/nowhere/at/all"}, 2, "name_or_path: expected"),
        ({"nodes": (1,), "learning_rate": 1e30, "max_grad_norm": 0.0}, 5, "expected a finite"),
        ({"nodes": (2,), "learning_rate": 1e30, "max_grad_norm": 0.0}, 5, "rank 1 on"),
        ({"nodes": (2,), "resume_from_checkpoint": "/nowhere/step-000001"}, 4, "no such folder"),
    ],
)
def test_what_cannot_be_is_said_with_its_exit_code(
    world: World, tiny: Path, how: dict[str, Any], code: int, words: str
) -> None:
    if how.get("name_or_path") == "tied":
        how = how | {"name_or_path": str(tiny / "tied")}
    run = world.start(**how)
    assert set(run.wait()) == {code}
    assert words in run.said()
    assert "hint:" in run.said() or "nearest:" in run.said() or code == 4
    assert "Traceback" not in run.said()
    assert run.status()["state"] == "failed"


def test_arithmetic_that_cannot_be_is_refused_before_anything_is_tokenized(
    world: World, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    run = world.start(nodes=(2,), gradient_accumulation_steps=5, cache_dir=str(cache))
    assert run.wait() == [2, 2]
    assert "4 x 2 ranks x gradient_accumulation_steps 5 = 40" in run.said()
    assert not cache.exists()


@pytest.mark.parametrize(("seq_len", "found"), [(36, 2), (48, 2), (32, 0)])
def test_rows_longer_than_the_positions_a_model_has_learned_are_refused(
    world: World, tiny: Path, tmp_path: Path, seq_len: int, found: int
) -> None:
    from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

    shape = GPT2Config(vocab_size=384, n_positions=36, n_embd=32, n_layer=1, n_head=4)
    GPT2LMHeadModel(shape).save_pretrained(tmp_path / "gpt2")
    AutoTokenizer.from_pretrained(tiny / "model").save_pretrained(tmp_path / "gpt2")
    run = world.start(nodes=(2,), name_or_path=str(tmp_path / "gpt2"), seq_len=seq_len, max_steps=1)
    assert run.wait() == [found, found], run.said()
    for rank in (0, 1):
        assert "Traceback" not in run.said(rank)
        told = f"has learned 36 positions, found {seq_len}" in run.said(rank)
        assert told is bool(found)


def test_a_tokenizer_that_is_another_models_is_refused(
    world: World, tiny: Path, tmp_path: Path
) -> None:
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    shape = LlamaConfig(
        vocab_size=100, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2,
    )  # fmt: skip
    LlamaForCausalLM(shape).save_pretrained(tmp_path / "other")
    AutoTokenizer.from_pretrained(tiny / "model").save_pretrained(tmp_path / "other")
    run = world.start(nodes=(2,), name_or_path=str(tmp_path / "other"), max_steps=1)
    assert run.wait() == [2, 2], run.said()
    for rank in (0, 1):
        assert "Traceback" not in run.said(rank)
        assert re.search(r"an embedding for token \d+ of the data, found 100 emb", run.said(rank))
        assert "hint: the tokenizer in the model's folder is another model's" in run.said(rank)


def test_an_attention_that_a_model_does_not_have_is_told_the_one_it_has(base: Config) -> None:
    from train.model.load import unusable

    found = 'it does not support that. Load it with `attn_implementation="eager"` meanwhile'
    told = unusable(base, Path(base.name_or_path), ValueError(found))
    assert told.problems == (f"attn_implementation: expected sdpa, found: {found}",)
    assert told.hint
    assert told.hint.startswith("attn_implementation: eager")


def test_the_base_may_take_longer_to_load_than_a_collective_may(world: World) -> None:
    run = world.start(nodes=(2,), max_steps=1, start_timeout=4.0, before=slow_to_load)
    assert run.wait() == [0, 0], run.said()


def test_what_rank_0_cannot_load_is_said_on_every_rank(
    world: World, tmp_path: Path, base: Config
) -> None:
    folder = tmp_path / "broken"
    shutil.copytree(base.name_or_path, folder)
    (folder / "model.safetensors").write_bytes(b"\xff" * 64)
    run = world.start(nodes=(2,), name_or_path=str(folder))
    assert run.wait() == [2, 2]
    for rank in (0, 1):
        assert "name_or_path: expected a causal language model" in run.said(rank)
        assert "Traceback" not in run.said(rank)


def test_a_weight_that_is_in_no_file_is_not_made_up(
    world: World, tmp_path: Path, base: Config
) -> None:
    from safetensors.torch import load_file, save_file

    name = "model.layers.1.self_attn.q_proj.weight"
    folder = shutil.copytree(base.name_or_path, tmp_path / "lacking")
    weights = load_file(folder / "model.safetensors")
    del weights[name]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    run = world.start(nodes=(2,), name_or_path=str(folder))
    assert run.wait() == [2, 2]
    for rank in (0, 1):
        assert f"{name} is in no file (and 0 others)" in run.said(rank)


def test_the_weights_are_not_touched_by_a_loss_that_is_no_number(world: World) -> None:
    run = world.start(nodes=(2,), learning_rate=1e30, max_grad_norm=0.0, save_steps=1)
    run.wait()
    state = run.status()
    assert f"the weights are still those of step {state['step']}" in run.said()


def test_nodes_with_other_files_are_named(world: World, tmp_path: Path, base: Config) -> None:
    apart = tmp_path / "apart"
    for node in (0, 1):
        shutil.copytree(base.name_or_path, apart / f"node-{node}/model")
    weights = apart / "node-1/model/model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    run = world.start(nodes=(1, 1), apart=apart, name_or_path="model")
    assert set(run.wait()) == {3}
    assert "the base model model: expected the same on every node" in run.said()
    assert "rank 1 on" in run.said()


def test_adapters_put_on_a_sharded_model_are_refused(base: Config) -> None:
    from peft import get_peft_model
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from transformers import AutoModelForCausalLM

    from train.distributed.process_group import local_store
    from train.errors import ModelError
    from train.model.lora_targets import Targets, lora
    from train.model.parallelize import verify_sharded

    dist.init_process_group("gloo", store=local_store(), rank=0, world_size=1)
    try:
        network = AutoModelForCausalLM.from_pretrained(base.name_or_path)
        mesh = init_device_mesh("cpu", (1,))
        for layer in network.model.layers:
            fully_shard(layer, mesh=mesh)
        late = get_peft_model(network, lora(base, Targets(modules="all-linear", parameters=())))
        with pytest.raises(ModelError, match=r"expected every trained parameter sharded"):
            verify_sharded(late, "fsdp")
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(
    ("dtype", "becomes", "remarks"),
    [("auto", "float16", 1), ("bfloat16", "bfloat16", 1), ("float32", "float32", 0)],
)
def test_emulated_bfloat16_is_not_taken_by_itself(
    base: Config, dtype: Any, becomes: str, remarks: int
) -> None:
    from train.model.load import settle_dtype

    config = replace(base, dtype=dtype)
    with (
        patch("torch.cuda.is_bf16_supported", lambda *, including_emulation: including_emulation),
        patch("torch.cuda.get_device_name", lambda _: "Tesla V100"),
    ):
        found, said = settle_dtype(config, torch.device("cuda", 0))
        assert (found.dtype, len(said)) == (becomes, remarks)
        assert settle_dtype(config, torch.device("cpu")) == (config, ())
