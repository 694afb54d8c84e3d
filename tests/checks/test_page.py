"""The reference page of the checks is what the checks say."""

from __future__ import annotations

import runpy
from pathlib import Path

from clusterctl.checks.all import every_check

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_what_the_registry_says() -> None:
    rendered = runpy.run_path(str(DOCS / "make_checks.py"))["render"]()

    assert (DOCS / "reference" / "checks.md").read_text() == rendered, (
        "run: .venv/bin/python docs/make_checks.py"
    )


def test_the_guide_counts_all_checks() -> None:
    count = len(every_check())
    assert f"\n{count} checks in " in (DOCS / "how-to" / "check-a-cluster.md").read_text()
