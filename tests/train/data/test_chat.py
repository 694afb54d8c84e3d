"""Chats as five families of templates write them: what is learned, and where it ends."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from typing import Any

import pytest

from tests.train.data.chat_templates import FAMILIES, GLM, LLAMA, MISTRAL, QWEN, TEMPLATES, Family
from train.data.encoding import encode
from train.data.files.bad_line import BadLine
from train.data.formats import Reader

pytestmark = pytest.mark.torch

QWEN35 = TEMPLATES["qwen3.5"]
ALL = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
CALLING = pytest.mark.parametrize(
    "family", [GLM, LLAMA, QWEN, MISTRAL], ids=["glm", "llama", "qwen", "mistral"]
)
TOOLS = [
    {
        "type": "function",
        "function": {"name": "weather", "description": "Of a place", "parameters": {}},
    }
]
CALLS = [
    {
        "type": "function",
        "id": "abcdefghi",
        "function": {"name": "weather", "arguments": '{"place": "Bonn"}'},
    }
]
ASKED = {"role": "user", "content": "How warm is it?"}
RESULT = {"role": "tool", "name": "weather", "tool_call_id": "abcdefghi", "content": "21"}


@functools.cache
def tokenizer_of(family: Family) -> Any:
    # (seconds to import: only these tests need them)
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = {letter: at for at, letter in enumerate(pre_tokenizers.ByteLevel.alphabet())}
    bare = Tokenizer(models.BPE(letters, []))
    bare.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bare.decoder = decoders.ByteLevel()
    bare.add_special_tokens([AddedToken(mark, special=True) for mark in family.marks])
    bare.add_tokens([AddedToken(word, special=False) for word in family.words])
    return PreTrainedTokenizerFast(
        tokenizer_object=bare,
        bos_token=family.marks[0],
        eos_token=family.eos,
        chat_template=family.template,
    )


def learned(family: Family, record: dict[str, Any], **arguments: Any) -> tuple[str, str]:
    """Return the text of a chat, and what of it is learned: stretches with ¦ between them."""
    tokenizer = tokenizer_of(family)
    document = Reader(tokenizer, arguments).read(json.dumps(record).encode())
    ((sample,),) = encode([document], tokenizer, 4000)
    stretches: list[list[int]] = [[]]
    for token, counts in zip(sample.ids, sample.loss_mask, strict=True):
        if counts:
            stretches[-1].append(token)
        elif stretches[-1]:
            stretches.append([])
    said = [tokenizer.decode(stretch) for stretch in stretches if stretch]
    return str(tokenizer.decode(sample.ids)), "¦".join(said)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def answer(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


@ALL
def test_every_answer_ends_with_the_token_that_ends_one_at_inference(family: Family) -> None:
    chat = [{"role": "system", "content": "Be kind."}, user("Hi"), answer("Hello"), user("And?")]
    thought = {GLM: "\n<think></think>\n", QWEN: "<think>\n\n</think>\n\n", MISTRAL: " "}
    before_last = thought.get(family, "")
    before_inner = "" if family is QWEN else before_last
    text, said = learned(family, {"messages": [*chat, answer("So.")]})
    wanted = f"{before_inner}Hello{family.end}¦{before_last}So.{family.end}"
    assert said == wanted, "each answer, and once what ends it"
    assert "Be kind." in text
    _, single = learned(family, {"messages": [user("Hi"), answer("Hello")]})
    assert single == f"{before_last}Hello{family.end}"
    # What the model has read when it writes the last answer is what it reads at inference.
    tokenizer = tokenizer_of(family)
    asked = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert text.startswith(asked)
    assert text.rstrip().endswith(f"So.{family.end}")


@ALL
def test_an_answer_that_is_not_the_last_message_is_learned_too(family: Family) -> None:
    _, said = learned(family, {"messages": [user("Hi"), answer("Hello"), user("Thanks")]})
    assert said.endswith(f"Hello{family.end}")
    assert said.count(family.end) == 1


@CALLING
def test_tools_calls_and_results_reach_the_template(family: Family) -> None:
    chat = [ASKED, answer("", tool_calls=CALLS), RESULT, answer("21 degrees.")]
    chat[1]["content"] = None  # as OpenAI's API has it
    text, said = learned(family, {"messages": chat, "tools": TOOLS})
    assert "Of a place" in text, "what the tool is for"
    assert "21" in text.split("weather")[-1]
    assert "None" not in text
    call, last = said.split("¦")
    assert "weather" in call
    assert "Bonn" in call
    assert '\\"' not in call, "the arguments are an object, not a text with one in it"
    assert call.endswith("<|observation|>" if family is GLM else family.end)
    assert last.endswith(f"21 degrees.{family.end}")
    # Several datasets keep the schemas as text.
    assert learned(family, {"messages": chat, "tools": json.dumps(TOOLS)}) == (text, said)
    _, only_call = learned(family, {"messages": chat[:2], "tools": TOOLS})
    assert only_call.endswith("<|observation|>" if family is GLM else family.end)


@pytest.mark.parametrize(
    ("family", "record", "said"),
    [
        ("gemma", {"messages": [user("a"), answer("b")], "tools": TOOLS}, "tools: expected a chat"),
        ("gemma", {"messages": [user("a"), answer("b"), RESULT]}, "roles take turns"),
        ("mistral", {"messages": [user("a"), answer("b"), {"role": "critic", "content": "c"}]},
         "only user, assistant and tool"),
        ("glm", {"messages": [user("a"), answer("b"), {"role": "critic", "content": "c"}]},
         "message 3: expected a chat template that writes the role critic"),
        ("gemma", {"messages": [user("a"), answer("", tool_calls=CALLS)]},
         "message 2, an answer, is not to be found"),
        ("qwen", {"messages": [user("a"), answer("", tool_calls=[{"function": {}}])]},
         "tool_calls of message 2: expected a list"),
        ("qwen", {"messages": [user("a"), answer("b")], "tools": "[{"}, "tools: expected a list"),
        ("qwen", {"messages": [user("a"), answer("b")], "chat_template_kwargs": 3},
         "chat_template_kwargs: expected an object"),
    ],
)  # fmt: skip
def test_nothing_is_left_out_without_a_word(family: str, record: dict[str, Any], said: str) -> None:
    with pytest.raises(BadLine) as caught:
        learned(FAMILIES[family], record)
    assert said in str(caught.value)


@pytest.mark.parametrize("family", [GLM, QWEN], ids=["glm", "qwen"])
def test_thoughts_are_learned_where_the_template_keeps_them(family: Family) -> None:
    thinking = "<think>\nIt rains.\n</think>\n\nTake a coat."
    chat = [user("Hi"), answer(thinking), user("And now?"), answer(thinking)]
    text, said = learned(family, {"messages": chat})
    first, last = said.split("¦")
    assert "It rains." not in first, "the template drops thoughts before the last question"
    assert first.endswith(f"Take a coat.{family.end}")
    assert last.lstrip().startswith("<think>")
    assert "It rains." in last
    assert last.endswith(f"Take a coat.{family.end}")
    apart = [*chat[:3], answer("Take a coat.", reasoning_content="It rains.")]
    assert learned(family, {"messages": apart}) == (text, said)
    # A thought before a call is dropped as soon as there is another question.
    calls = [user("Hi"), answer("<think>weather?</think>", tool_calls=CALLS), RESULT, answer("21")]
    text, said = learned(family, {"messages": [*calls, user("Sure?"), answer("Yes")]})
    assert "weather?" not in text
    assert [part.count(family.end) for part in said.split("¦")] == [family is QWEN, 1, 1]
    text, _ = learned(family, {"messages": calls})
    assert "weather?" in text


@pytest.mark.parametrize("family", [GLM, QWEN], ids=["glm", "qwen"])
def test_the_template_takes_arguments_of_the_file_and_of_the_line(family: Family) -> None:
    chat = {"messages": [user("Hi"), answer("Hello"), user("And?"), answer("So.")]}
    _, said = learned(family, chat, enable_thinking=False)
    inner, last = said.split("¦")
    assert last.strip("\n") == f"So.{family.end}", "the empty thought is given, not learned"
    assert inner.strip("\n") == f"Hello{family.end}"
    of_line = {**chat, "chat_template_kwargs": {"enable_thinking": True}}
    assert learned(family, of_line, enable_thinking=False) == learned(family, chat)


def test_a_template_without_marks_ends_the_last_answer_with_the_end_of_text() -> None:
    plain = Family(
        template="{% for m in messages %}### {{ m.role }}\n{{ m.content }}\n\n{% endfor %}"
        "{% if add_generation_prompt %}### assistant\n{% endif %}",
        marks=("<eos>",),
        eos="<eos>",
        end="<eos>",
    )
    text, said = learned(plain, {"messages": [user("Hi"), answer("Hello")]})
    assert (text, said) == ("### user\nHi\n\n### assistant\nHello<eos>", "Hello<eos>")


DATED = Family(
    template="""Today: {{ date or strftime_now('%d %b %Y') }}<|eot|>
{%- for m in messages %}<|{{ m.role }}|>{{ m.content }}<|eot|>{% endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}""",
    marks=("<|bos|>", "<|user|>", "<|assistant|>", "<|eot|>"),
    eos="<|eot|>",
    end="<|eot|>",
)


def test_a_template_that_prints_the_date_gives_the_same_tokens_on_any_day() -> None:
    chat = {"messages": [user("Hi"), answer("Hello")]}
    text, said = learned(DATED, chat)
    assert text.startswith("Today: 26 Jul 2024<|eot|>")
    assert said == "Hello<|eot|>"
    text, _ = learned(DATED, chat, date="1 Jan 2026")
    assert text.startswith("Today: 1 Jan 2026<|eot|>")


@pytest.mark.parametrize(
    "call",
    [
        "strftime_now('%d' ~ ' %b %Y')",
        "strftime_now(form)",
        "strftime_now(format='%d %b %Y')",
        "today()",
    ],
)
def test_however_a_template_asks_for_the_date_it_is_the_same(call: str) -> None:
    assert "strftime_now('%d %b %Y')" in DATED.template
    form = "{% set form = '%d %b %Y' %}"
    form += "{% macro today() %}{{ strftime_now('%d') + strftime_now(' %b %Y') }}{% endmacro %}"
    called = DATED.template.replace("strftime_now('%d %b %Y')", call)
    chat = {"messages": [user("Hi"), answer("Hello")]}
    text, _ = learned(replace(DATED, template=form + called), chat)
    assert text.startswith("Today: 26 Jul 2024<|eot|>")
    # The template begins a line, and the blocks at its beginning leave nothing.
    text, _ = learned(replace(DATED, template=f"\n  {form}\n{called}"), chat)
    assert text.startswith("\nToday: 26 Jul 2024<|eot|>")


# What a mask found by searching the text gets wrong


@pytest.mark.parametrize("family", [GLM, QWEN], ids=["glm", "qwen"])
@pytest.mark.parametrize("said", ["4", "hi", "<", "Two", "e"])
def test_an_answer_that_occurs_in_its_thoughts_is_learned_with_them(
    family: Family, said: str
) -> None:
    thought = "Two and two make 4. <So> hi."
    inline = answer(f"<think>\n{thought}\n</think>\n\n{said}")
    text, learnt = learned(family, {"messages": [user("2+2?"), inline]})
    apart = answer(said, reasoning_content=thought)
    assert learned(family, {"messages": [user("2+2?"), apart]}) == (text, learnt)
    assert thought in learnt
    assert learnt.endswith(f"{said}{family.end}")
    assert learnt.split("</think>")[1].strip() == f"{said}{family.end}"


@ALL
def test_an_answer_that_begins_the_chat_is_learned_without_its_header(family: Family) -> None:
    chat = [answer("Greetings!"), user("Hello"), answer("Welcome")]
    if family in {FAMILIES["gemma"], MISTRAL}:  # the roles take turns, the user's first
        with pytest.raises(BadLine, match="roles take turns"):
            learned(family, {"messages": chat})
        return
    text, said = learned(family, {"messages": chat})
    first, last = said.split("¦")
    thought = "\n<think></think>\n" if family is GLM else ""
    assert first.lstrip(" ") == f"{thought}Greetings!{family.end}"
    assert last.endswith(f"Welcome{family.end}")
    assert text.index("Greetings!") < text.index("Hello")


@pytest.mark.parametrize("name", ["qwen", "qwen3.5", "nemotron3", "glm", "llama"])
@pytest.mark.parametrize("enable", [{}, {"enable_thinking": False}], ids=["thinking", "without"])
def test_what_a_user_says_does_not_change_what_is_learned(
    name: str, enable: dict[str, Any]
) -> None:
    family = TEMPLATES[name]

    def said(asked: str) -> str:
        thinking = "<think>\nhi > m.\n</think>\n\nhi"
        chat = [user(asked), answer(thinking), user(asked), answer(thinking), user(asked)]
        return learned(family, {"messages": [*chat, answer("m")]}, **enable)[1]

    wanted = said("Qxq")
    assert wanted.count("¦") == 2
    for asked in ("hi", ">", "m", "assistant", "<|im_end|>", "think"):
        assert said(asked) == wanted, asked


def test_a_call_of_an_earlier_turn_is_learned_where_the_prompt_opens_the_thoughts() -> None:
    turn = [ASKED, answer("", tool_calls=CALLS), RESULT, answer("21 degrees.")]
    _, said = learned(QWEN35, {"messages": [*turn, *turn], "tools": TOOLS})
    call, first, again, last = said.split("¦")
    assert call.startswith("<tool_call>")
    assert again.startswith("\n</think>\n\n<tool_call>")
    assert (first, last) == ("21 degrees.<|im_end|>", "\n</think>\n\n21 degrees.<|im_end|>")


def with_call(written: str) -> Family:
    """Return a family that writes a call so; `f` is its function."""
    template = (
        "{%- for m in messages %}<|{{ m.role }}|>{{ m.content }}"
        "{% for call in m.tool_calls or [] %}"
        "{% set f = call.function %}" + written + "{% endfor %}<|eot|>{% endfor %}"
        "{%- if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    marks = ("<|user|>", "<|assistant|>", "<|tool|>", "<|eot|>")
    return Family(template=template, marks=marks, eos="<|eot|>", end="<|eot|>")


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("{{ f.name + '(' + f.arguments + ')' }}", 'weather({"place": "Bonn"})'),
        ("{{ f.name }}{{ f.arguments }}", 'weather{"place": "Bonn"}'),
        ("{{ f.name }}{{ f.arguments | tojson }}", 'weather{"place": "Bonn"}'),
        ("{{ f.name }}(place={{ f.arguments.place }})", "weather(place=Bonn)"),
    ],
    ids=["joined", "printed", "as JSON", "single"],
)
def test_arguments_are_given_as_the_template_needs_them(written: str, said: str) -> None:
    chat = [ASKED, answer("", tool_calls=CALLS), RESULT, answer("21")]
    _, learnt = learned(with_call(written), {"messages": chat})
    assert learnt == f"{said}<|eot|>¦21<|eot|>"


def test_an_empty_answer_is_not_learned_and_the_others_are() -> None:
    chat = [user("Hi"), answer(""), user("?"), answer("", reasoning_content=""), user("!")]
    _, said = learned(QWEN, {"messages": [*chat, answer("Yes.")]})
    assert said == "<think>\n\n</think>\n\nYes.<|im_end|>"
    with pytest.raises(BadLine, match="expected an answer to learn, found 2 empty answers"):
        learned(QWEN, {"messages": chat})


def test_the_mark_of_another_answer_does_not_end_one() -> None:
    _, said = learned(GLM, {"messages": [user("Hi"), answer("One."), answer("Two."), user("?")]})
    assert said == "\n<think></think>\nOne.¦\n<think></think>\nTwo.<|user|>"


def test_a_template_without_a_token_between_turns_ends_only_the_last_answer() -> None:
    plain = Family(
        template="{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}",
        marks=("<eos>", "<user>"),
        eos="<eos>",
        end="<eos>",
    )
    _, said = learned(plain, {"messages": [user("a"), answer("b"), user("<user>"), answer("c")]})
    assert said == " b¦ c<eos>"


@pytest.mark.parametrize(
    "no", [{"weight": 0}, {"weight": 0.0}, {"train": False}, {"training": False}]
)
def test_an_answer_that_is_not_to_be_learned_is_read_only(no: dict[str, Any]) -> None:
    chat = [user("a"), answer("bad", **no), user("b"), answer("good", weight=1, train=True)]
    text, said = learned(QWEN, {"messages": chat})
    assert "bad<|im_end|>" in text
    assert said == "<think>\n\n</think>\n\ngood<|im_end|>"
    with pytest.raises(BadLine, match="expected an answer to learn, found 1 answer of weight 0"):
        learned(QWEN, {"messages": chat[:3]})


def test_parts_that_are_text_are_joined_and_others_are_refused() -> None:
    parts: list[dict[str, Any]] = [
        {"type": "text", "text": "How "},
        {"type": "text", "text": "warm?"},
    ]
    chat = [{"role": "user", "content": parts}, {"role": "assistant", "content": parts[:1]}]
    text, said = learned(QWEN, {"messages": chat})
    assert "user\nHow warm?<|im_end|>" in text
    assert said.endswith("How <|im_end|>")
    parts.append({"type": "image_url", "image_url": {"url": "a.png"}})
    with pytest.raises(BadLine, match="expected a model that sees images"):
        learned(QWEN, {"messages": chat})


# What a template does with the texts


@pytest.mark.parametrize(
    "asked", ["/no_think Why?", "Why? /no_think", "/no_think", "a /no_think b"]
)
def test_a_template_may_look_into_a_question(asked: str) -> None:
    looking = replace(
        QWEN,
        template=QWEN.template.replace(
            "'<|im_start|>' + m.role + '\\n' + m.content +",
            "'<|im_start|>' + m.role + '\\n' + (m.content | replace('/no_think', '') | trim) +",
        ),
    )
    assert looking.template != QWEN.template
    text, said = learned(looking, {"messages": [user(asked), answer("So.")]})
    assert "no_think" not in text
    assert said == "<think>\n\n</think>\n\nSo.<|im_end|>"


@pytest.mark.parametrize("written", ["m.content | length", "m.content | reverse", "m.content[:1]"])
def test_an_answer_that_the_template_rewrites_is_refused(written: str) -> None:
    rewriting = with_call("")
    assert "{{ m.content }}" in rewriting.template
    written = f"({written}) if m.role == 'assistant' else m.content"
    template = rewriting.template.replace("m.content", written)
    with pytest.raises(BadLine, match=r"cannot be proven|is not to be found"):
        learned(replace(rewriting, template=template), {"messages": [user("a"), answer("bcd")]})


def test_an_answer_of_which_the_template_drops_a_part_is_refused() -> None:
    said = "<think>a</think>first</think>second"
    with pytest.raises(BadLine, match="message 2, an answer, is not to be found"):
        learned(QWEN, {"messages": [user("?"), answer(said)]})


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_texts_with_the_characters_of_the_marks_are_learned_as_they_are(family: Family) -> None:
    rare = "\U00020000\U00020001\U00020002\U00020003\U00020004\U00020005\U00020006\U00020007"
    _, said = learned(family, {"messages": [user(f"{rare}?"), answer(f"{rare}!")]})
    assert said.endswith(f"{rare}!{family.end}")
    assert said.count("\U00020000") == 1


def test_what_the_template_marks_as_generated_is_learned() -> None:
    marked = Family(
        template="""{%- for m in messages %}
{%- if m.role == 'assistant' %}<|assistant|>
hidden {% generation %}{{ m.content }}<|eot|>{% endgeneration %}

