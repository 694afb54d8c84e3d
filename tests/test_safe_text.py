"""Whatever a log holds, only text and colors reach the terminal."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.safe_text import keep_colors, strip_controls

HOSTILE = st.lists(
    st.sampled_from(
        ["\x1b", "[", "]", "0;", "31", "m", "2J", "\x07", "\x1b\\", "P", "\x9b", "\x9d", "x", "é"]
    )
    | st.characters()
).map("".join)


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain\ttext", "plain\ttext"),
        ("\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m"),
        ("\x1b[31mred", "\x1b[31mred\x1b[0m"),
        ("\x1b[38:2:1:2:3mx\x1b[m", "\x1b[38:2:1:2:3mx\x1b[m"),
        ("\x1b[2J\x1b[Hgone", "gone"),
        ("\x1b[?1049hscreen", "screen"),
        ("\x1b]0;title\x07x", "x"),
        ("\x1b]8;;http://a\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b]52;c;c2VjcmV0\x07x", "x"),
        ("\x1bP+q\x1b\\x", "x"),
        ("\x1bcreset", "reset"),
        ("a\x08\x08b\x00c\x7f", "abc"),
        ("\x9b2Jx", "2Jx"),
        ("cut off \x1b[3", "cut off "),
        ("abc\u202etxt.exe", "abctxt.exe"),
    ],
)
def test_controls_go_and_colors_stay(raw: str, shown: str) -> None:
    assert keep_colors(raw) == shown


@given(HOSTILE)
def test_no_escape_but_a_color_gets_through(raw: str) -> None:
    shown = keep_colors(raw)
    rest = re.sub(r"\x1b\[[0-9;:]*m", "", shown)
    assert not re.search(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]", rest)
    assert keep_colors(shown) == shown


def test_colors_can_be_stripped_too() -> None:
    assert strip_controls("\x1b[1;31mred\x1b[0m") == "red"


@given(st.lists(st.sampled_from(["\x1b[", "\x1b]", "\x1bP", "0;", " ", "[31m", "x"])).map("".join))
def test_what_a_terminal_takes_as_it_is_is_never_changed_again(raw: str) -> None:
    shown = keep_colors(raw)
    assert keep_colors(shown) == shown
    assert strip_controls(shown) == strip_controls(strip_controls(raw))


@given(st.text(st.characters(exclude_categories=("Cc", "Cf", "Cs", "Zl", "Zp", "Co", "Cn"))))
def test_text_without_controls_is_kept_to_the_letter(text: str) -> None:
    assert keep_colors(text) == text == strip_controls(text)
