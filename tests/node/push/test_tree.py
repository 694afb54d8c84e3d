"""A tree on a node: what comes is verified, and a file takes its place whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clusterctl.node.push.manifest import BLOCK, PARTIAL, Manifest, read_tree
from clusterctl.node.push.tree import Tree


def source_of(folder: Path, **files: bytes) -> Manifest:
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return read_tree(os.fsencode(folder), lambda _: None)


def pushed(source: Path, target: Path, manifest: Manifest, *, only: int | None = None) -> Tree:
    """Bring a tree from a folder to another one; with `only`, its first missing blocks alone."""
    tree = Tree(os.fsencode(target), manifest)
    tree.compare()
    tree.begin()
    reader = Tree(os.fsencode(source), manifest, source=True).reader()
    missing = [n for n in range(manifest.blocks) if not tree.have[n]]
    for index in missing[:only]:
        assert tree.write(index, memoryview(reader.read(index)))
    reader.close()
    if tree.complete:
        assert tree.finish() == []
    tree.close()
    return tree


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    return source, target


def test_a_tree_arrives_as_it_is(places: tuple[Path, Path]) -> None:
    source, target = places
    (source / "sub").mkdir(mode=0o750)
    (source / "sub" / "link").symlink_to("../b")
    manifest = source_of(source, a=os.urandom(BLOCK + 5), b=b"", c=b"x")
    (source / "c").chmod(0o4640)
    manifest = read_tree(os.fsencode(source), lambda _: None)
    assert pushed(source, target, manifest).complete
    for name in ("a", "b", "c"):
        assert (target / name).read_bytes() == (source / name).read_bytes()
        assert (target / name).stat().st_mtime_ns == (source / name).stat().st_mtime_ns
    assert (target / "c").stat().st_mode & 0o7777 == 0o640
    assert (target / "sub" / "link").readlink() == Path("../b")
    assert (target / "sub").stat().st_mode & 0o777 == 0o750
    assert not list(target.rglob(f"*{PARTIAL.decode()}"))
    again = Tree(os.fsencode(target), manifest)
    assert again.compare()["missing"] == 0
    assert again.complete


def test_what_an_interrupted_push_wrote_is_not_sent_again(places: tuple[Path, Path]) -> None:
    source, target = places
    manifest = source_of(source, a=os.urandom(4 * BLOCK))
    pushed(source, target, manifest, only=2)
    assert not (target / "a").exists()
    (partial,) = target.iterdir()
    assert partial.stat().st_mode & 0o777 == 0o600
    with partial.open("r+b") as file:
        file.write(b"damaged meanwhile")
    tree = pushed(source, target, manifest)
    assert tree.received == 3 * BLOCK
    assert (target / "a").read_bytes() == (source / "a").read_bytes()


def test_blocks_of_an_older_file_are_used(places: tuple[Path, Path]) -> None:
    source, target = places
    manifest = source_of(source, a=os.urandom(3 * BLOCK) + b"new lines")
    target.mkdir()
    (target / "a").write_bytes((source / "a").read_bytes()[: 3 * BLOCK])
    before = (target / "a").stat().st_ino
    tree = pushed(source, target, manifest)
    assert tree.received == len(b"new lines")
    assert (target / "a").read_bytes() == (source / "a").read_bytes()
    assert (target / "a").stat().st_ino != before  # replaced whole, for who reads it meanwhile


def test_a_whole_file_is_not_replaced_by_an_old_partial_one(places: tuple[Path, Path]) -> None:
    source, target = places
    manifest = source_of(source, a=os.urandom(2 * BLOCK))
    pushed(source, target, manifest, only=1)
    (target / "a").write_bytes((source / "a").read_bytes())
    assert pushed(source, target, manifest).received == 0
    assert (target / "a").read_bytes() == (source / "a").read_bytes()


def test_a_wrong_block_is_refused(places: tuple[Path, Path]) -> None:
    source, target = places
    manifest = source_of(source, a=b"right")
    tree = Tree(os.fsencode(target), manifest)
    tree.compare()
    tree.begin()
    assert not tree.write(0, memoryview(b"wrong"))
    assert not tree.write(0, memoryview(b"right but longer"))
    assert not tree.complete
    assert not (target / "a").exists()


def test_no_link_in_the_target_leads_a_file_out_of_it(places: tuple[Path, Path]) -> None:
    source, target = places
    (source / "sub").mkdir()
    (source / "sub" / "a").write_bytes(b"new")
    manifest = read_tree(os.fsencode(source), lambda _: None)
    outside = target.with_name("outside")
    outside.mkdir()
    (outside / "a").write_bytes(b"old")
    target.mkdir()
    (target / "sub").symlink_to(outside)
    with pytest.raises(NotADirectoryError):
        pushed(source, target, manifest)
    (target / "sub").unlink()
    (target / "sub").mkdir()
    (target / "sub" / "a").symlink_to(outside / "a")
    pushed(source, target, manifest)
    assert (outside / "a").read_bytes() == b"old"
    assert (target / "sub" / "a").read_bytes() == b"new"


def test_a_partial_file_that_somebody_else_placed_is_not_written(places: tuple[Path, Path]) -> None:
    source, target = places
    manifest = source_of(source, a=os.urandom(2 * BLOCK))
    pushed(source, target, manifest, only=1)
    (partial,) = target.iterdir()
    theirs = target.with_name("theirs")
    theirs.write_bytes(b"theirs")
    partial.unlink()
    os.link(theirs, partial)
    pushed(source, target, manifest)
    assert theirs.read_bytes() == b"theirs"
    assert (target / "a").read_bytes() == (source / "a").read_bytes()


def test_names_that_the_source_does_not_have_are_told(places: tuple[Path, Path]) -> None:
    source, target = places
    manifest = source_of(source, a=b"x")
    (target / "sub").mkdir(parents=True)
    (target / "sub" / "old").touch()
    tree = Tree(os.fsencode(target), manifest)
    tree.compare()
    tree.begin()
    assert tree.write(0, memoryview(b"x"))
    assert tree.finish() == ["sub/old"]
