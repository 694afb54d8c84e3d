"""What a tree consists of, and which lists of files a node refuses."""

from __future__ import annotations

import json
import os
import tempfile
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.node.push.manifest import (
    BLOCK,
    PARTIAL,
    decode,
    is_below,
    read_tree,
    stays_inside,
)
from tests.damage import ANY_JSON

ONE: dict[str, Any] = {
    "folder": True,
    "files": [["a/b", 3, 0o644, 1]],
    "links": [["a/c", "../x"]],
    "folders": [["a", 0o755]],
    "hashes": "00" * 32,
}
PARTS = st.sampled_from(["..", ".", "a", "b", "l", ""])
PATHS = st.lists(PARTS, min_size=1, max_size=5).map("/".join)


def encoded(tree: object) -> bytes:
    return zlib.compress(json.dumps(tree).encode())


def test_a_tree_is_read_with_its_links_and_modes(tmp_path: Path) -> None:
    hub = tmp_path / "models--a--b"
    (hub / "blobs").mkdir(parents=True)
    (hub / "snapshots" / "r1").mkdir(parents=True)
    (hub / "blobs" / "1f").write_bytes(b"weights")
    (hub / "blobs" / "1f").chmod(0o6750)
    (hub / "snapshots" / "r1" / "model").symlink_to("../../blobs/1f")
    (hub / ".x.clusterctl-partial").touch()
    found = decode(read_tree(os.fsencode(hub), lambda _: None).encode())
    assert [(f.path, f.size, f.mode) for f in found.files] == [(b"blobs/1f", 7, 0o750)]
    assert found.links == [(b"snapshots/r1/model", b"../../blobs/1f")]
    # The snapshot alone: its links lead out of it, so their content is sent.
    alone = read_tree(os.fsencode(hub / "snapshots" / "r1"), lambda _: None)
    assert [(f.path, f.size) for f in alone.files] == [(b"model", 7)]
    assert not alone.links


def test_blocks_cover_each_file(tmp_path: Path) -> None:
    sizes = [0, 1, BLOCK, BLOCK + 1]
    for number, size in enumerate(sizes):
        (tmp_path / str(number)).write_bytes(bytes(size))
    hashed: list[int] = []
    found = read_tree(os.fsencode(tmp_path), hashed.append)
    assert sum(hashed) == found.size == sum(sizes)
    blocks = [found.block(n) for n in range(found.blocks)]
    assert [(b.file, b.offset, b.length) for b in blocks] == [
        (1, 0, 1), (2, 0, BLOCK), (3, 0, BLOCK), (3, BLOCK, 1),
    ]  # fmt: skip
    assert [len(found.blocks_in(n)) for n in range(4)] == [0, 1, 1, 2]


def test_what_cannot_be_sent_is_an_error(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="pipe is neither"):
        read_tree(os.fsencode(tmp_path), lambda _: None)
    (tmp_path / "pipe").unlink()
    (tmp_path / "out").symlink_to("/tmp")
    with pytest.raises(ValueError, match="out is a link to a folder elsewhere"):
        read_tree(os.fsencode(tmp_path), lambda _: None)


@pytest.mark.parametrize(
    "change",
    [
        {"files": [["../b", 3, 0o644, 1]]},
        {"files": [["/etc/b", 3, 0o644, 1]]},
        {"files": [["a/../../b", 3, 0o644, 1]]},
        {"files": [["a/b\0c", 3, 0o644, 1]]},
        {"files": [["b" + PARTIAL.decode(), 3, 0o644, 1]]},
        {"files": [["a/b", 3, 0o644, 1], ["a/b", 0, 0o644, 1]]},
        {"files": [["a/b", -3, 0o644, 1]]},
        {"files": [["a/b", 1 << 62, 0o644, 1]]},
        {"files": [["a/b", True, 0o644, 1]]},
        {"links": [["a/c", "../../x"]]},
        {"links": [["a/c", "/etc/passwd"]]},
        {"links": [["a/c", "d/../../x"]]},
        {"folders": [["..", 0o755]]},
        {"hashes": "00" * 31},
        {"folder": False},
    ],
)
def test_a_hostile_list_of_files_is_refused(change: dict[str, Any]) -> None:
    assert decode(encoded(ONE)).files
    with pytest.raises(ValueError, match="not valid"):
        decode(encoded(ONE | change))


@given(ANY_JSON)
def test_any_other_json_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="not valid"):
        decode(encoded(value))


@given(path=PATHS, target=PATHS)
def test_a_link_that_is_taken_leads_to_below_the_root(path: str, target: str) -> None:
    """Whatever else is a link there: `l` leads back to the root, as the worst that is allowed."""
    raw, to = path.encode(), target.encode()
    if not is_below(raw) or not stays_inside(raw, to) or "l" in path.split("/"):
        return
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "root").resolve()
        place = root / path
        place.parent.mkdir(parents=True)
        deep = root / "deep"
        deep.mkdir()
        (root / "l").symlink_to("deep")
        if not place.exists():
            place.symlink_to(target)
            assert Path(os.path.realpath(place)).is_relative_to(root)
