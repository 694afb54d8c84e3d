"""The frames, and their JSON: the same as the `json` module's, without importing it."""

from __future__ import annotations

import io
import json
import math
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl import wire
from clusterctl.wire import (
    BadFrame,
    BadLine,
    CutFrame,
    FrameReader,
    LineReader,
    Message,
    decode_line,
    encode_line,
    from_json,
    read_message,
    to_json,
)
from tests.damage import ANY_JSON
from tests.installed import LOCATION

ANY_TEXT = st.text(st.characters(exclude_categories=()))  # with lone surrogates: any file's name
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | ANY_TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(ANY_TEXT, inner),
    max_leaves=20,
)


@given(VALUES)
def test_json_is_what_the_module_makes_of_a_value(value: object) -> None:
    assert to_json(value) == json.dumps(value, separators=(",", ":")).encode()
    assert from_json(to_json(value)) == value
    assert from_json(json.dumps(value).encode()) == value


@given(st.binary() | ANY_TEXT.map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_what_is_no_json_is_a_value_error(data: bytes) -> None:
    try:
        wanted = json.loads(data.decode())
    except ValueError:
        with pytest.raises(ValueError):
            from_json(data)
        return
    if data == data.strip():  # nobody of ours writes space around it
        found = from_json(data)
        assert found == wanted or math.isnan(found)


DAMAGED = """
import sys
from clusterctl.wire import from_json
assert "json" not in sys.modules
for data in (b"{", b'["x', b'{"a" 1}', b"[1,]"):
    try:
        sys.exit("found %r" % from_json(data))
    except ValueError:
        pass
"""


def test_damaged_json_is_a_value_error_also_where_json_is_not_imported() -> None:
    subprocess.run([sys.executable, "-S", "-c", DAMAGED], cwd=LOCATION, check=True)


def test_what_has_no_form_in_json_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="set has no form"):
        to_json({"a": {1}})


NO_JSON = [b'{"a":1} x', b"", b"{", b'{"a":NULL}', b"\xff", b'{"a":' + b"[" * 100_000]


@pytest.mark.parametrize("data", NO_JSON, ids=lambda data: data[:8].hex())
def test_a_head_that_is_no_json_is_a_bad_frame(data: bytes) -> None:
    frame = len(data).to_bytes(4, "big") + bytes(4) + data
    with pytest.raises(BadFrame, match="not JSON"):
        read_message(io.BytesIO(frame))


@pytest.mark.parametrize("data", [b"[1]", b'"text"', b"null", b"5"])
def test_a_head_that_is_no_object_is_a_bad_frame(data: bytes) -> None:
    frame = len(data).to_bytes(4, "big") + bytes(4) + data
    with pytest.raises(BadFrame, match="not an object"):
        read_message(io.BytesIO(frame))


@pytest.mark.parametrize(
    "lengths", [(wire.HEAD_LIMIT + 1, 0), (2, wire.BODY_LIMIT + 1), (2**32 - 1, 2**32 - 1)]
)
def test_a_frame_beyond_all_limits_is_not_even_read(lengths: tuple[int, int]) -> None:
    """What is no frame of ours announces gigabytes."""
    stream = io.BytesIO(b"".join(length.to_bytes(4, "big") for length in lengths) + b"{}")
    with pytest.raises(BadFrame, match="announced"):
        read_message(stream)
    assert stream.tell() == 8


def test_a_python_without_the_halves_in_c_uses_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "_json", None)
    dumps, loads = wire._codec()

    assert dumps({"a": [1, 2]}) == '{"a":[1,2]}'
    assert loads('{"a":[1,2]}') == {"a": [1, 2]}


@given(st.dictionaries(ANY_TEXT, VALUES), st.binary())
def test_a_frame_comes_back(head: dict[str, object], body: bytes) -> None:
    message = Message(head, body)
    assert read_message(io.BytesIO(message.encode())) == message
    with pytest.raises(CutFrame):
        read_message(io.BytesIO(message.encode()[:-1]))


def test_messages_are_equal_by_both_parts() -> None:
    assert Message({"a": 1}) == Message({"a": 1}, b"")
    assert Message({"a": 1}) != Message({"a": 1}, b"x")
    assert Message({"a": 1}) != {"a": 1}
    assert repr(Message({"a": 1}, b"x")) == "Message({'a': 1}, b'x')"


