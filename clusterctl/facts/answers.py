"""Unpacks the raw answers of a node's `read`: bytes by name, and how each question ended."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import field
from types import NoneType
from typing import Any, TypeVar

from clusterctl.facts.request import FactRequest
from clusterctl.model.from_json import LARGEST
from clusterctl.values import dataclass
from clusterctl.wire import Message

T = TypeVar("T")
SIZE_LIMIT = 64 * 1024 * 1024
"""The largest inflated body, in bytes."""
ANSWER_LIMIT = 9 * 1024 * 1024
"""The largest answer, in bytes; a node stops reading at 8 MiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One question's answer."""

    state: str
    """`ok`, `absent`, `denied`, `error`, `timeout`, `too-long`, or `not-asked`."""
    data: bytes = b""
    exit_code: int | None = None
    seconds: float = 0.0
    words: str = ""

    @property
    def text(self) -> str:
        """The bytes as text; invalid ones are replaced."""
        return self.data.decode("utf-8", "replace")

    @property
    def good(self) -> bool:
        """The file was read, or the program exited with 0."""
        return self.state == "ok" and self.exit_code in {None, 0}

    def why(self) -> str:
        """Return why there is no answer, as text for the user."""
        if self.state == "timeout":
            return f"no answer within {self.seconds:.0f} s"
        if self.state == "ok" and self.exit_code:
            tail = (self.words or self.text).strip().splitlines()
            return f"exit code {self.exit_code}" + (f": {tail[-1].strip()}" if tail else "")
        return self.words or self.state


NOT_ASKED = Answer(state="not-asked")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """All answers of one node, by key: `file:PATH`, `link:PATH`, `path:PATH`, `command:KEY`.

    The node sends the small files of a folder as one answer; each is a file here.
    """

    by_key: Mapping[str, Answer]
    wanted: FactRequest = field(default_factory=FactRequest)
    """What was asked."""
    _known: dict[object, Any] = field(default_factory=dict, compare=False, repr=False)
    """What several facts are parsed from."""

    @classmethod
    def of(cls, message: Message) -> Answers:
        """Unpack an answer of `read`; raise ValueError if it is not one."""
        inflater = zlib.decompressobj()
        try:
            data = inflater.decompress(message.body, SIZE_LIMIT)
        except zlib.error as error:
            raise ValueError(f"the answer's body is not deflated bytes: {error}") from error
        found: dict[str, Answer] = {}
        start = 0
        try:
            for key, state, size, exit_code, seconds, words in message.head["answers"]:
                if type(size) is not int or type(exit_code) not in {int, NoneType}:
                    raise TypeError((size, exit_code))  # noqa: TRY301  (caught below)
                if not 0 <= size <= ANSWER_LIMIT:
                    raise ValueError(f"{size} bytes")  # noqa: TRY301  (caught below)
                answer = Answer(
                    state=str(state),
                    data=data[start : start + size],
                    exit_code=exit_code,
                    seconds=float(seconds),
                    words=str(words),
                )
                start += size
                if str(key).startswith("folder:"):
                    found.update(_files_of(str(key).removeprefix("folder:"), answer))
                else:
                    found[str(key)] = answer
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"the answer's head is not valid: {error!r}") from error
        return cls(by_key=found)

    def file(self, path: str) -> Answer:
        """Return the answer for a file."""
        return self.by_key.get("file:" + path, NOT_ASKED)

    def command(self, key: str) -> Answer:
        """Return the answer for a program."""
        return self.by_key.get("command:" + key, NOT_ASKED)

    def text(self, path: str) -> str | None:
        """Return a file's text; None if it could not be read."""
        answer = self.file(path)
        return answer.text if answer.good else None

    def word(self, path: str) -> str | None:
        """Return a one-line file without its newline; None if it is empty or could not be read."""
        return (self.text(path) or "").strip() or None

    def number(self, path: str) -> int | None:
        """Return the number in a file; None if it has none, or one that no record may hold."""
        try:
            number = int(self.word(path) or "")
        except ValueError:
            return None
        return number if abs(number) < LARGEST else None

    def once(self, parse: Callable[[Answers], T]) -> T:
        """Return what a parser makes of these answers; it is called once for all that need it."""
        if parse not in self._known:
            self._known[parse] = parse(self)
        known: T = self._known[parse]
        return known

    def object(self, key: str) -> Mapping[str, Any]:
        """Return an answer that is a JSON object; an empty one if it is not."""
        if key not in self._known:
            value = self.json(key)
            self._known[key] = value if isinstance(value, dict) else {}
        known: Mapping[str, Any] = self._known[key]
        return known

    def why(self, key: str) -> str:
        """Return why there is no answer to a question, as text for the user."""
        return self.by_key.get(key, NOT_ASKED).why()

    def below(self, folder: str) -> dict[str, Answer]:
        """Return the files read below a folder, by the rest of their path."""
        start = "file:" + folder
        return {key[len(start) :]: a for key, a in self.by_key.items() if key.startswith(start)}

    def json(self, key: str) -> Any:  # noqa: ANN401  (JSON is what it is)
        """Return an answer that is a JSON document; None if it is not."""
        answer = self.by_key.get(key, NOT_ASKED)
        if not answer.good:
            return None
        try:
            return json.loads(answer.data)
        except (ValueError, RecursionError):
            return None


def _files_of(folder: str, answer: Answer) -> dict[str, Answer]:
    """Return the files in the answer for a folder, which are lines `NAME VALUE`."""
    pairs = (line.partition(b" ") for line in answer.data.splitlines() if b" " in line)
    return {
        f"file:{folder}/{name.decode('utf-8', 'replace')}": Answer(state="ok", data=value)
        for name, _, value in pairs
    }
