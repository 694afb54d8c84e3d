"""Text that was written with a chat template already: no begin or end comes twice."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from tests.train.data.chat_templates import QWEN
from tests.train.data.test_chat import tokenizer_of
from train.data.encoding import encode
from train.data.formats import Reader

pytestmark = pytest.mark.torch

MARKS = ["<s>", "</s>", "[gMASK]", "<unk>"]


def tokenizer_with(single: str) -> Any:
    """Return a tokenizer like Llama's; `single` is what it writes around a text, $A."""
    # (seconds to import: only these tests need them)
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    letters = {letter: at for at, letter in enumerate(pre_tokenizers.ByteLevel.alphabet())}
    bare = Tokenizer(models.BPE(letters, []))
    bare.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bare.decoder = decoders.ByteLevel()
    bare.add_special_tokens([AddedToken(mark, special=True) for mark in MARKS])
    marks = [(mark, bare.token_to_id(mark)) for mark in MARKS]
    bare.post_processor = TemplateProcessing(single=single, special_tokens=marks)
    return PreTrainedTokenizerFast(
        tokenizer_object=bare, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


def written(tokenizer: Any, record: dict[str, str]) -> str:
    """Return the text that the model is given for a record, all of its marks in it."""
    document = Reader(tokenizer).read(json.dumps(record).encode())
    ((sample,),) = encode([document], tokenizer, 1000)
    return str(tokenizer.decode(sample.ids))


@pytest.mark.parametrize("single", ["<s> $A", "<s> $A </s>", "$A", "$A </s>"])
@pytest.mark.parametrize("begin", ["", "<s>"])
@pytest.mark.parametrize("end", ["", "</s>", "</s>\n", "</s> "])
def test_a_begin_and_an_end_come_once(single: str, begin: str, end: str) -> None:
    tokenizer = tokenizer_with(single)
    wanted = ("<s>" if "<s>" in single else begin) + "[INST] hi [/INST] yo" + (end or "</s>")
    text = f"{begin}[INST] hi [/INST] yo{end}"
    assert written(tokenizer, {"text": text}) == wanted
    prompt, answer = text[: text.index(" yo")], text[text.index(" yo") :]
    assert written(tokenizer, {"prompt": prompt, "completion": answer}) == wanted


def test_what_a_text_says_twice_itself_stays() -> None:
    tokenizer = tokenizer_with("<s> $A")
    assert written(tokenizer, {"text": "<s><s>a</s></s>"}) == "<s><s>a</s></s>"
    assert written(tokenizer_with("$A"), {"text": "<s><s>a"}) == "<s><s>a</s>"


def test_other_tokens_at_the_end_are_no_end() -> None:
    assert written(tokenizer_with("$A"), {"text": "a <unk>"}) == "a <unk></s>"
    assert written(tokenizer_with("$A"), {"text": "a <s>"}) == "a <s></s>"


def test_several_tokens_may_begin_every_text() -> None:
    tokenizer = tokenizer_with("[gMASK] <s> $A")
    assert written(tokenizer, {"text": "a"}) == "[gMASK]<s>a</s>"
    assert written(tokenizer, {"text": "[gMASK]<s>a"}) == "[gMASK]<s>a</s>"


def test_the_end_of_an_answer_is_an_end_of_a_text_too() -> None:
    tokenizer = copy.copy(tokenizer_of(QWEN))
    tokenizer.eos_token = "<|endoftext|>"
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    text = tokenizer.apply_chat_template(chat, tokenize=False)
    assert text.endswith("<|im_end|>\n")
    assert written(tokenizer, {"text": text}) == text
    assert written(tokenizer, {"text": "a <|im_start|>"}) == "a <|im_start|><|endoftext|>"
    assert written(tokenizer, {"text": "a"}) == "a<|endoftext|>"
