"""From a line of data to its texts, and what of them the loss counts: text, completion, chat."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from train.config.config import Config, Learn
from train.config.datasets import IN_LINES, Dataset
from train.data import pairs
from train.data.chat.messages import (
    ROLES,
    Task,
    are_parts,
    has_answer,
    messages_of,
    renamed,
    structured,
    text_of,
    tools_of,
    with_system,
)
from train.data.chat.pictures import Source, as_parts, given, placed
from train.data.chat.template import Chat, ChatTemplate
from train.data.files.bad_line import NO_UTF8, BadLine

if TYPE_CHECKING:
    from train.data.images import Picture

VERSION = 13
"""Part of the token cache's key: raise it when the same line would give other tokens
or the files of the cache change."""
TEXT = ("text",)
FORMS = (
    ("messages",), ("conversations",), ("instruction", "output"), ("prompt", "completion"),
    TEXT, ("prompt", "response"), ("question", "answer"), ("input", "output"),
)  # fmt: skip
"""The keys that make each form; of two in one line the first one counts."""
CHATS = (("messages",), ("conversations",))


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A stretch of text that is tokenized by itself."""

    text: str
    special: bool
    """Whether it is the beginning of a text: the tokenizer's own begin mark comes before it."""
    spans: tuple[tuple[int, int], ...] | Literal["all", "none"]
    """Which characters the loss counts."""
    within: bool = False
    """Whether there is text before it: then it does not begin with a space of the tokenizer's."""
    literal: bool = False
    """Whether a special token in it is text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A line as pieces of text, in order."""

    pieces: tuple[Piece, ...]
    ends: bool
    """Whether the end-of-text token is appended (and counts); a chat's template has its own."""
    splits: bool
    """Whether what is too long continues in a further sample, or is cut."""
    chat: Chat | None = None
    """The chat that it is."""
    literals: tuple[tuple[int, int], ...] = ()
    """Where its only piece has special tokens that are text."""
    sources: tuple[Source, ...] = ()
    """Its images as the line names them."""
    pictures: tuple[Picture, ...] = ()
    """The same, opened once; then the text has their tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What decides how the lines of a data set are read, besides their tokenizer."""

    columns: Mapping[str, str] = field(default_factory=dict)
    """Keys that are read → the columns that have them."""
    roles: Mapping[str, str] = field(default_factory=dict)
    """Names of roles → roles."""
    learn: Learn = "all"
    split_special_tokens: bool = False
    image_dir: str | None = None
    pairs: bool = False
    """Whether a line has a chosen and a rejected answer."""

    @classmethod
    def of(cls, config: Config, dataset: Dataset | None = None) -> Rules:
        """Return a data set's own, or those of the configuration."""
        columns = dataset.columns if dataset and dataset.columns else config.columns
        roles = dataset.roles if dataset and dataset.roles else config.roles
        return cls(
            columns=columns or {},
            roles=roles or {},
            learn=config.learn,
            split_special_tokens=config.split_special_tokens,
            image_dir=config.image_dir,
            pairs=config.in_pairs,
        )

    @property
    def columns_of_lines(self) -> dict[str, str]:
        """Return the columns that are not of messages."""
        return {key: name for key, name in self.columns.items() if key in IN_LINES}

    def form_of(self, record: dict[str, Any]) -> tuple[str, ...]:
        """Return the keys of a record's form, () if it has none: mapped keys come first."""
        forms: tuple[tuple[str, ...], ...] = pairs.FORMS if self.pairs else FORMS
        if "instruction" in record and not self.pairs:
            forms = FORMS[:-1]  # an instruction's input is a part of the question
        there = (form for form in forms if all(key in record for key in form))
        if not self.columns:
            return next(there, ())
        return max(there, key=lambda form: sum(key in self.columns for key in form), default=())

    def record_of(self, line: bytes | BadLine) -> dict[str, Any]:
        """Return the JSON object of a line, its columns under the keys that are read."""
        found = record_of(line)
        record = renamed(found, self.columns_of_lines) if self.columns else found
        record = structured(record)
        if self.form_of(record):
            return record
        keys = ", ".join(map(str, found)) or "(none)"
        forms = ", ".join(" with ".join(form) for form in FORMS if form != TEXT)
        wanted, way = f"text, {forms}", ""
        if self.pairs:
            wanted = "chosen and rejected, with prompt, messages or instruction"
        elif pairs.ANSWERS[0] in record:
            way = "; objective: dpo or orpo learns from pairs"
        raise BadLine(
            f"expected {wanted} (or columns that name others), found the keys {keys}{way}"
        )


