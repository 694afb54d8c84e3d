"""Strategies for fuzzing: recordings of real things with some of it changed, and pure noise."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import strategies as st

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=20)
"""With lone surrogates, as JSON brings them in and file names hold them."""
_NUMBERS = (0, -1, 1, 2**31, 2**63, -(2**63), 10**400, 0.5, -1e300)
_ODD = (float("nan"), float("inf"), float("-inf"), "", "\0", "\x1b[2J", "\ud800", "9" * 5000, "²")
ANY_JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.sampled_from((*_NUMBERS, *_ODD)) | st.integers() | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3),
    max_leaves=8,
)
NESTED = b"[" * 100_000

_PIECES = (
    st.binary(max_size=8)
    | st.sampled_from([b"\0", b"\n", b" ", b":", b"-1", b"\xff" * 8, b"9" * 5000, b"1e999", NESTED])
    | st.integers(0, 255).map(lambda number: bytes([number]))
)
_EDITS = st.lists(
    st.tuples(st.floats(0, 1), st.sampled_from([0, 1, 2, 8, 64, 4096]), _PIECES | st.just(b"")),
    min_size=1,
    max_size=3,
)


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """Return bytes with one to three places cut out, overwritten or filled with something else."""
    for at, length, piece in draw(_EDITS):
        begin = round(at * len(data))
        data = data[:begin] + piece + data[begin + length :]
    return data


@st.composite
def damaged_json(draw: st.DrawFn, value: Any, nonsense: st.SearchStrategy[Any] = ANY_JSON) -> Any:
    """Return a JSON value of which one to three parts, at any depth, are something else or gone."""
    top = [copy.deepcopy(value)]
    for _ in range(draw(st.integers(1, 3))):
        places = list(_places(top))
        holder, key = places[draw(st.integers(0, len(places) - 1))]
        if holder is not top and draw(st.booleans()):
            del holder[key]
        else:
            holder[key] = draw(nonsense)
    return top[0]


def _places(holder: Any) -> Any:
    """Yield every part of a JSON value, as what holds it and its key there."""
    for key in list(holder) if isinstance(holder, dict) else range(len(holder)):
        yield holder, key
        if isinstance(holder[key], (dict, list)):
            yield from _places(holder[key])


def as_json(value: Any) -> bytes:
    """Return JSON as any program may write it."""
    return json.dumps(value).encode()
