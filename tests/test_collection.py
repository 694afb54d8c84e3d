"""Collecting the tests is quick, and each worker gets its share of those that take long."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import IMPORTED, LONGEST, TRAININGS, pytest_collection_modifyitems


def test_collecting_imports_no_torch(request: pytest.FixtureRequest) -> None:
    imported = request.config.stash[IMPORTED]
    assert "torch" not in imported
    assert "transformers" not in imported


def dealt(workers: int, names: list[str]) -> list[list[str]]:
    """Return what each worker starts with, as `--dist worksteal` cuts the list."""
    items: list[Any] = [SimpleNamespace(nodeid=name) for name in names]
    config: Any = SimpleNamespace(workerinput={"workercount": workers})
    pytest_collection_modifyitems(config, items)
    assert sorted(item.nodeid for item in items) == sorted(names)
    pieces = []
    for left in range(workers, 0, -1):
        length = len(items) // left
        pieces.append([item.nodeid for item in items[:length]])
        del items[:length]
    return pieces


@pytest.mark.parametrize("workers", [2, 3, 4, 16])
def test_half_of_the_workers_train_and_each_begins_with_what_takes_long(workers: int) -> None:
    others = [f"tests/logs/test_{n}.py" for n in range(400)]
    trainings = [f"tests/train/test_{n}.py" for n in range(80)]
    pieces = dealt(workers, [*others, *trainings, *LONGEST])
    half = (workers + 1) // 2
    for piece in pieces[:half]:
        assert any(name in trainings for name in piece)
    for piece in pieces[half:]:
        assert not any(name.startswith(TRAININGS) for name in piece)
    assert all(piece[0].startswith(LONGEST) for piece in pieces)


def test_all_workers_train_if_there_is_little_else() -> None:
    trainings = [f"tests/train/test_{n}.py" for n in range(80)]
    for piece in dealt(4, [*trainings, "tests/logs/test_0.py"]):
        assert any(name in trainings for name in piece)


def test_one_worker_keeps_the_order_of_what_does_not_take_long() -> None:
    names = ["tests/logs/test_0.py", "tests/train/test_0.py", "tests/logs/test_1.py"]
    assert dealt(1, [*names, LONGEST[0]]) == [[LONGEST[0], *names]]
