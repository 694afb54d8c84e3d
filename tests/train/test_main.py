"""The command's own process: what it imports, it imports quickly."""

from __future__ import annotations

import gc
from importlib.metadata import version

import pytest

from train import versions
from train.__main__ import main, uncollected
from train.checkpoint import provenance
from train.errors import counted


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


def test_the_versions_are_printed_for_a_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    words = capsys.readouterr().out.split()
    assert words[:2] == ["train", provenance.code()[:12]]
    for name in versions.TABLE:
        assert version(name) in words[words.index(name) + 1]


@pytest.mark.parametrize(("count", "words"), [(0, "0 samples"), (1, "1 sample"), (2, "2 samples")])
def test_one_is_not_several(count: int, words: str) -> None:
    assert counted(count, "sample") == words
