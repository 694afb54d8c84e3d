"""The command's own process: what it imports, it imports quickly."""

from __future__ import annotations

import gc

import pytest

from train.__main__ import uncollected


def test_garbage_is_not_collected_while_libraries_are_imported() -> None:
    frozen = gc.get_freeze_count()
    with uncollected():
        assert not gc.isenabled()
        imported = [[number] for number in range(1000)]
    assert gc.isenabled()
    assert gc.get_freeze_count() > frozen + len(imported) - 1


def test_a_failing_import_leaves_the_collection_on() -> None:
    with pytest.raises(ModuleNotFoundError), uncollected():
        raise ModuleNotFoundError
    assert gc.isenabled()
