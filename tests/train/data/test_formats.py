"""Lines to tokens: what is learned, what is cut, and what is wrong with a line."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from tests.train.tiny import paragraphs
from train.data.encoding import Sample, encode
from train.data.files.bad_line import BadLine
from train.data.formats import Reader
from train.errors import ConfigError

pytestmark = pytest.mark.torch

TEMPLATE = (
    "{% for m in messages %}<|im|>{{ m.role }}\n"
    # as some models do: thoughts are shown in the last answer only
    "{% if m.role == 'assistant' and loop.last %}<think></think>{% endif %}"
    "{{ m.content }}<eos>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im|>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    # (seconds to import: only this test needs them)
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bare = Tokenizer(models.BPE())
    bare.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bare.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=384,
        special_tokens=["<eos>", "<|im|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bare.train_from_iterator(paragraphs()[:100], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=bare, eos_token="<eos>", chat_template=TEMPLATE)


def samples(tokenizer: Any, record: object, seq_len: int = 1000) -> list[Sample]:
    return encode([Reader(tokenizer).read(json.dumps(record).encode())], tokenizer, seq_len)[0]


def loss_mask(tokenizer: Any, sample: Sample) -> str:
    return str(
        tokenizer.decode([i for i, yes in zip(sample.ids, sample.loss_mask, strict=True) if yes])
    )


def test_text_is_learned_whole_with_its_end(tokenizer: Any) -> None:
    (sample,) = samples(tokenizer, {"text": "Hello, é 中 world"})
    assert loss_mask(tokenizer, sample) == "Hello, é 中 world<eos>"


def test_long_text_goes_on_in_further_samples(tokenizer: Any) -> None:
    text = " ".join(paragraphs()[:3])
    found = samples(tokenizer, {"text": text}, seq_len=32)
    assert all(len(sample.ids) <= 32 and not sample.whole for sample in found)
    whole = "".join(tokenizer.decode(sample.ids) for sample in found)
    assert whole == f"{text}<eos>"


def test_of_a_completion_only_the_answer_is_learned(tokenizer: Any) -> None:
    (sample,) = samples(tokenizer, {"prompt": "Question: why?", "completion": " Because."})
    assert loss_mask(tokenizer, sample) == " Because.<eos>"
    assert tokenizer.decode(sample.ids) == "Question: why? Because.<eos>"


def test_a_tokenizer_that_ends_every_text_does_not_end_a_prompt(tokenizer: Any) -> None:
    from tokenizers.processors import TemplateProcessing

    ending = copy.deepcopy(tokenizer)
    marks = TemplateProcessing(single="$A:0 <eos>:0", special_tokens=[("<eos>", 0)])
    ending.backend_tokenizer.post_processor = marks
    (sample,) = samples(ending, {"prompt": "Why?", "completion": " So."})
    assert tokenizer.decode(sample.ids) == "Why? So.<eos>"
    (sample,) = samples(ending, {"prompt": "Why?<eos>", "completion": " So."})
    assert tokenizer.decode(sample.ids).startswith("Why?<eos>"), "this end is the prompt's own"
    (sample,) = samples(ending, {"text": "So."})
    assert loss_mask(tokenizer, sample) == "So.<eos>"


def test_a_completion_beyond_the_length_is_cut_or_left_out(tokenizer: Any) -> None:
    record = {"prompt": "why " * 10, "completion": " because" * 20}
    (sample,) = samples(tokenizer, record, seq_len=60)
    assert (len(sample.ids), sample.whole > 60) == (60, True)
    assert samples(tokenizer, record, seq_len=5) == []


def test_of_a_chat_every_answer_is_learned_with_its_end(tokenizer: Any) -> None:
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": "Hello! again"},
        {"role": "assistant", "content": "Yes, é."},
    ]
    (sample,) = samples(tokenizer, {"messages": messages})
    assert loss_mask(tokenizer, sample) == "Hello!<eos><think></think>Yes, é.<eos>"
    assert tokenizer.decode(sample.ids) == tokenizer.apply_chat_template(messages, tokenize=False)


@pytest.mark.parametrize("answer", ["h", "think", "n", "<", " eos\n", "s"])
def test_an_answer_is_not_sought_in_what_the_template_writes(tokenizer: Any, answer: str) -> None:
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": "And?"},
        {"role": "assistant", "content": answer},
    ]
    (sample,) = samples(tokenizer, {"messages": messages})
    assert loss_mask(tokenizer, sample) == f"a<eos><think></think>{answer}<eos>"


def test_a_template_may_look_into_an_answer(tokenizer: Any) -> None:
    thoughtful = copy.copy(tokenizer)
    thoughtful.chat_template = (
        "{% for m in messages %}<|im|>{{ m.role }}\n{% set c = m.content.split('</think>') %}"
        "{% if m.role == 'assistant' %}<think>{{ c[0] if c|length > 1 else '' }}</think>{% endif %}"
        "{{ c[-1] }}<eos>\n{% endfor %}{% if add_generation_prompt %}<|im|>assistant\n{% endif %}"
    )
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Why?</think>So."},
    ]
    (sample,) = samples(thoughtful, {"messages": messages})
    assert loss_mask(thoughtful, sample) == "<think>Why?</think>So.<eos>"


def test_prompt_and_completion_may_be_messages(tokenizer: Any) -> None:
    prompt = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Not this"},
        {"role": "user", "content": "And?"},
    ]
    answer = [{"role": "assistant", "content": "But this"}]
    (sample,) = samples(tokenizer, {"prompt": prompt, "completion": answer})
    assert loss_mask(tokenizer, sample).endswith("But this<eos>")
    assert "Not" not in loss_mask(tokenizer, sample)


def test_the_forms_of_other_programs_are_those_of_this_one(tokenizer: Any) -> None:
    said = [("system", "Be kind."), ("human", "Hi"), ("gpt", "Hello!"), ("user", "And?")]
    roles = {"human": "user", "gpt": "assistant"}
    messages = [{"role": roles.get(name, name), "content": text} for name, text in said]
    messages.append({"role": "assistant", "content": "So."})
    sharegpt = [{"from": name, "value": text} for name, text in (*said, ("gpt", "So."))]
    wanted = samples(tokenizer, {"messages": messages})
    assert samples(tokenizer, {"conversations": sharegpt}) == wanted
    assert samples(tokenizer, {"conversations": messages}) == wanted
    apart = {"system": "Be kind.", "conversations": sharegpt[1:]}
    assert samples(tokenizer, apart) == wanted
    task = {"instruction": "Add.", "input": "1, 2", "output": "3", "system": ""}
    asked = [{"role": "user", "content": "Add.\n1, 2"}, {"role": "assistant", "content": "3"}]
    assert samples(tokenizer, task) == samples(tokenizer, {"messages": asked})
    bare = copy.copy(tokenizer)
    bare.chat_template = None
    (sample,) = samples(bare, task)
    assert loss_mask(bare, sample) == "3<eos>"
    assert "### Instruction:\nAdd.\n\n### Input:\n1, 2\n\n### Response:\n3" in bare.decode(
        sample.ids
    )
    (sample,) = samples(bare, {**task, "input": None})
    assert "### Input" not in bare.decode(sample.ids)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{", "expected a JSON object"),
        (b'{"text": "a"\n', "found: Expecting ',' delimiter (column 13)"),
        (b"[1]", "found list"),
        (b'{"text": "\xff"}', "expected UTF-8"),
        (b'{"text": " "}', "text: expected some text"),
        (b'{"text": 3}', "found 3"),
        (b'{"instruction": "a", "outputs": "b"}', "found the keys instruction, outputs"),
        (b'{"instruction": "a", "output": ""}', "output: expected some text, found nothing"),
        (b'{"instruction": 3, "output": "b"}', "instruction: expected text, found int"),
        (b'{"conversations": "a"}', 'conversations: expected a list of {"from", "value"}'),
        (
            b'{"conversations": [{"from": "alien", "value": "a"}]}',
            "conversations: message 1: expected from human, user, gpt",
        ),
        (
            b'{"conversations": [{"from": "gpt", "val": "a"}]}',
            "message 1: expected from and value, found from, val",
        ),
        (b'{"conversations": [], "system": "Be kind."}', "messages: expected an answer"),
        (
            b'{"conversations": [{"from": "function_call", "value": "{"}]}',
            "message 1: expected a call as JSON",
        ),
        (b'{"prompt": 1, "completion": "b"}', "prompt: expected text"),
        (b'{"prompt": "a", "completion": ""}', "completion: expected some text, found nothing"),
        (b'{"text": "a \\ud83d b"}', "found half a character, '\\ud83d'"),
        (b'{"prompt": "\\udc00", "completion": "b"}', "found half a character"),
        (b'{"text": ' + b"9" * 5000 + b"}", "found: Exceeds the limit"),
        (b"[" * 100_000, "found: maximum recursion depth"),
        (b'{"messages": "hi"}', "messages: expected a list"),
        (b'{"messages": [{"role": "user", "content": "a"}]}', "expected an answer"),
        (
            b'{"messages": [{"role": "user", "content": "a"}, {"role": "assistant"}]}',
            "messages: expected an answer to learn, found 1 empty answer",
        ),
        (
            b'{"messages": [{"role": "assistant", "content": [{"type": "image", "url": "b"}]}]}',
            "message 1: expected no image in an answer, found one",
        ),
        (
            (
                b'{"messages": [{"role": "user", "content": {"type": "text", "text": "a"}},'
                b' {"role": "assistant", "content": "b"}]}'
            ),
            "messages: content of message 1: expected text, found dict",
        ),
    ],
)
def test_a_line_that_cannot_be_used_says_why(tokenizer: Any, line: bytes, said: str) -> None:
    with pytest.raises(BadLine) as caught:
        Reader(tokenizer).read(line)
    assert said in str(caught.value)


def test_contents_in_parts_are_left_to_a_template_that_knows_them(tokenizer: Any) -> None:
    knowing = copy.copy(tokenizer)
    knowing.chat_template = (
        "{% for m in messages %}<|im|>{{ m.role }}\n{{ m.content if m.content is string else "
        "m.content[0].text }}<eos>\n{% endfor %}{% if add_generation_prompt %}<|im|>assistant\n"
        "{% endif %}"
    )
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "Why?"}]},
        {"role": "assistant", "content": "So."},
    ]
    (sample,) = samples(knowing, {"messages": messages})
    assert tokenizer.decode(sample.ids).startswith("<|im|>user\nWhy?<eos>")


def test_chats_need_a_fast_tokenizer() -> None:
    from transformers import ByT5Tokenizer

    slow = ByT5Tokenizer(chat_template=TEMPLATE)
    chat = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    with pytest.raises(ConfigError, match="expected a fast tokenizer for chats, found ByT5Token"):
        samples(slow, chat)
    assert samples(slow, {"text": "words"})


def test_a_chat_needs_a_template(tokenizer: Any) -> None:
    bare = copy.copy(tokenizer)
    bare.chat_template = None
    with pytest.raises(BadLine, match="chat template, found none"):
        Reader(bare).read(b'{"messages": [{"role": "assistant", "content": "a"}]}')