def lines_of(pieces: list[bytes], limit: int = 100) -> list[dict[str, Any]]:
    reader, found = LineReader(), list[dict[str, Any]]()
    for piece in pieces:
        reader.feed(piece)
        found.extend(iter(lambda: reader.next(limit), None))
    return found


@given(st.lists(st.dictionaries(st.text(max_size=3), ANY_JSON, max_size=2), max_size=4))
def test_lines_and_frames_that_come_in_single_bytes_are_whole(wanted: list[dict[str, Any]]) -> None:
    data = b"".join(map(encode_line, wanted))
    told = lines_of([data[at : at + 1] for at in range(len(data))], limit=1 << 16)
    assert list(map(to_json, told)) == list(map(to_json, wanted))
    reader, frames = FrameReader(head_limit=1 << 16, body_limit=2), list[Message]()
    for byte in b"".join(Message(one, b"ab").encode() for one in wanted):
        reader.feed(bytes([byte]))
        frames.extend(iter(reader.next, None))
    assert [to_json(frame.head) for frame in frames] == list(map(to_json, wanted))
    assert all(frame.body == b"ab" for frame in frames)


class Counted(bytearray):
    """Counts the bytes that are looked at and copied out."""

    looked = copied = 0

    def find(self, sub: Any, start: Any = 0, end: Any = None) -> int:
        found = super().find(sub, start, end)
        self.looked += (min(len(self), end) if found < 0 else found + 1) - start
        return found

    def __getitem__(self, key: Any) -> Any:
        part = super().__getitem__(key)
        self.copied += len(part)
        return part


@pytest.mark.parametrize(
    ("line", "piece"),
    [(b"{}\n", 600_000), (b'{"a":1}\n', 7), (b'{"":"' + b"x" * 300_000 + b'"}\n', 100)],
    ids=["tiny", "cut", "long"],
)
def test_a_byte_of_a_flood_of_lines_is_looked_at_once_however_it_is_cut(
    line: bytes, piece: int
) -> None:
    reader, counted, data = LineReader(), Counted(), line * (600_000 // len(line))
    reader.unread, found = counted, 0
    for begin in range(0, len(data), piece):
        reader.feed(data[begin : begin + piece])
        while reader.next(limit=1 << 20) is not None:
            found += 1
    assert reader.unread is counted
    assert (found, len(counted)) == (len(data) // len(line), 0)
    assert counted.looked == len(data)
    assert counted.copied == len(data) - found


def test_an_endless_line_is_looked_at_once() -> None:
    reader, counted = LineReader(), Counted()
    reader.unread = counted
    for _ in range(655):
        reader.feed(b"x" * 100)
        assert reader.next(limit=65536) is None
    reader.feed(b"x" * 100)
    with pytest.raises(BadLine, match="more than 65536 bytes"):
        reader.next(limit=65536)
    assert counted.looked <= 65537
    assert not counted.copied


def test_a_byte_of_a_frame_is_copied_once_however_it_is_cut() -> None:
    reader, counted = FrameReader(head_limit=1 << 18, body_limit=1 << 18), Counted()
    reader._unread, found = counted, 0
    data = Message({"a": "x" * 100_000}, b"y" * 100_000).encode() + Message({}).encode() * 10_000
    for begin in range(0, len(data), 100):
        reader.feed(data[begin : begin + 100])
        while reader.next() is not None:
            found += 1
    assert reader._unread is counted
    assert (found, len(counted)) == (10_001, 0)
    # The lengths are read a second time, and with each piece until all is there.
    assert counted.copied <= 2 * len(data) + 8 * len(data) // 100


@pytest.mark.parametrize("line", [b"[]\n", b"\xff\n", b"{\n", b"\n", b"[" * 90 + b"\n", b"x" * 101])
def test_a_line_that_is_none_is_refused(line: bytes) -> None:
    with pytest.raises(BadLine):
        lines_of([b'{"a": 1}\n' + line])
    with pytest.raises(BadLine):
        decode_line(b"[" * 100_000)


def test_a_frame_that_is_larger_than_agreed_is_refused_before_it_has_come() -> None:
    for frame in (Message({"a": "x" * 99}).encode(), Message({}, b"x" * 9).encode(), b"GET / HTTP"):
        reader = FrameReader(head_limit=99, body_limit=8)
        reader.feed(frame[:8])
        with pytest.raises(BadFrame, match="announced"):
            reader.next()
