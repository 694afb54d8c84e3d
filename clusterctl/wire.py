"""Everything that clusterctl sends: frames with raw bytes, lines of JSON, and values as JSON.

Controller and agent: the controller sends one frame, the request, perhaps more while it runs.
The agent first prints the controller's marker line, then answers in frames, with a heartbeat.
Its last frame has the head key `end` (true); bytes before the marker are the login shell's.

A frame is two unsigned 32-bit big-endian lengths, a JSON object (the head), raw bytes (the body).
Nodes among themselves use frames in a push and in a check, see `node.push.chain` and
`node.probe.listen`. Supervisors, and processes on one machine, send a JSON object a line.

Runs on nodes too: standard library only, Python 3.9.
"""

from __future__ import annotations

import struct
from io import BytesIO

TYPE_CHECKING = False
# `typing` itself is left out, as is all that a node would import for longer than Python starts.
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Optional, Protocol, Tuple

    class Readable(Protocol):
        """A blocking stream."""

        def read(self, count: int, /) -> bytes:
            """Return up to so many bytes; none at the end."""


SCHEMA = 1
"""The version that every JSON document and record carries as `schema`."""

HEAD_LIMIT = 16 * 1024 * 1024
BODY_LIMIT = 256 * 1024 * 1024
"""Bytes a frame may announce; more means that the stream is not ours."""
HEAD_ITEMS = 500_000
"""Values that its JSON may have: each takes up to 80 bytes of memory, sent in three."""

_LENGTHS = struct.Struct(">II")
_STRUCTURE = (b",", b":", b"[", b"{")
"""One of these comes before each value but the first."""


class BadFrame(ValueError):  # noqa: N818  (what the bytes are, not what went wrong here)
    """The bytes on the stream are not a frame of this protocol."""


class CutFrame(BadFrame):
    """The stream ended within a frame: the other side exited."""


class BadLine(ValueError):  # noqa: N818  (what the bytes are, not what went wrong here)
    """What came is no JSON object on a line, or is too long."""


class Message:
    """One frame: a JSON object and the bytes that belong to it."""

    # Neither a dataclass nor a named tuple: importing those takes long.

    __slots__ = ("body", "body_length", "head", "size")

    def __init__(
        self, head: Dict[str, Any], body: bytes = b"", *, size: int = 0, body_length: int = 0
    ) -> None:
        """Take both parts, or the head of a frame whose body is still to be read.

        `size` is the frame's bytes on the stream that it was read from.
        """
        self.head = head
        self.body = body
        self.size = size
        self.body_length = body_length

    def __eq__(self, other: object) -> bool:
        """Say whether it is the same frame."""
        if not isinstance(other, Message):
            return NotImplemented
        return self.head == other.head and self.body == other.body

    __hash__ = None  # type: ignore[assignment]  # a head can be changed

    def __repr__(self) -> str:
        """Show both parts."""
        return "Message(%r, %r)" % (self.head, self.body)

    def encode(self) -> bytes:
        """Return the frame's bytes."""
        return encode_head(self.head, len(self.body)) + self.body


def encode_head(head: Dict[str, Any], body_length: int) -> bytes:
    """Return a frame's bytes up to its body, for a body that is sent without being copied."""
    encoded = to_json(head)
    return _LENGTHS.pack(len(encoded), body_length) + encoded


def read_message(
    stream: Readable, *, head_limit: int = HEAD_LIMIT, body_limit: int = BODY_LIMIT
) -> Optional[Message]:
    """Read one frame, None at a clean end of the stream; BadFrame if it is cut or another thing."""
    message = read_head(stream, head_limit=head_limit, body_limit=body_limit)
    if message is not None:
        message.body = _read_exactly(stream, message.body_length) or b""
    return message


def read_head(
    stream: Readable, *, head_limit: int = HEAD_LIMIT, body_limit: int = BODY_LIMIT
) -> Optional[Message]:
    """Read one frame up to its body, whose `body_length` bytes the caller reads; else as above."""
    lengths = _read_exactly(stream, _LENGTHS.size, at_start=True)
    if lengths is None:
        return None
    head_length, body_length = _announced(lengths, head_limit, body_limit)
    head = _read_exactly(stream, head_length) or b""
    if head_length > HEAD_ITEMS and sum(map(head.count, _STRUCTURE)) > HEAD_ITEMS:
        raise BadFrame("frame's head has more than %d values" % HEAD_ITEMS)
    try:
        parsed = from_json(head)
    except (ValueError, RecursionError) as error:  # the second: nested beyond all reason
        raise BadFrame("frame's head is not JSON: %s" % error) from error
    if not isinstance(parsed, dict):
        raise BadFrame("frame's head is not an object")
    return Message(parsed, size=head_length + body_length, body_length=body_length)


def _announced(lengths: bytes, head_limit: int, body_limit: int) -> Tuple[int, int]:
    head_length, body_length = _LENGTHS.unpack(lengths)
    if head_length > head_limit or body_length > body_limit:
        raise BadFrame("frame of %d+%d bytes announced" % (head_length, body_length))
    return head_length, body_length


