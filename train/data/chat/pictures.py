"""The images of a chat: each program's form turned into parts of messages, and their sources.

A source is a path as it is written, or the file itself.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any

from train.data.chat.messages import Message
from train.data.files.bad_line import BadLine

Source = str | bytes

KINDS = frozenset({"image", "image_url"})
MARK = "<image>"
"""What LLaVA's data has in a text where an image is."""
KEYS = ("image", "path", "url", "base64", "image_url")
"""Of a part, what may have its image."""
PART = {"type": "image"}
COLUMNS = ("images", "image")


def given(record: Mapping[str, Any]) -> list[Source]:
    """Return the images of a line that are not in its messages."""
    found: Any = next((record[key] for key in COLUMNS if record.get(key)), [])
    return [source(each) for each in (found if isinstance(found, list) else [found])]


def source(value: Any) -> Source:
    """Return where an image is; `datasets` has bytes and path in one value, of which one is set."""
    if isinstance(value, Mapping):
        keys = ("bytes", *KEYS)
        value = next((value[key] for key in keys if value.get(key)), None)
        if isinstance(value, Mapping):
            return source(value)
    if not isinstance(value, str) or not value:
        found = type(value).__name__
        raise BadLine(f"images: expected a path, bytes or a data URL of an image, found {found}")
    if value.startswith("data:"):
        return decoded(value.partition(",")[2])
    if value.startswith(("http://", "https://")):
        raise BadLine(f"images: expected a file, found {value:.60}: download it before")
    return value.removeprefix("file://")


def decoded(text: str) -> bytes:
    """Return the bytes of base64."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadLine(f"images: expected base64, found: {error}") from None


def placed(
    messages: Sequence[Message], images: Sequence[Source]
) -> tuple[list[Message], list[Source]]:
    """Return messages whose images are parts without a source, and the sources in their order.

    Where no message says where the line's own images are, they come before the first question.
    """
    sources: list[Source] = []
    used: list[int] = []
    made = []
    for number, message in enumerate(messages, start=1):
        parts = _parts(message, splits=bool(images))
        marks = [part for part in parts if part.get("type") in KINDS]
        if marks and message["role"] == "assistant":
            raise BadLine(f"messages: message {number}: expected no image in an answer, found one")
        for part in marks:
            if any(part.get(key) for key in KEYS):
                sources.append(decoded(part["base64"]) if part.get("base64") else source(part))
                continue
            at = part.get("index", len(used))
            if not isinstance(at, int) or not 0 <= at < len(images):
                wanted = (
                    f"an image for each place (images, or path in the part), found {len(images)}"
                )
                raise BadLine(f"messages: message {number}: expected {wanted}")
            used.append(at)
            sources.append(images[at])
        kept = [PART if part.get("type") in KINDS else part for part in parts]
        made.append({**message, "content": kept} if marks else message)
    if images and not used:
        first = next((n for n, m in enumerate(made) if m["role"] == "user"), None)
        if first is None:
            raise BadLine(
                "images: expected a question of the user that they are before, found none"
            )
        parts = [PART] * len(images) + _parts(made[first], splits=False)
        made[first] = {**made[first], "content": parts}
        used, sources = list(range(len(images))), [*images, *sources]
    if len(set(used)) != len(images):
        wanted = f"{len(set(used))}, one for each place in the messages"
        raise BadLine(f"images: expected {wanted}, found {len(images)}")
    return made, sources


def as_parts(message: Message) -> Message:
    """Return a message with its content in parts, as templates of models with images take it."""
    content = message.get("content", "")
    if not isinstance(content, str):
        return message
    return {**message, "content": [{"type": "text", "text": content}]}


def _parts(message: Message, *, splits: bool) -> list[dict[str, Any]]:
    """Return the content of a message in parts; a mark of an image in a question is one, too."""
    content = message.get("content")
    if isinstance(content, list):
        return [
            each if isinstance(each, dict) else {"type": "text", "text": each} for each in content
        ]
    if not isinstance(content, str):
        return []
    if not splits or MARK not in content or message["role"] == "assistant":
        return [{"type": "text", "text": content}]
    parts: list[dict[str, Any]] = []
    texts = content.split(MARK)
    for number, text in enumerate(texts):
        # The template decides what is between an image and a text.
        before, after = number > 0, number < len(texts) - 1
        kept = text.removeprefix("\n" if before else "").removesuffix("\n" if after else "")
        parts += [{"type": "text", "text": kept}] if kept else []
        parts += [PART] if after else []
    return parts
