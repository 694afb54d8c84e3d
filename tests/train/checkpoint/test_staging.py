"""What is trained is copied once, into memory that is pinned only where that is worth it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.torch


class Stager:
    """Writes down what it is asked for."""

    made: list[Stager]

    def __init__(self, options: Any) -> None:
        self.options = options
        self.open = True
        self.made.append(self)

    def stage(self, state: dict[str, Any]) -> dict[str, Any]:
        assert self.open
        return dict(state)

    def close(self) -> None:
        self.open = False


def state_of(count: int, *, on_gpu: bool = True) -> Any:
    """Return a state of so many bytes in two tensors."""
    return {name: SimpleNamespace(nbytes=count // 2, is_cuda=on_gpu) for name in "ab"}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Stager]:
    """Return the stagers that are made, none of which needs a GPU."""
    from train.checkpoint import staging

    Stager.made = []
    monkeypatch.setattr(staging, "DefaultStager", Stager)
    return Stager.made


def test_a_large_state_on_a_gpu_is_pinned_once(made: list[Stager]) -> None:
    from train.checkpoint.staging import PINNED_FROM, Staging

    copies = Staging()
    for _ in range(3):
        assert copies.copy(state_of(PINNED_FROM)).keys() == {"a", "b"}
    (only,) = made
    assert only.options.use_pinned_memory
    assert only.options.use_non_blocking_copy
    assert only.open


@pytest.mark.parametrize(("share", "on_gpu"), [(0.5, True), (2, False)])
def test_a_small_state_and_one_of_a_cpu_leave_no_memory_taken(
    made: list[Stager], share: float, *, on_gpu: bool
) -> None:
    from train.checkpoint.staging import PINNED_FROM, Staging

    copies = Staging()
    for _ in range(2):
        copies.copy(state_of(int(share * PINNED_FROM), on_gpu=on_gpu))
    assert len(made) == 2
    for stager in made:
        assert not stager.options.use_pinned_memory
        assert not stager.options.use_non_blocking_copy
        assert not stager.open


def test_a_machine_that_pins_no_memory_copies_without(
    made: list[Stager], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from train.checkpoint.staging import PINNED_FROM, Staging

    plainly = Stager.stage

    def stage(stager: Stager, state: dict[str, Any]) -> dict[str, Any]:
        if stager.options.use_pinned_memory:
            raise RuntimeError("cudaError: 2")
        return plainly(stager, state)

    monkeypatch.setattr(Stager, "stage", stage)
    copies = Staging()
    for _ in range(2):
        assert copies.copy(state_of(PINNED_FROM)).keys() == {"a", "b"}
    assert [stager.options.use_pinned_memory for stager in made] == [True, False, False]
    assert capsys.readouterr().err.count("without pinned memory: cudaError: 2") == 1


def test_memory_that_is_kept_takes_the_next_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

    from train.checkpoint import staging

    def unpinned(_options: Any) -> DefaultStager:
        return DefaultStager(StagingOptions(False, False, False, False))

    monkeypatch.setattr(staging, "DefaultStager", unpinned)
    monkeypatch.setattr(staging, "bytes_on_gpu", lambda _: staging.PINNED_FROM)
    copies = staging.Staging()
    weight = torch.nn.Parameter(torch.zeros(8))
    first = copies.copy({"w": weight.detach()})["w"]
    assert first.data_ptr() != weight.data_ptr()
    where = first.data_ptr()
    with torch.no_grad():
        weight.add_(1)
    assert first.tolist() == [0] * 8
    second = copies.copy({"w": weight.detach()})["w"]
    assert second.tolist() == [1] * 8
    assert second.data_ptr() == where


def test_only_what_lies_on_the_gpu_is_counted() -> None:
    import torch

    from train.checkpoint.staging import bytes_on_gpu

    assert bytes_on_gpu({**state_of(100), "cpu": torch.zeros(50)}) == 100
