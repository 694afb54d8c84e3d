"""A word names one run, or is refused with all that it may mean."""

from __future__ import annotations

import pytest

from clusterctl.errors import SeveralRuns
from clusterctl.verbs.runs.run_id import pick_run, refuse_part, short_ids

ONE, TWO, THREE = (f"lab-2026010{n}t000000-{end}" for n, end in enumerate(("abcd", "efgh", "jkmn")))
KNOWN = {THREE: "base", TWO: "", ONE: "base"}
"""The newest first."""


@pytest.mark.parametrize(
    ("word", "run"),
    [
        (ONE, ONE),
        ("abcd", ONE),
        ("20260101t", TWO),
        ("base", THREE),
        ("bas", THREE),
        ("nothing", None),
    ],
)
def test_an_id_a_name_and_a_part_that_no_other_run_has(word: str, run: str | None) -> None:
    assert pick_run(word, KNOWN) == run


def test_a_whole_name_comes_before_a_part_of_an_id() -> None:
    assert pick_run("efgh", {**KNOWN, ONE: "efgh"}) == ONE
    assert pick_run("lab", {**KNOWN, ONE: "lab"}) == ONE


@pytest.mark.parametrize(
    ("word", "known"), [("lab", KNOWN), ("bas", {**KNOWN, TWO: "basic"}), ("e", KNOWN)]
)
def test_a_part_of_several_is_none(word: str, known: dict[str, str]) -> None:
    with pytest.raises(SeveralRuns) as caught:
        pick_run(word, known)
    assert len(caught.value.choices) > 1
    assert all(choice in str(caught.value) for choice in caught.value.choices)


def test_a_short_id_means_its_run_among_all() -> None:
    twin = "lab-20260105t000000-abcd"
    ids = [ONE, TWO, THREE, twin, "lab-1", "x"]
    short = short_ids(ids, {"the-efgh-try"})
    assert (short[ONE], short[THREE]) == ("20260100t000000-abcd", "jkmn")
    assert short[twin] == "20260105t000000-abcd"
    assert short[TWO] == "20260101t000000-efgh"
    for run in ids:
        assert pick_run(short[run], dict.fromkeys(ids, "")) == run


@pytest.mark.parametrize(
    ("word", "run"),
    [
        (ONE, ONE),
        ("abcd", ONE),
        ("20260101t000000-efgh", TWO),
        ("base", THREE),
        ("bas", None),
        ("bcd", None),
        ("20260101t", None),
        ("lab", None),
    ],
)
def test_what_changes_a_run_takes_no_mere_part(word: str, run: str | None) -> None:
    assert pick_run(word, KNOWN, part=False) == run
    if run:
        refuse_part(word, KNOWN)
        return
    with pytest.raises(SeveralRuns, match="expected a whole id or name, or the end of an id"):
        refuse_part(word, KNOWN)


def test_an_end_that_several_ids_have_is_refused() -> None:
    with pytest.raises(SeveralRuns):
        pick_run("abcd", {**KNOWN, "lab-20260105t000000-abcd": "abcde"}, part=False)
