"""A trained adapter is loaded on its base and says something else than the base did."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.lazy_torch import torch
from train.tools import demo_assets, generate

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing")]


@pytest.fixture
def adapter(tiny: Path, tmp_path: Path) -> Path:
    """Return an adapter that turns the base's head round."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(tiny / "model")
    model = get_peft_model(base, LoraConfig(r=2, target_modules=["q_proj", "down_proj"]))
    torch.manual_seed(0)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=5.0)
    model.save_pretrained(str(tmp_path / "adapter"))
    return tmp_path / "adapter"


def test_base_and_adapter_speak_after_the_prompt(
    tiny: Path, adapter: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--model", str(tiny / "model"), "--prompt", "one two", "--max-new-tokens", "12"]
    assert generate.main([*words, "--adapter", str(adapter)]) == 0
    said = capsys.readouterr().out.split("--- ")
    assert [part.split("\n")[0] for part in said[1:]] == ["prompt", "base", "adapter"]
    assert said[2].split("\n", 1)[1] != said[3].split("\n", 1)[1]
    assert generate.main(words) == 0
    alone = capsys.readouterr()
    assert alone == ("--- " + "--- ".join(said[1:3]), "sampling: greedy, repetition penalty 1\n")


def test_the_text_is_that_of_transformers_and_peft_without_sampling(
    tiny: Path, adapter: Path, tmp_path: Path
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    # As a chat model has it, whose answers are drawn by default.
    folder = shutil.copytree(tiny / "model", tmp_path / "model")
    drawn = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.9}
    (folder / "generation_config.json").write_text(
        json.dumps(drawn | {"repetition_penalty": 1.3, "eos_token_id": 0, "pad_token_id": 0})
    )
    found = generate.answers(str(folder), adapter, "one two", 30)
    tokenizer = AutoTokenizer.from_pretrained(tiny / "model")
    given = torch.tensor([tokenizer("one two")["input_ids"]])
    base = AutoModelForCausalLM.from_pretrained(tiny / "model")

    def text(model: Any) -> str:
        output = model.generate(input_ids=given, max_new_tokens=30, do_sample=False)
        return str(tokenizer.decode(output[0][given.shape[1] :], skip_special_tokens=True))

    wanted = {"base": text(base)}
    wanted["adapter"] = text(PeftModel.from_pretrained(base, str(adapter)))
    assert found == wanted
    penalized = generate.answers(str(folder), None, "one two", 30, penalty=1.2)
    assert penalized["base"] != wanted["base"]


def test_an_adapter_that_changes_no_word_is_noted(
    tiny: Path, adapter: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from safetensors.torch import load_file, save_file

    weights = adapter / "adapter_model.safetensors"
    save_file({name: 0 * tensor for name, tensor in load_file(weights).items()}, weights)
    words = ["--model", str(tiny / "model"), "--prompt", "one two", "--adapter", str(adapter)]
    assert generate.main(words) == 0
    assert "note: the adapter changes no word here" in capsys.readouterr().err


def test_what_is_no_adapter_is_refused_before_anything_is_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--model", "nowhere", "--prompt", "x", "--adapter", str(tmp_path)]
    assert generate.main(words) == 2
    said = capsys.readouterr().err
    assert "found no adapter_config.json in it" in said
    assert "hint: " in said


def test_a_question_is_put_in_the_chat_template_as_training_puts_it(tmp_path: Path) -> None:
    from train.data import encoding, formats

    tokenizer = demo_assets.make_tokenizer(["some words to learn from"] * 9)
    asked = generate.as_question(tokenizer, "Why?")
    line = {
        "messages": [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}]
    }
    document = formats.Reader(tokenizer).read(json.dumps(line).encode())
    ((sample,),) = encoding.encode([document], tokenizer, 1000)
    assert sample.ids[: len(asked)] == asked
    assert not any(sample.loss_mask[: len(asked)])
    assert sample.loss_mask[len(asked)]


def test_a_text_begins_as_in_training_and_is_left_open(tiny: Path) -> None:
    from tokenizers.processors import TemplateProcessing
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny / "model")
    plain = tokenizer("one two")["input_ids"]
    marks = TemplateProcessing(single="!:0 $A:0 <eos>:0", special_tokens=[("!", 1), ("<eos>", 0)])
    tokenizer.backend_tokenizer.post_processor = marks
    assert generate.as_text(tokenizer, "one two") == [1, *plain]
    assert generate.as_text(tokenizer, "!one two") == [
        1,
        *tokenizer("one two", add_special_tokens=False)["input_ids"],
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--prompt", "word " * 500], "--prompt: expected 1 to 196 tokens"),
        (["--prompt", ""], "found 0"),
        (["--prompt", "x", "--chat"], "--chat: expected a tokenizer with a chat template"),
        (["--prompt", "x", "--model", "./nowhere"], "--model: expected a causal language model"),
    ],
)
def test_what_cannot_be_answered_is_told(
    tiny: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert generate.main(["--model", str(tiny / "model"), *words]) == 2
    found = capsys.readouterr()
    assert said in found.err
    assert not found.out


@pytest.mark.parametrize("weights", [b"", b"cut off"])
def test_a_base_that_is_cut_off_is_told(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], weights: bytes
) -> None:
    model = shutil.copytree(tiny / "model", tmp_path / "model")
    (model / "model.safetensors").write_bytes(weights)
    assert generate.main(["--model", str(model), "--prompt", "x"]) == 2
    assert "--model: expected a causal language model, found: " in capsys.readouterr().err


