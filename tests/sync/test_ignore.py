"""What the patterns of `.clusterctlignore` leave out."""

from __future__ import annotations

import pytest

from clusterctl.sync.source import Ignored


@pytest.mark.parametrize(
    ("pattern", "path", "covered"),
    [
        ("data", "data", True),
        ("data/", "data/x/y.bin", True),  # with a folder all below it
        ("data", "src/data/x.bin", True),
        ("data", "database", False),
        ("*.log", "a/b.log", True),
        ("*.log", "a/b.log.py", False),
        ("/data", "data/x", True),
        ("/data", "src/data", False),
        ("src/data", "src/data/x", True),
        ("src/data", "a/src/data", False),
        ("src/*.py", "src/a.py", True),
        ("/", "a", False),
    ],
)
def test_a_name_is_left_out_anywhere_and_a_path_from_the_top(
    pattern: str, path: str, *, covered: bool
) -> None:
    ignored = Ignored([pattern])
    assert ignored.covers(path.encode()) == covered
    assert not ignored.covers(b"train.py")


def test_a_literal_path_has_no_pattern_and_ends_at_a_name() -> None:
    ignored = Ignored([], literal=["/out[1]*/"])
    for path, covered in {"out[1]*/a": True, "out1x": False, "out[1]*b": False}.items():
        assert ignored.covers(path.encode()) == covered
