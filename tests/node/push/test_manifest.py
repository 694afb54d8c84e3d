"""What a tree consists of, and which lists of files a node refuses."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.node.agent.call_channel import CallChannel, OperationError
from clusterctl.node.push import manifest
from clusterctl.node.push.look import look
from clusterctl.node.push.manifest import (
    BLOCK,
    MAX_ENTRIES,
    MODES,
    PARTIAL,
    SIZE_LIMIT,
    File,
    Manifest,
    TooManyFilesError,
    decode,
    is_below,
    read_tree,
    stays_inside,
)
from clusterctl.node.push.push import describe
from tests.damage import damaged
from tests.waiting import BUSY

LIMITS = {"entries": MAX_ENTRIES, "bytes": SIZE_LIMIT}
ONE: dict[str, Any] = {
    "folder": True,
    "files": [File(b"a/b", 3, 0o644, 1)],
    "links": [(b"a/c", b"../x")],
    "folders": [(b"a", 0o755)],
    "hashes": bytes(32),
}
PARTS = st.sampled_from(["..", ".", "a", "b", "l", ""])
PATHS = st.lists(PARTS, min_size=1, max_size=5).map("/".join)


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
        {"files": [File(b"../b", 3, 0o644, 1)]},
        {"files": [File(b"/etc/b", 3, 0o644, 1)]},
        {"files": [File(b"a/../../b", 3, 0o644, 1)]},
        {"files": [File(b"a/b\0c", 3, 0o644, 1)]},
        {"files": [File(b"b" + PARTIAL, 3, 0o644, 1)]},
        {"files": [File(b"a/b", 3, 0o644, 1), File(b"a/b", 0, 0o644, 1)]},
        {"files": [File(b"a/b", -3, 0o644, 1)]},
        {"files": [File(b"a/b", 1 << 62, 0o644, 1)]},
        {"files": [File(b"a/b", 3, 0o644, 1 << 63)]},
        {"files": [File(b"a/b", 3, 10000, 1)]},
        {"links": [(b"a/c", b"../../x")]},
        {"links": [(b"a/c", b"/etc/passwd")]},
        {"links": [(b"a/c", b"d/../../x")]},
        {"links": [(b"a/c", b"")]},
        {"folders": [(b"..", 0o755)]},
        {"folders": [(b"", 0o755)]},
        {"hashes": bytes(31)},
        {"hashes": bytes(64)},
        {"folder": False},
    ],
)
def test_a_hostile_list_of_files_is_refused(change: dict[str, Any]) -> None:
    assert decode(Manifest(**ONE).encode()).files
    with pytest.raises(ValueError, match="not valid"):
        decode(Manifest(**ONE | change).encode())


@given(st.binary() | damaged(zlib.decompress(Manifest(**ONE).encode())))
def test_any_other_bytes_are_refused_or_stay_below_the_root(text: bytes) -> None:
    with pytest.raises(ValueError, match="not valid"):
        decode(text)
    try:
        found = decode(zlib.compress(text))
    except ValueError:
        return
    names = [f.path for f in found.files if found.folder]
    names += [path for path, _ in found.folders] + [path for path, _ in found.links]
    assert all(map(is_below, names))


def test_a_tree_of_many_files_is_read_back_as_it_was() -> None:
    files = [File(b"%d\n\xff" % n, n, n & MODES, n) for n in range(50_000)]
    hashes = os.urandom(32 * 49_999)
    made = Manifest(folder=True, files=files, links=[], folders=[], hashes=hashes)
    found = decode(made.encode())
    assert (found.files, found.hashes) == (files, hashes)


BOMBS = {
    "entries": b"folder" + b"\0d0 x" * 25_000_000,
    "bytes": b"folder\0f0 0 0 " + bytes(1) * (SIZE_LIMIT + 1),
}
DECODE = """
import resource, sys
from clusterctl.node.push.manifest import decode
data = sys.stdin.buffer.read()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    decode(data)
except ValueError as error:
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10, error)
"""


@pytest.mark.parametrize("kind", BOMBS)
def test_a_list_that_is_far_too_long_costs_no_more_than_its_bytes(kind: str) -> None:
    """As JSON of empty lists 1 MB of it took 26 GiB."""
    data = zlib.compress(BOMBS[kind])
    assert len(data) < 1 << 20
    done = subprocess.run(
        [sys.executable, "-c", DECODE], input=data, capture_output=True, check=True, timeout=BUSY
    )
    used, _, words = done.stdout.decode().partition(" ")
    assert f"it has more than {LIMITS[kind]} {kind}" in words
    assert int(used) < 3 * (SIZE_LIMIT >> 20)


def test_the_source_refuses_what_no_node_would_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        (tmp_path / str(number)).touch()
    monkeypatch.setattr(manifest, "MAX_ENTRIES", 5)
    root = os.fsencode(tmp_path)
    assert len(decode(read_tree(root, lambda _: None).encode()).files) == 5
    (tmp_path / "one more").symlink_to("0")
    with pytest.raises(TooManyFilesError, match="more than 5 files"):
        read_tree(root, lambda _: None)
    monkeypatch.setattr(manifest, "MAX_ENTRIES", 6)
    monkeypatch.setattr(manifest, "SIZE_LIMIT", 99)
    with pytest.raises(TooManyFilesError, match=r"has \d+ bytes; a push takes 6 and 99"):
        read_tree(root, lambda _: None).encode()
    with pytest.raises(OperationError) as caught:
        describe({"path": str(tmp_path)}, b"", CallChannel(io.BytesIO(), -1))
    assert caught.value.kind == "too-many-files"


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


def test_a_folder_that_cannot_be_read_is_left_out_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("open/file", "shut/file"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    scan = os.scandir

    def scandir(path: bytes) -> Any:
        if path == os.fsencode(tmp_path / "shut"):
            raise PermissionError(13, "Permission denied", path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", scandir)
    left_out: list[bytes] = []
    found = read_tree(os.fsencode(tmp_path), lambda _: None, left_out)
    assert ([f.path for f in found.files], left_out) == ([b"open/file"], [b"shut"])
    assert [path for path, _ in found.folders] == [b"open"]
    with pytest.raises(PermissionError):
        read_tree(os.fsencode(tmp_path), lambda _: None)
    with pytest.raises(PermissionError):
        read_tree(os.fsencode(tmp_path / "shut"), lambda _: None, left_out)


def test_a_look_at_a_pipe_does_not_wait_for_a_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    channel = CallChannel(io.BytesIO(), -1)
    (found,) = look({"paths": [str(tmp_path / "pipe")]}, b"", channel).head["found"]
    assert found == {"exists": True, "problem": f"{tmp_path}/pipe is neither a file nor a folder"}