def named(config: Config) -> Iterator[tuple[str, str, Rules]]:
    """Yield key, path or hub id, and rules of each data set; the one to evaluate on is last."""
    for each in config.datasets:
        yield "dataset_path", each.path, Rules.of(config, each)
    if config.eval_dataset_path:
        yield "eval_dataset_path", config.eval_dataset_path, Rules.of(config)


class Reader:
    """Reads lines for one tokenizer."""

    def __init__(
        self,
        tokenizer: Any,
        template_arguments: Mapping[str, Any] | None = None,
        rules: Rules | None = None,
    ) -> None:
        """Take a tokenizer, and what its chat template is given besides messages and tools."""
        self._template = ChatTemplate(tokenizer, template_arguments)
        self._ends = _ends_of(tokenizer)
        self._rules = rules or Rules()
        self._vision = getattr(tokenizer, "vision", None)

    def read(self, line: bytes | BadLine, where: str = "") -> Document:
        """Return what a line says that has no pair."""
        (document,) = self.read_all(line, where)
        return document

    def read_all(self, line: bytes | BadLine, where: str = "") -> list[Document]:
        """Return what a line says: of a pair the chosen and the rejected text.

        `where` is its `file:line`, next to which its images are.
        """
        record = self._rules.record_of(line)
        form = self._rules.form_of(record)
        rules = replace(self._rules, pairs=False)
        records = pairs.halves(record, form) if self._rules.pairs else [record]
        documents = []
        for name, each in zip(pairs.ANSWERS, records, strict=False):
            try:
                documents.append(self._document(each, rules.form_of(each)))
            except BadLine as error:
                raise BadLine(f"{name}: {error}" if self._rules.pairs else str(error)) from None
        if given(record) and not documents[0].sources:
            raise BadLine("images: expected messages that they are in, found text")
        if self._vision:
            folder = Path(self._rules.image_dir or Path(where.rpartition(":")[0]).parent)
            documents = [self._vision.fill(each, where, folder) for each in documents]
        try:
            for piece in (piece for document in documents for piece in document.pieces):
                piece.text.encode()
        except UnicodeEncodeError as error:
            found = f"half a character, {error.object[error.start]!r}"
            raise BadLine(f"expected text, found {found}") from None
        return documents

    def _document(self, record: dict[str, Any], form: tuple[str, ...]) -> Document:
        match form:
            case ("messages" | "conversations" as key,):
                return self._chat(record, self._messages(key, record[key]))
            case ("prompt", answer) if any(map(_are_messages, (record["prompt"], record[answer]))):
                prompt = self._turns("prompt", record["prompt"], "user")
                completion = self._turns(answer, record[answer], "assistant")
                return self._chat(record, [*prompt, *completion], learn_from=len(prompt))
            case ("prompt", "completion"):
                return self._completion(record)
            case (asked, answered):
                return self._task(record, asked, answered)
        text = _text(record, "text")
        return self._text((Piece(text=text, special=True, spans="all"),), splits=True)

    def _messages(self, key: str, found: Any) -> list[dict[str, Any]]:
        return messages_of(key, found, self._rules.columns, self._rules.roles)

    def _turns(self, key: str, found: Any, role: str) -> list[dict[str, Any]]:
        """Return messages; a text alone is one of this role."""
        if _are_messages(found):
            return self._messages(key, found)
        return [{"role": role, "content": _text({key: found}, key)}]

    def _task(self, record: dict[str, Any], asked: str, answered: str) -> Document:
        """Return a task as a chat, as LLaMA-Factory does; without a template in Alpaca's words."""
        task = Task.of(record, asked, answered)
        if self._template.exists:
            return self._chat(record, task.messages())
        return self._text(_pieces(task.prompt(), task.output))

    def _completion(self, record: dict[str, Any]) -> Document:
        prompt = text_of("prompt", record["prompt"])
        if not isinstance(prompt, str):
            raise BadLine(f"prompt: expected text, found {type(prompt).__name__}")
        for key in ("system", "history"):
            if record.get(key):
                wanted = f"{key}: expected messages, or instruction with output, next to it"
                raise BadLine(f"{wanted}; found prompt with completion, which is text")
        return self._text(_pieces(prompt, _text(record, "completion")))

    def _text(self, pieces: tuple[Piece, ...], *, splits: bool = False) -> Document:
        ends = not pieces[-1].text.rstrip().endswith(self._ends)
        return Document(pieces=pieces, ends=ends, splits=splits)

    def _chat(
        self, record: dict[str, Any], messages: list[dict[str, Any]], *, learn_from: int = 0
    ) -> Document:
        before = len(messages)
        messages = with_system(messages, record.get("system", ""))
        messages, sources = placed(messages, given(record))
        if sources and self._rules.pairs:
            raise BadLine(
                "images: expected pairs of texts, found an image; objective: sft has both"
            )
        if sources and not self._vision:
            wanted = "a model that sees images, with its preprocessor_config.json"
            raise BadLine(f"images: expected {wanted}, found one of text")
        learn_from += len(messages) - before
        answers = [at for at, message in enumerate(messages) if message["role"] == "assistant"]
        if messages and not answers:
            raise BadLine(_no_answer(messages))
        if answers and self._rules.learn == "last":
            learned = [at for at in answers if has_answer(messages[at])]
            learn_from = max(learn_from, (learned or answers)[-1])
        chat = self._template.write(
            messages,
            tools=tools_of(record),
            arguments=record.get("chat_template_kwargs"),
            learn_from=learn_from,
        )
        if self._rules.split_special_tokens and chat.hidden:
            wanted = (
                "expected a place that the chat template shows for the special tokens of a text"
            )
            raise BadLine(f"messages: {wanted}, found none for {chat.hidden[0]}")
        return Document(
            pieces=(Piece(text=chat.text, special=False, spans=chat.spans),),
            ends=False,
            splits=False,
            chat=chat,
            literals=chat.literals if self._rules.split_special_tokens else (),
            sources=tuple(sources),
        )


