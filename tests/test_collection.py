"""Collecting the tests is quick: every worker does it before it runs the first."""

from __future__ import annotations

import pytest

from tests.conftest import IMPORTED


def test_collecting_imports_no_torch(request: pytest.FixtureRequest) -> None:
    imported = request.config.stash[IMPORTED]
    assert "torch" not in imported
    assert "transformers" not in imported
