"""Patterns of a job are looked for in what ranks printed, each for a limited time."""

from __future__ import annotations

from clusterctl.node.agent.child_tasks import run_with_timeout
from clusterctl.node.restart.patterns import find_patterns

LINES = ("step 7", "a" * 60 + "!", "lost the license")


def look(*wanted: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = run_with_timeout(60, lambda: find_patterns(wanted, LINES))
    return found


def test_a_pattern_is_looked_for_in_each_line() -> None:
    assert look("licen[sc]e$", "^license", "(") == {
        "found": ["licen[sc]e$"],
        "unreadable": ["'(': missing ), unterminated subpattern at position 0"],
        "late": [],
    }


def test_a_pattern_that_would_never_end_costs_its_second_and_counts_as_not_found() -> None:
    assert look("(a+)+$", "lost") == {"found": ["lost"], "unreadable": [], "late": ["(a+)+$"]}
