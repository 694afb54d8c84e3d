"""Records as other programs have them: the messages that the chat template is given for them."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from train.data import formats
from train.data.chat.template import Chat, ChatTemplate
from train.data.files.bad_line import BadLine
from train.data.formats import Document, Reader, Rules

HI = {"role": "user", "content": "Hi"}
YES = {"role": "assistant", "content": "Yes"}


class Tokenizer:
    """As much of one as reading a line takes."""

    chat_template = "{{ messages }}"
    eos_token = "<eos>"
    added_tokens_decoder: dict[int, Any] = {}  # noqa: RUF012  (nothing writes into it)

    def apply_chat_template(self, messages: list[Any], **_: object) -> str:
        return str(messages)


class Bare(Tokenizer):
    """One without a template."""

    chat_template = ""


class Asked(NamedTuple):
    """What a chat template was asked to write."""

    messages: list[dict[str, Any]]
    tools: Any
    learn_from: int


def asked(record: dict[str, Any], **rules: Any) -> Asked:
    """Return what the chat template is asked to write for a record."""
    found: list[Asked] = []

    class Template(ChatTemplate):
        def write(
            self, messages: Any, *, tools: Any = None, arguments: Any = None, learn_from: int = 0
        ) -> Chat:
            assert arguments is None
            found.append(Asked(messages, tools, learn_from))
            return Chat(text="", answers=(), literals=(), hidden=(), unlearned={})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(formats, "ChatTemplate", Template)
        Reader(Tokenizer(), None, Rules(**rules)).read(json.dumps(record).encode())
    (only,) = found
    return only


def plain(record: dict[str, Any], **rules: Any) -> Document:
    """Return a record as text."""
    return Reader(Bare(), None, Rules(**rules)).read(json.dumps(record).encode())


def refusal(record: dict[str, Any], **rules: Any) -> str:
    with pytest.raises(BadLine) as caught:
        asked(record, **rules)
    return str(caught.value)


@pytest.mark.parametrize(
    "off", [{"weight": 0}, {"train": False}, {"training": False}, {"weight": 1, "train": True}]
)
def test_what_switches_an_answer_off_reaches_the_template(off: dict[str, Any]) -> None:
    wanted = [HI, YES | off]
    assert asked({"messages": wanted}).messages == wanted
    sharegpt = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Yes", **off}]
    for key in ("conversations", "messages"):
        assert asked({key: sharegpt}).messages == wanted
    assert asked({"prompt": [HI], "completion": [YES | off]}) == Asked(wanted, None, 1)


@pytest.mark.parametrize(
    ("off", "said"),
    [
        ({"weight": 0.5}, "message 2: weight: expected 0 or 1, found 0.5"),
        ({"weight": "0"}, "message 2: weight: expected 0 or 1, found '0'"),
        ({"train": "no"}, "message 2: train: expected true or false, found 'no'"),
        ({"training": 2}, "message 2: training: expected true or false, found 2"),
    ],
)
def test_a_weight_that_is_neither_0_nor_1_is_refused(off: dict[str, Any], said: str) -> None:
    assert said in refusal({"messages": [HI, YES | off]})
    assert said in refusal(
        {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Y", **off}]}
    )


def test_history_becomes_earlier_turns_whose_answers_are_learned() -> None:
    task = {
        "instruction": "And now?",
        "output": "Yes",
        "system": "Be kind.",
        "history": [["Hi", "Hello"], ["Why?", "So."]],
    }
    found = asked(task)
    assert [message["content"] for message in found.messages] == [
        "Be kind.", "Hi", "Hello", "Why?", "So.", "And now?", "Yes",
    ]  # fmt: skip
    roles = [message["role"] for message in found.messages]
    assert roles == ["system", *["user", "assistant"] * 3]
    assert found.learn_from == 0
    with pytest.raises(BadLine, match="history: expected a tokenizer with a chat template"):
        plain(task)
    assert plain(task | {"history": []}).pieces
    for wrong in ("Hi", [["Hi"]], [{"user": "Hi"}], [["Hi", 3]]):
        assert "history: " in refusal(task | {"history": wrong})


@pytest.mark.parametrize(
    "record",
    [
        {"text": "abc", "messages": None},
        {"text": "abc", "prompt": None, "completion": None},
        {"text": "abc", "instruction": "a", "output": None, "conversations": None},
    ],
)
def test_a_null_is_a_missing_key(record: dict[str, Any]) -> None:
    (piece,) = plain(record).pieces
    assert piece.text == "abc"


def test_nulls_within_a_value_are_missing_too() -> None:
    # as datasets.to_json writes them, where other rows have these keys
    record = {
        "text": None,
        "tools": None,
        "messages": [
            HI | {"tool_calls": None, "weight": None},
            {"role": "assistant", "content": None, "tool_calls": [{"function": {
                "name": "f", "arguments": {"a": 1, "b": None},
            }}]},
        ],
    }  # fmt: skip
    called = {"function": {"name": "f", "arguments": {"a": 1}}}
    assert asked(record).messages == [HI, {"role": "assistant", "tool_calls": [called]}]


def test_parts_of_text_are_joined_and_others_refused_by_their_type() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    image = [*parts, {"type": "image_url", "image_url": {"url": "x"}}]
    assert [piece.text for piece in plain({"prompt": parts, "completion": "c"}).pieces] == [
        "ab", "c",
    ]  # fmt: skip
    assert [piece.text for piece in plain({"text": parts}).pieces] == ["ab"]
    found = asked({"prompt": [HI], "completion": parts}).messages
    assert found == [HI, {"role": "assistant", "content": "ab"}]
    found = asked({"instruction": parts, "output": "c"}).messages
    assert found[0]["content"] == "ab"
    found = asked({"conversations": [{"from": "human", "value": parts}, YES]}).messages
    assert found == [{"role": "user", "content": "ab"}, YES]
    for record in (
        {"prompt": image, "completion": "c"},
        {"prompt": "a", "completion": image},
        {"question": image, "answer": "c"},
        {"conversations": [{"from": "human", "value": image}, YES]},
        {"messages": [HI, YES], "system": image},
    ):
        assert "expected parts of type text, found type image_url" in refusal(record)


def test_messages_and_text_may_be_a_prompt_and_its_completion() -> None:
    chat = Asked([HI, YES], None, 1)
    assert asked({"prompt": [HI], "completion": "Yes"}) == chat
    assert asked({"prompt": "Hi", "completion": [YES]}) == chat
    assert asked({"prompt": [HI], "response": "Yes"}) == chat
    system = {"role": "system", "content": "Be kind."}
    found = asked({"prompt": [HI], "completion": [YES], "system": "Be kind."})
    assert found == Asked([system, HI, YES], None, 2)


@pytest.mark.parametrize(
    ("question", "answer"), [("prompt", "response"), ("question", "answer"), ("input", "output")]
)
def test_a_question_with_its_answer_is_a_chat(question: str, answer: str) -> None:
    record = {question: "Hi", answer: "Yes"}
    assert asked(record).messages == [HI, YES]
    assert asked(record | {"system": "Be kind."}).messages[0]["content"] == "Be kind."
    first, second = plain(record).pieces
    assert "### Instruction:\nHi\n\n### Response:\n" in first.text
    assert second.text == "Yes"
    assert refusal({question: "Hi", answer: " "}) == f"{answer}: expected some text, found nothing"
    (piece,) = plain(record | {"text": "abc"}).pieces
    assert piece.text == "abc"


def test_roles_of_other_programs_are_those_of_templates() -> None:
    names = {
        "System": "system", "USER": "user", "human": "user", "Assistant": "assistant",
        "gpt": "assistant", "bot": "assistant", "model": "assistant", "function": "tool",
        "observation": "tool", "developer": "developer", "critic": "critic",
    }  # fmt: skip
    messages = [{"role": name, "content": name} for name in names]
    assert asked({"messages": messages}).messages == [
        {"role": role, "content": name} for name, role in names.items()
    ]


def test_calls_as_openai_wrote_them_before() -> None:
    call = {"name": "f", "arguments": "{}"}
    function = {"name": "f", "parameters": {}}
    record = {
        "messages": [
            HI,
            {"role": "assistant", "content": None, "function_call": call},
            {"role": "function", "name": "f", "content": "3"},
            YES,
        ],
        "functions": [function],
    }
    calls = [{"type": "function", "function": call}]
    found = asked(record)
    assert found.messages == [
        HI,
        {"role": "assistant", "tool_calls": calls},
        {"role": "tool", "name": "f", "content": "3"},
        YES,
    ]
    assert found.tools == [{"type": "function", "function": function}]
    assert asked(record | {"tools": [function]}).tools == [function]
    assert asked(record | {"functions": ["abs"]}).tools is None


def test_columns_and_roles_are_mapped() -> None:
    columns = {"messages": "chat", "role": "speaker", "content": "said", "tools": "can"}
    record = {
        "chat": [{"speaker": "visitor", "said": "Hi"}, {"speaker": "host", "said": "Yes"}],
        "can": [{"type": "function"}],
        "messages": [HI, YES, HI, YES],
        "text": "abc",
    }
    roles = {"visitor": "user", "host": "assistant"}
    found = asked(record, columns=columns, roles=roles)
    assert found == Asked([HI, YES], [{"type": "function"}], 0)
    said = refusal(record, columns=columns, roles={"visitor": "user"})
    assert said == (
        "messages: expected an answer of the role assistant to learn, found the roles user, host "
        "(roles: {host: assistant} maps one)"
    )
    pair = {"q": "Hi", "a": "Yes", "messages": [HI, HI]}
    assert plain(pair, columns={"prompt": "q", "completion": "a"}).pieces[1].text == "Yes"
    assert asked(pair, columns={"question": "q", "answer": "a"}).messages == [HI, YES]
    # what is mapped is never read from elsewhere
    assert "found the keys text, title" in refusal(
        {"text": "a title", "title": "b"}, columns={"text": "body"}
    )


def test_without_an_answer_the_roles_are_named() -> None:
    assert refusal({"messages": [HI, {"role": "ai", "content": "Yes"}]}) == (
        "messages: expected an answer of the role assistant to learn, found the roles user, ai "
        "(roles: {ai: assistant} maps one)"
    )
    assert refusal({"messages": [HI]}).endswith("found the roles user")
    alien = refusal({"conversations": [{"from": "alien", "value": "Hi"}]})
    assert alien.endswith("found alien (roles: {alien: user} maps it)")
    mapped = {"conversations": [{"from": "alien", "value": "Hi"}, YES]}
    assert asked(mapped, roles={"alien": "user"}).messages == [HI, YES]


def test_only_the_last_answer_may_be_learned() -> None:
    chat = [HI, YES, HI, YES, HI]
    assert asked({"messages": chat}).learn_from == 0
    assert asked({"messages": chat}, learn="last").learn_from == 3
    assert asked({"messages": chat, "system": "Be kind."}, learn="last").learn_from == 4
    assert asked({"prompt": [HI], "completion": [YES]}, learn="last").learn_from == 1
    task = {"instruction": "a", "output": "b", "history": [["c", "d"]]}
    assert asked(task, learn="last").learn_from == 3


def test_what_a_text_has_no_place_for_is_not_dropped() -> None:
    for extra in ({"system": "Be kind."}, {"history": [["a", "b"]]}):
        (key,) = extra
        assert f"{key}: expected messages" in refusal({"prompt": "a", "completion": "b", **extra})
    assert plain({"prompt": "a", "completion": "b", "system": "", "history": []}).pieces


NAMES = st.sampled_from(["a", "b", "text", "prompt", "completion", "messages", "instruction"])


@settings(deadline=None)
@given(
    st.dictionaries(NAMES, st.text("xyz", min_size=1), min_size=1),
    st.dictionaries(st.sampled_from(["text", "prompt", "completion"]), NAMES),
)
def test_a_mapped_key_has_the_value_of_its_column_or_none(
    record: dict[str, str], columns: dict[str, str]
) -> None:
    rules = Rules(columns=columns)
    try:
        found = rules.record_of(json.dumps(record).encode())
    except BadLine:
        return
    for key, column in columns.items():
        assert found.get(key) == record.get(column)
    for key in found.keys() - columns.keys():
        assert found[key] == record[key]
        assert key not in columns.values()


@pytest.mark.parametrize("columns", [{"input": "context"}, {"input": "context", "output": "said"}])
def test_a_mapped_input_is_a_part_of_its_instruction(columns: dict[str, str]) -> None:
    record = {"instruction": "Who?", "context": "Of these", columns.get("output", "output"): "Me"}
    question, answer = asked(record, columns=columns).messages
    assert question["content"] == "Who?\nOf these"
    assert answer["content"] == "Me"


def test_a_call_without_a_text_is_refused() -> None:
    chat = [HI, {"role": "function_call", "content": None}, YES]
    assert "message 2: expected a call as JSON" in refusal({"messages": chat})


def test_lists_may_be_json_text_as_in_the_cells_of_a_table() -> None:
    chat = [HI, YES]
    assert asked({"chat": json.dumps(chat)}, columns={"messages": "chat"}).messages == chat
    task = {"instruction": "Hi", "output": "Yes", "history": "", "tools": "", "functions": ""}
    assert asked(task).messages == chat
    task["history"] = json.dumps([["a", "b"]])
    assert len(asked(task).messages) == 4


def test_a_turn_of_sharegpt_without_a_value_is_an_empty_answer() -> None:
    turns = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": None}]
    assert asked({"conversations": turns}).messages == [HI, YES | {"content": ""}]


@pytest.mark.parametrize("last", [YES | {"weight": 0}, YES | {"content": ""}])
def test_the_last_answer_is_the_last_one_to_be_learned(last: dict[str, Any]) -> None:
    assert asked({"messages": [HI, YES, HI, YES, HI, last]}, learn="last").learn_from == 3
