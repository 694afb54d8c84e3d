"""What a comparison calls the runs: as the user named them, else by their short ids."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from clusterctl.report.compare import show_comparison
from clusterctl.report.console import Screen
from clusterctl.verbs.compare.comparison import compare_runs
from tests.verbs.compare.stories import story


def shown(names: tuple[str, str]) -> str:
    found = compare_runs([story("aaaa"), story("bbbb", step_s=0.5)])
    runs = tuple(replace(one, name=name) for one, name in zip(found.runs, names, strict=True))
    out = io.StringIO()
    screen = Screen(out=Console(file=out, width=100), err=Console(file=out, width=100))
    show_comparison(screen, replace(found, runs=runs), typed="clusterctl runs compare")
    return out.getvalue()


@pytest.mark.parametrize(
    ("names", "heads", "row", "told"),
    [
        (
            ("monday", "today"),
            "monday today",
            "id aaaa bbbb",
            "today has 2.00 x the tokens/s of monday",
        ),
        (("monday", ""), "aaaa bbbb", "name monday", "bbbb has 2.00 x the tokens/s of aaaa"),
        (("same", "same"), "aaaa bbbb", "name same same", "bbbb has 2.00 x the tokens/s of aaaa"),
    ],
)
def test_runs_are_called_by_names_of_their_own(
    names: tuple[str, str], heads: str, row: str, told: str
) -> None:
    lines = [" ".join(line.split()) for line in shown(names).splitlines()]
    assert f"result {heads}" in lines
    assert row in lines
    assert told in lines