def _are_messages(value: Any) -> bool:
    return isinstance(value, list) and not are_parts(value)


def _no_answer(messages: list[dict[str, Any]]) -> str:
    """Say that no message is an answer, and which of the roles may be meant."""
    found = list(dict.fromkeys(message["role"] for message in messages))
    said = "messages: expected an answer of the role assistant to learn, found the roles "
    strange = next((role for role in found if role.casefold() not in ROLES), None)
    hint = f" (roles: {{{strange}: assistant}} maps one)" if strange else ""
    return f"{said}{', '.join(found)}{hint}"


def is_chat(record: dict[str, Any], rules: Rules) -> bool:
    """Whether only a chat template can write a record."""
    form = rules.form_of(record)
    if rules.pairs:
        return isinstance(record["chosen"], (dict, list))
    return form in CHATS or (
        form[:1] == ("prompt",) and any(_are_messages(record[k]) for k in form)
    )


def record_of(line: bytes | BadLine) -> dict[str, Any]:
    """Return the JSON object of a line without nulls, which mean the same as missing keys."""
    if isinstance(line, BadLine):
        raise line
    try:
        record = json.loads(
            line, object_hook=lambda found: {k: v for k, v in found.items() if v is not None}
        )
    except UnicodeDecodeError as error:
        found = f"{error.object[error.start]:#x} (Windows-1252 or Latin-1?)"
        raise BadLine(f"{NO_UTF8}, found byte {found}") from None
    except (ValueError, RecursionError) as error:  # also too long a number, too many brackets
        found = str(error)
        if isinstance(error, json.JSONDecodeError):
            column = min(error.pos, len(error.doc.rstrip())) + 1
            found = f"{error.msg} (column {column})"
        raise BadLine(f"expected a JSON object, found: {found}") from None
    if not isinstance(record, dict):
        raise BadLine(f"expected a JSON object, found {type(record).__name__}")
    return record


def _text(record: dict[str, Any], key: str) -> str:
    value = text_of(key, record[key])
    if not isinstance(value, str) or not value.strip():
        found = "nothing" if value == "" else repr(value)[:40]
        raise BadLine(f"{key}: expected some text, found {found}")
    return value


def _pieces(prompt: str, answer: str) -> tuple[Piece, Piece]:
    return (
        Piece(text=prompt, special=True, spans="none"),
        Piece(text=answer, special=False, spans="all"),
    )


def _ends_of(tokenizer: Any) -> tuple[str, ...]:
    """Return the tokens that end a text, or an answer: what has one already gets no other."""
    eos = (tokenizer.eos_token,) if tokenizer.eos_token else ()
    if not tokenizer.chat_template:
        return eos
    mark = "(the answer)"
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": mark}]
    chat = list(map(as_parts, chat)) if getattr(tokenizer, "vision", None) else chat
    try:
        _, _, after = tokenizer.apply_chat_template(chat, tokenize=False).partition(mark)
    except Exception:  # noqa: BLE001  (templates raise what they like; chats will tell)
        return eos
    added = tokenizer.added_tokens_decoder.values()
    special = [str(token.content) for token in added if token.special]
    there = sorted((after.find(token), token) for token in special if token in after)
    return (*eos, *(token for _, token in there[:1]))