{%- else %}<|{{ m.role }}|>
{{ m.content }}<|eot|>{% endif %}{% endfor %}
{%- if add_generation_prompt %}<|assistant|>
{% endif %}""",
        marks=("<|user|>", "<|assistant|>", "<|eot|>"),
        eos="<|eot|>",
        end="<|eot|>",
    )
    chat = [user("a"), answer("b"), user("c"), answer("d")]
    text, said = learned(marked, {"messages": chat})
    turns = [
        f"<|user|>\n{asked}<|eot|><|assistant|>\nhidden {said}<|eot|>"
        for asked, said in ("ab", "cd")
    ]
    assert text == "".join(turns)
    assert said == "b<|eot|>¦d<|eot|>"
    unmarked = (
        "{%- if m.role == 'assistant' and not loop.last %}<|assistant|>\n{{ m.content }}<|eot|>"
    )
    last_only = marked.template.replace("{%- if", f"{unmarked}\n{{%- elif", 1)
    _, said = learned(replace(marked, template=last_only), {"messages": chat})
    assert said == "d<|eot|>"


def test_the_name_of_an_argument_may_be_the_token_that_ends_an_answer() -> None:
    calls = [{"function": {"name": "weather", "arguments": {"place": "Bonn", QWEN.end: 1}}}]
    _, said = learned(
        QWEN, {"messages": [ASKED, answer("", tool_calls=calls), RESULT, answer("21")]}
    )
    assert said.split("¦")[0].endswith('"<|im_end|>": 1}}\n</tool_call><|im_end|>')


def test_an_answer_after_an_empty_one_is_learned() -> None:
    chat = [user("a"), answer("<think>\nHm.\n</think>\n\nYes."), answer(""), answer("No.")]
    _, said = learned(QWEN, {"messages": chat})
    assert said.split("¦")[1] == "<think>\n\n</think>\n\nNo.<|im_end|>"


def test_a_call_may_be_its_function_alone() -> None:
    alone = [{"name": "weather", "arguments": {"place": "Bonn"}}]
    chat = [ASKED, answer("", tool_calls=alone), RESULT, answer("21")]
    usual = [ASKED, answer("", tool_calls=CALLS), RESULT, answer("21")]
    assert learned(QWEN, {"messages": chat}) == learned(QWEN, {"messages": usual})


@pytest.mark.parametrize("name", ["qwen", "llama", "glm"])
def test_a_question_may_have_the_arguments_of_a_call_as_python_writes_them(name: str) -> None:
    calls = [{"function": {"name": "weather", "arguments": {"n": 3}}}]
    asked = user("Run it with {'n': 3} please")
    _, said = learned(TEMPLATES[name], {"messages": [asked, answer("", tool_calls=calls)]})
    assert "\\" not in said
    assert "3" in said


def test_a_template_that_encodes_arguments_twice_is_refused() -> None:
    family = with_call("{{ f.name }}{{ (f.arguments + '') | tojson }}")
    with pytest.raises(BadLine, match="encodes the arguments of a call twice"):
        learned(family, {"messages": [ASKED, answer("", tool_calls=CALLS)]})


def test_more_texts_than_there_are_marks_are_refused() -> None:
    calls = [{"function": {"name": "weather", "arguments": {"places": ["x"] * 22_000}}}]
    with pytest.raises(BadLine, match="expected at most 2"):
        learned(QWEN, {"messages": [ASKED, answer("", tool_calls=calls)]})