class FrameReader:
    """The frames of a connection that never waits: takes bytes as they come."""

    # Each byte is copied twice at most, however they are cut: who sends may be anyone.

    def __init__(self, *, head_limit: int, body_limit: int) -> None:
        """Take limits: what is not whole yet stays in memory."""
        self._head_limit, self._body_limit = head_limit, body_limit
        self._unread = bytearray()
        self._wanted = _LENGTHS.size

    def feed(self, data: bytes) -> None:
        """Take what has come."""
        self._unread += data

    def next(self) -> Optional[Message]:
        """Return the next frame; None: it has not come whole.

        Raises:
            BadFrame: what came is something else.
        """
        if len(self._unread) < self._wanted:
            return None
        announced = bytes(self._unread[: _LENGTHS.size])
        lengths = _announced(announced, self._head_limit, self._body_limit)
        self._wanted = _LENGTHS.size + sum(lengths)
        if len(self._unread) < self._wanted:
            return None
        stream = BytesIO(self._unread[: self._wanted])
        del self._unread[: self._wanted]
        self._wanted = _LENGTHS.size
        return read_message(stream, head_limit=self._head_limit, body_limit=self._body_limit)


def encode_line(value: Dict[str, Any]) -> bytes:
    """Return an object as a line of JSON."""
    return to_json(value) + b"\n"


def decode_line(line: bytes) -> Dict[str, Any]:
    """Return the object on a line; raise BadLine if there is none."""
    try:
        value = from_json(line.strip())
    except (ValueError, RecursionError) as error:
        raise BadLine("the line is not JSON: %s" % error) from error
    if not isinstance(value, dict):
        raise BadLine("the line is not an object")
    return value


class LineReader:
    """The lines of a connection or a pipe: takes bytes as they come."""

    def __init__(self) -> None:
        self.unread = bytearray()
        self._searched = 0
        """So many bytes of these hold no end of a line."""

    def feed(self, data: bytes) -> None:
        """Take what has come."""
        self.unread += data

    def next(self, limit: int) -> Optional[Dict[str, Any]]:
        """Return the object on the next line; None: it has not come whole."""
        end = self.unread.find(b"\n", self._searched, limit + 1)
        if end < 0:
            self._searched = len(self.unread)
            if self._searched > limit:
                raise BadLine("a line of more than %d bytes" % limit)
            return None
        line = bytes(self.unread[:end])
        # The rest is not moved each time: a bytearray that shrinks at its begin moves it rarely.
        del self.unread[: end + 1]
        self._searched = 0
        return decode_line(line)


def to_json(value: Any) -> bytes:  # noqa: ANN401  (JSON has no better type)
    """Return a value as JSON; raise TypeError if it is none that JSON has."""
    return _dumps(value).encode()


def from_json(data: bytes) -> Any:  # noqa: ANN401  (JSON has no better type)
    """Return the value that JSON stands for; raise ValueError if it is no JSON."""
    return _loads(data.decode())


def _codec() -> Tuple[Callable[[Any], str], Callable[[str], Any]]:
    """Return `json.dumps` and `json.loads`, where possible without importing `json`.

    Its import brings `re` and `enum` along and takes as long as starting Python. Its two halves in
    C do all the work; a Python that has them not, or otherwise, uses the whole.
    """
    try:
        import _json  # noqa: PLC0415

        scan = _json.make_scanner(_AsUsual)  # type: ignore[arg-type]  # any object with these
        encode = _json.make_encoder(
            None, _refuse, _json.encode_basestring_ascii, None, ":", ",", False, False, True
        )
        if scan("".join(encode(["x", 1.5, {}], 0)), 0)[0] != ["x", 1.5, {}]:
            raise ImportError("another codec")  # noqa: TRY301  (ours to catch)
    except (ImportError, AttributeError, TypeError):
        import json  # noqa: PLC0415

        return (lambda value: json.dumps(value, separators=(",", ":"))), json.loads

    def loads(text: str) -> Any:  # noqa: ANN401
        try:
            value, end = scan(text, 0)
        except StopIteration:
            raise ValueError("it does not begin like JSON") from None
        except SystemError:  # it looks for its own error in `json`, which is not imported
            raise ValueError("it is damaged JSON") from None
        if end != len(text):
            raise ValueError("something follows the JSON")
        return value

    return (lambda value: "".join(encode(value, 0))), loads


class _AsUsual:
    """The decoder's settings, those of `json.loads`."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float


def _refuse(value: object) -> None:
    raise TypeError("%s has no form in JSON" % type(value).__name__)


_dumps, _loads = _codec()


def _read_exactly(stream: Readable, count: int, *, at_start: bool = False) -> Optional[bytes]:
    parts = []
    missing = count
    while missing:
        part = stream.read(missing)
        if len(part) == count:
            return part  # as a rule
        if not part:
            if at_start and missing == count:
                return None
            raise CutFrame("stream ended within a frame")
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


def plain(value: Any) -> Any:  # noqa: ANN401  (JSON has no better type)
    """Turn a frozen value into what `json.dumps` takes: fields by name, tuples as lists."""
    import dataclasses  # noqa: PLC0415  (asked for by the controller only; see Message)

    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(plain(item) for item in value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return value
