"""The record of what was mirrored: whoever may write to the folder may have written it."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.node.mirror.manifest import FOLDER, Manifest, Record
from clusterctl.node.mirror.sync_plan import SyncPlan
from clusterctl.node.mirror.tree_hash import Entry, digest_of
from tests.damage import ANY_JSON, as_json, damaged, damaged_json

DIGEST = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"
"""Of the content `foo`."""
WHOLE = {
    "schema": 1,
    "tree": "t",
    "from": {"host": "h", "folder": "/f"},
    "files": {"a.py": [[DIGEST], True, [3, 1, 1, 1]], "pkg/b.py": [[DIGEST], False, []]},
}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for no disk: hundreds of manifests are written here, and no power fails."""
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)


@contextmanager
def mirrored(manifest: bytes) -> Iterator[Path]:
    """Give a folder with a manifest, and beside it a file that is nobody's to touch."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "work")
        (root / "pkg").mkdir(parents=True)
        (root / os.fsdecode(FOLDER)).mkdir()
        for name in ("a.py", "pkg/b.py", "../outside"):
            (root / name).write_text("foo")
        (root / ".clusterctl" / "manifest.json").write_bytes(manifest)
        yield root


def changed(manifest: bytes) -> Manifest:
    """Let a sync of another tree begin and end there; return what it read."""
    with mirrored(manifest) as root:
        read = Manifest(os.fsencode(root))
        listing = {b"c.py": Entry("f", DIGEST)}
        change = SyncPlan(os.fsencode(root), read, listing)
        change.begin()
        (root / "c.py").write_text("foo")
        entry = read.current(b"c.py")
        assert entry == Entry("f", digest_of(os.fsencode(root / "c.py"), "f"))
        change.finish("new")

        assert (root / "../outside").read_text() == "foo"
        again = Manifest(os.fsencode(root))
        assert (again.tree, list(again.records)) == ("new", [b"c.py"])
    return read


def test_a_whole_one_is_read() -> None:
    read = changed(as_json(WHOLE))
    assert (read.origin["host"], read.records[b"c.py"].digests) == ("h", [DIGEST])
    with mirrored(as_json(WHOLE)) as root:
        assert Manifest(os.fsencode(root)).records[b"a.py"] == Record([DIGEST], True, [3, 1, 1, 1])


@pytest.mark.parametrize(
    "path", ["../outside", "/etc/passwd", "a/../../outside", "", "a\0b", "a" * 256]
)
def test_one_that_names_files_outside_of_the_folder_is_none(path: str) -> None:
    with mirrored(as_json({**WHOLE, "files": {path: [[DIGEST], True, []]}})) as root:
        read = Manifest(os.fsencode(root))
        assert (read.tree, read.records, read.origin) == (None, {}, {})


ITEMS: st.SearchStrategy[Any] = st.tuples(ANY_JSON, ANY_JSON, ANY_JSON) | ANY_JSON


@given(
    damaged_json(WHOLE).map(as_json)
    | damaged(as_json(WHOLE))
    | st.builds(
        lambda path, item: json.dumps({**WHOLE, "files": {path: item}}).encode(),
        st.sampled_from(["../outside", "a.py", "pkg/b.py", "pkg", "\ud800", ".clusterctl/lock"]),
        ITEMS | st.just([[DIGEST], True, []]),
    )
    | st.binary()
)
def test_any_bytes_are_a_manifest_or_none_and_harm_nothing_outside(manifest: bytes) -> None:
    changed(manifest)
