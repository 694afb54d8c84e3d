"""Chats of every kind in every template: exactly what a chat says is learned, or it is refused."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.train.data.chat_kinds import TOOLS, Kind, call, kinds
from tests.train.data.chat_oracle import (
    Answer,
    Expected,
    TemplateError,
    causes,
    expected,
    shown,
    tokenizer_of,
)
from tests.train.data.chat_templates import GROUPS, TEMPLATES
from train.data.chat.template import ChatTemplate
from train.data.encoding import encode
from train.data.files.bad_line import BadLine
from train.data.formats import Reader

pytestmark = pytest.mark.torch

ROOT = Path(__file__).parents[3]
REASONS = {
    "system": "system",
    "tool": r"\btool\b",
    "tools": "^tools:",
    "calls": "call|an answer, is not to be found",
    "start": "the model is given",
    "nothing": "expected (an answer|some text)",
}
"""What a refusal says about what the template leaves out."""


def complaint(name: str, kind: Kind) -> str:
    """Return what train/ gets wrong about a chat; nothing if it is right."""
    family = TEMPLATES[name]
    reasons = causes(family, kind)
    template = ChatTemplate(tokenizer_of(family))
    try:
        chat = template.write(kind.messages, tools=kind.tools, arguments=kind.arguments)
    except BadLine as error:
        if not reasons:
            return f"refused: {error}"
        patterns = [
            REASONS.get(reason) or re.escape(reason.removeprefix("template: "))
            for reason in reasons
        ]
        found = any(re.search(pattern, str(error)) for pattern in patterns)
        return "" if found else f"refused for {reasons}, and says: {error}"
    if reasons:
        return f"learned, although the template leaves out {reasons}"
    wrong = [each.wrong(chat.text, chat.spans) for each in expected(family, kind)]
    return "" if "" in wrong else wrong[0]


@pytest.mark.parametrize("name", TEMPLATES)
def test_each_kind_of_chat_is_learned_exactly_or_refused(name: str) -> None:
    found = {each: complaint(name, kind) for each, kind in kinds(TEMPLATES[name]).items()}
    wrong = [f"{each}: {said}" for each, said in found.items() if said]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("name", "each"),
    [
        (name, each)
        for name in ("glm", "qwen", "llama", "mistral-nemo", "gpt-oss", "deepseek-r1", "phi3")
        for each in ("several turns", "an answer that its thoughts have", "emoji", "weight 0")
    ]
    + [(name, "a call") for name in ("glm", "qwen", "llama", "gpt-oss", "deepseek-r1")],
)
def test_the_tokens_that_are_learned_are_the_characters(name: str, each: str) -> None:
    family = TEMPLATES[name]
    kind = kinds(family)[each]
    tokenizer = tokenizer_of(family)
    document = Reader(tokenizer, {}).read(json.dumps({"messages": kind.messages}).encode())
    ((sample,),) = encode([document], tokenizer, 4000)
    runs: list[list[int]] = []
    before = False
    for token, counts in zip(sample.ids, sample.loss_mask, strict=True):
        if counts:
            runs = runs if before else [*runs, []]
            runs[-1].append(token)
        before = bool(counts)
    said = "¦".join(tokenizer.decode(run) for run in runs)
    wanted = expected(family, kind)
    assert said in {shown(one.text, places) for one in wanted for places in (one.must, one.may)}
    # (a mark of Phi 3 has the line break after it)
    whole = tokenizer.decode(sample.ids).split()
    assert "".join(whole) in {"".join(one.text.split()) for one in wanted}


def test_the_oracle_accepts_nothing_else() -> None:
    one = Expected(text="Q: a A: <think>b.", answers=(Answer(begin=8, own=15, end=17),))
    assert one.wrong(one.text, ((15, 17),)) == one.wrong(one.text, ((8, 17),)) == ""
    assert one.wrong(f"{one.text} ", ((15, 17),)).startswith("the text is")
    for spans in [(), ((15, 16),), ((16, 17),), ((7, 17),), ((15, 17), (3, 4))]:
        assert one.wrong(one.text, spans).startswith("learned ")
    with pytest.raises(TemplateError, match="one call only"):
        expected(TEMPLATES["llama"], kinds(TEMPLATES["llama"])["two calls in one answer"])
    assert causes(TEMPLATES["zephyr"], kinds(TEMPLATES["zephyr"])["a call, with tools"])


PIECES = [
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "<|im_end|>", "<|im_start|>"),
    *("<|user|>", "<|assistant|>", "</s>", "[INST]", "[/INST]", "<|end|>", "<|eot_id|>"),
    *("<end_of_turn>", "<\uff5cAssistant\uff5c>", "<|channel|>", "<|return|>", "\n\nUser:"),
    *("ASSISTANT:", "weather", "🙂"),
    *("user", "assistant", "model", "system", "\n", "\n\n", " ", "a", "4", "<", ">", "{", '"', "é"),
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=5).map("".join)


@st.composite
def chats(draw: st.DrawFn) -> Kind:
    """Return a chat with texts that templates might take for their own."""
    messages: list[dict[str, Any]] = []
    if draw(st.booleans()):
        messages.append({"role": "system", "content": draw(TEXTS)})
    for _ in range(draw(st.integers(1, 3))):
        messages.append({"role": "user", "content": draw(TEXTS)})
        if draw(st.integers(0, 3)) == 0:
            asked = call({"place": draw(TEXTS), draw(TEXTS): 1})
            messages.append({"role": "assistant", "content": draw(TEXTS), "tool_calls": [asked]})
            messages.append({"role": "tool", "tool_call_id": asked["id"], "content": draw(TEXTS)})
        answer = {"role": "assistant", "content": draw(TEXTS)}
        if draw(st.integers(0, 2)) == 0:
            answer["reasoning_content"] = draw(TEXTS)
        messages.append(answer)
    return Kind(
        messages=messages,
        tools=draw(st.sampled_from([None, None, TOOLS])),
        arguments=draw(st.sampled_from([{}, {}, {"enable_thinking": False}])),
    )


@pytest.mark.parametrize("group", GROUPS)
@settings(max_examples=settings().max_examples // 2)
@given(data=st.data(), kind=chats())
def test_whatever_the_texts_are_only_answers_are_learned(
    group: str, data: st.DataObject, kind: Kind
) -> None:
    family = TEMPLATES[data.draw(st.sampled_from(sorted(GROUPS[group])), label="template")]
    template = ChatTemplate(tokenizer_of(family))
    try:
        chat = template.write(kind.messages, tools=kind.tools, arguments=kind.arguments)
    except BadLine:
        return
    wrong = [each.wrong(chat.text, chat.spans) for each in expected(family, kind)]
    assert "" in wrong, wrong[0]


def test_the_page_is_what_the_templates_do() -> None:
    path = ROOT / "docs" / "make_chat_templates.py"
    spec = importlib.util.spec_from_file_location("make_chat_templates", path)
    assert spec
    assert spec.loader
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    page = (ROOT / "docs" / "reference" / "chat-templates.md").read_text(encoding="utf-8")
    assert page == script.render(), "run python docs/make_chat_templates.py"
