"""The range grammar: what it stands for, what it refuses, and that folding is its inverse."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.inventory.ranges import LIMIT, BadRange, expand_hosts, fold_hosts

NAMES = st.text(st.sampled_from("ab-.0019"), min_size=1, max_size=8)
NUMBERED = st.builds(
    lambda head, number, width, tail: f"{head}{number:0{width}}{tail}",
    st.sampled_from(["gpu", "n-", "10.0.0.", "r1n"]),
    st.integers(0, 120),
    st.integers(1, 4),
    st.sampled_from(["", ".lab", "b2"]),
)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gpu01", ["gpu01"]),
        ("gpu[02-04,07]", ["gpu02", "gpu03", "gpu04", "gpu07"]),
        ("gpu[8-11]", ["gpu8", "gpu9", "gpu10", "gpu11"]),
        ("gpu[08-11]", ["gpu08", "gpu09", "gpu10", "gpu11"]),
        ("gpu[099-101]", ["gpu099", "gpu100", "gpu101"]),
        ("gpu[0-2]", ["gpu0", "gpu1", "gpu2"]),
        ("gpu[5]", ["gpu5"]),
        ("r[1-2]n[08-09].lab", ["r1n08.lab", "r1n09.lab", "r2n08.lab", "r2n09.lab"]),
        ("10.11.7.[50-51]", ["10.11.7.50", "10.11.7.51"]),
        ("a, b[1-2] ,c", ["a", "b1", "b2", "c"]),
        ("a[ 1 - 2 , 4 ]", ["a1", "a2", "a4"]),
        ("a,a", ["a", "a"]),
    ],
)
def test_an_expression_stands_for_its_names(text: str, names: list[str]) -> None:
    assert list(expand_hosts(text)) == names


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", "a name on each side of a comma"),
        ("a,,b", "a name on each side of a comma"),
        ("a,", "a name on each side of a comma"),
        ("gpu[01-04", "a closing ]"),
        ("gpu01-04]", "brackets in pairs, as in gpu[01-04]"),
        ("gpu[[1-2]]", "brackets in pairs, as in gpu[01-04]"),
        ("gpu]1[", "brackets in pairs, as in gpu[01-04]"),
        ("gpu[]", "numbers and ranges of numbers in the brackets, as in gpu[01-04,07]"),
        ("gpu[1-]", "numbers and ranges of numbers in the brackets, as in gpu[01-04,07]"),
        ("gpu[1-2-3]", "numbers and ranges of numbers in the brackets, as in gpu[01-04,07]"),
        ("gpu[a-c]", "numbers and ranges of numbers in the brackets, as in gpu[01-04,07]"),
        (
            "gpu[\u0661-\u0663]",
            "numbers and ranges of numbers in the brackets, as in gpu[01-04,07]",
        ),
        ("gpu[04-01]", "the smaller number first: 01-04"),
        ("gpu[1-04]", "as many digits in the last as in the first"),
        ("gpu[001-04]", "as many digits in the last as in the first"),
        ("gpu[1-999999999]", f"at most {LIMIT} names"),
        ("a[0-99]b[0-99]", f"at most {LIMIT} names"),
        (",".join(["a[1-4000]"] * 2), f"at most {LIMIT} names"),
    ],
)
def test_what_is_no_range_says_what_was_wanted(text: str, wanted: str) -> None:
    with pytest.raises(BadRange) as caught:
        expand_hosts(text)
    assert caught.value.wanted == wanted
    assert text in caught.value.found


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], ""),
        (["a"], "a"),
        (["gpu02", "gpu03", "gpu04", "gpu07"], "gpu[02-04,07]"),
        (["gpu8", "gpu9", "gpu10"], "gpu[8-10]"),
        (["gpu09", "gpu10", "gpu100"], "gpu[09-10,100]"),
        (["gpu2", "gpu1"], "gpu[2,1]"),
        (["10.11.7.50", "10.11.7.51", "bastion"], "10.11.7.[50-51],bastion"),
        (["r1n1", "r1n2", "r2n1"], "r1n[1-2],r2n1"),
        (["a", "a"], "a,a"),
        # Longer numbers are text: no range could be read back.
        (["n1234567890", "n1234567891"], "n1234567890,n1234567891"),
        (["n123456788", "n123456789"], "n[123456788-123456789]"),
    ],
)
def test_names_fold_in_their_order(names: list[str], text: str) -> None:
    assert fold_hosts(names) == text


@given(st.lists(NAMES | NUMBERED, min_size=1, max_size=40))
def test_expanding_what_was_folded_gives_the_names(names: list[str]) -> None:
    assert expand_hosts(fold_hosts(names)) == tuple(names)


@given(
    st.sampled_from(["gpu", "n-", ""]),
    st.integers(0, 10**8),
    st.integers(0, 300),
    st.integers(1, 9),
    st.sampled_from(["", "x"]),
)
def test_a_range_has_each_number_once_with_its_zeros(
    head: str, first: int, more: int, width: int, tail: str
) -> None:
    numbers = [f"{number:0{width}}" for number in range(first, first + more + 1)]
    names = [f"{head}{number}{tail}" for number in numbers]
    assert list(expand_hosts(f"{head}[{numbers[0]}-{numbers[-1]}]{tail}")) == names


@given(st.text(st.sampled_from("ab019[],-. "), max_size=25) | st.text(max_size=25))
def test_any_text_gives_names_or_says_why_not(text: str) -> None:
    try:
        names = expand_hosts(text)
    except BadRange:
        return
    assert 0 < len(names) <= LIMIT
    assert all(name and not set(name) & set("[],") for name in names)
