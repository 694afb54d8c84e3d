"""Numbers of things in words."""

from __future__ import annotations

from clusterctl.checks.wording import counted


def test_one_of_a_thing_is_no_plural() -> None:
    assert (counted(1, "file"), counted(0, "file"), counted(2, "check")) == (
        "1 file",
        "0 files",
        "2 checks",
    )