@pytest.mark.parametrize("weights", [None, b"", b"cut off"])
def test_an_adapter_that_cannot_be_loaded_is_told(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], weights: bytes | None
) -> None:
    shape = {"peft_type": "LORA", "target_modules": ["q_proj"], "task_type": "CAUSAL_LM"}
    (tmp_path / "adapter_config.json").write_text("{}" if weights is None else json.dumps(shape))
    if weights is not None:
        (tmp_path / "adapter_model.safetensors").write_bytes(weights)
    words = ["--model", str(tiny / "model"), "--prompt", "x", "--adapter", str(tmp_path)]
    assert generate.main([*words, "--max-new-tokens", "1"]) == 2
    assert f"--adapter: expected an adapter of {tiny / 'model'}, found: " in capsys.readouterr().err


def test_an_adapter_without_a_weight_for_the_model_is_told(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from safetensors.torch import save_file

    shape = {"peft_type": "LORA", "target_modules": "all-linear", "task_type": "CAUSAL_LM"}
    (tmp_path / "adapter_config.json").write_text(json.dumps(shape))
    name = "base_model.model.transformer.h.0.attn.c_attn.lora_A.weight"
    save_file({name: torch.ones(8, 32)}, tmp_path / "adapter_model.safetensors")
    words = ["--model", str(tiny / "model"), "--prompt", "x", "--adapter", str(tmp_path)]
    assert generate.main([*words, "--max-new-tokens", "1"]) == 2
    found = capsys.readouterr().err
    assert f"expected an adapter of {tiny / 'model'}, found: UserWarning: Found missing" in found
    assert "layers.0" not in found


def test_no_tokens_at_all_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        generate.main(["--model", "m", "--prompt", "x", "--max-new-tokens", "0"])
    assert "--max-new-tokens: expected 1 or more, found 0" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        generate.main(["--model", "m", "--prompt", "x", "--repetition-penalty", "0"])
    assert "--repetition-penalty: expected more than 0, found 0" in capsys.readouterr().err


def test_the_base_speaks_in_the_numbers_it_is_kept_in(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    base = AutoModelForCausalLM.from_pretrained(tiny / "model", dtype=torch.bfloat16)
    base.save_pretrained(tmp_path / "low")
    AutoTokenizer.from_pretrained(tiny / "model").save_pretrained(tmp_path / "low")
    speaks = mock.Mock(return_value="")
    monkeypatch.setattr(generate, "continued", speaks)
    generate.answers(str(tmp_path / "low"), None, "one", 3)
    assert speaks.call_args.args[0].dtype == torch.bfloat16
