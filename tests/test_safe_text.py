"""Whatever a log holds, only text and colors reach the terminal."""

from __future__ import annotations

import re
import sys
import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.safe_text import WORDS_LIMIT, keep_colors, printable_words, strip_controls

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


VISIBLE = {"\u0600", "\u0601", "\u0602", "\u0603", "\u0604", "\u0605", "\u06dd", "\u070f"} | {
    *("\u0890", "\u0891", "\u08e2", "\U000110bd", "\U000110cd"),
    *map(chr, range(0x13430, 0x13460)),
}
"""Signs of scripts that have the category of what is invisible."""
JOINERS = {"\u200c", "\u200d"}


def test_nothing_invisible_gets_through_but_what_scripts_need() -> None:
    hidden = {
        char
        for char in map(chr, range(sys.maxunicode + 1))
        if unicodedata.category(char) in {"Cf", "Zl", "Zp"}
    }
    assert len(hidden) > 100
    text = "".join(sorted(hidden))
    assert set(strip_controls(text)) <= VISIBLE | JOINERS
    assert set(keep_colors(text)) >= JOINERS | (VISIBLE & hidden)


@pytest.mark.parametrize("word", ["E" * 1000 + "\n", "\x1b[31m", "\u202e"])
def test_words_without_end_are_cut_before_they_are_cleaned(word: str) -> None:
    words = word * (20_000_000 // len(word))
    began = time.process_time()
    for said in (words, words.encode()):
        assert len(printable_words(said)) <= WORDS_LIMIT
    assert time.process_time() - began < 0.5  # it took 5 s
