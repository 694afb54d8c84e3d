"""One pass over the data finds its digest and its parts, once a node, and again when it changes."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from train.data import fingerprint
from train.data.files import lines
from train.data.files.lines import FileScan, Line
from train.errors import AnotherRankFailed, ConfigError


def parts_of(files: tuple[Path, ...], found: fingerprint.Scan) -> list[list[Line]]:
    ends = (*found.marks[1:], None)
    return [
        list(lines.read(files, begin, end)) for begin, end in zip(found.marks, ends, strict=True)
    ]


@settings(max_examples=60, deadline=None)
@given(
    contents=st.lists(st.text("ab\n", max_size=40), min_size=1, max_size=4), parts=st.integers(1, 9)
)
def test_parts_are_all_lines_once_wherever_they_begin(
    tmp_path_factory: pytest.TempPathFactory, contents: list[str], parts: int
) -> None:
    folder = tmp_path_factory.mktemp("data")
    files = tuple(folder / f"{number}.jsonl" for number in range(len(contents)))
    for path, content in zip(files, contents, strict=True):
        path.write_text(content)
    found = fingerprint.scan(files, parts)
    assert len(found.marks) == parts
    together = list(itertools.chain.from_iterable(parts_of(files, found)))
    assert together == list(lines.read(files))
    assert found.digest == fingerprint.scan(files, 1).digest


def test_parts_are_of_about_the_same_size(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f"line {number}\n" for number in range(1000)))
    counts = [len(part) for part in parts_of((path,), fingerprint.scan((path,), 5))]
    assert sum(counts) == 1000
    assert max(counts) - min(counts) < 30


def test_the_digest_is_of_what_files_hold_and_not_of_their_names(tmp_path: Path) -> None:
    one, two, three = (tmp_path / name for name in "abc")
    one.write_text("x\n")
    two.write_text("x\n")
    three.write_text("y\n")
    digests = [fingerprint.scan((path,), 1).digest for path in (one, two, three)]
    assert digests[0] == digests[1] != digests[2]


def test_only_the_first_process_of_a_node_reads_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("x\n" * 100)
    found = fingerprint.shared((path,), 3, tmp_path, local_rank=0)

    def never(*_: object) -> None:
        raise AssertionError("read again")

    monkeypatch.setattr(fingerprint, "scan", never)
    assert fingerprint.shared((path,), 3, tmp_path, local_rank=1) == found


def test_the_others_wait_for_the_first_as_long_as_it_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("x\n" * 100)
    plainly = fingerprint.scan

    def slowly(*words: Any) -> fingerprint.Scan:
        time.sleep(1.5)
        return plainly(*words)

    monkeypatch.setattr(fingerprint, "scan", slowly)
    how = {"local_rank": 0}
    first = threading.Thread(target=fingerprint.shared, args=((path,), 3, tmp_path), kwargs=how)
    first.start()
    assert len(fingerprint.shared((path,), 3, tmp_path, local_rank=1).marks) == 3
    first.join()
    assert [item.name for item in tmp_path.iterdir() if item.suffix != ".json"] == ["a.jsonl"]
    path.write_text("y\n")

    def failed() -> None:
        raise AnotherRankFailed("rank 0")

    with pytest.raises(AnotherRankFailed, match="rank 0"):
        fingerprint.shared((path,), 3, tmp_path, local_rank=1, check=failed)


def test_data_that_changed_is_read_again_whatever_its_size_and_time(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("x\n")
    before = path.stat()
    first = fingerprint.shared((path,), 1, tmp_path, local_rank=0)
    path.write_text("y\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    for local_rank in (0, 1):
        assert (
            fingerprint.shared((path,), 1, tmp_path, local_rank=local_rank).digest != first.digest
        )


def test_what_was_found_right_after_a_change_is_not_relied_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("x\n")
    reads = mock.Mock(side_effect=fingerprint.scan)
    monkeypatch.setattr(fingerprint, "scan", reads)
    for unsure in (fingerprint.UNSURE, fingerprint.UNSURE, 0, 0):
        monkeypatch.setattr(fingerprint, "UNSURE", unsure)
        fingerprint.shared((path,), 1, tmp_path, local_rank=0)
    assert reads.call_count == 2


def test_data_that_is_written_to_meanwhile_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("x\n")
    plainly = lines.scan

    def growing(of: Path, targets: Sequence[int]) -> FileScan:
        found = plainly(of, targets)
        with of.open("a") as file:
            file.write("y\n")
        return found

    monkeypatch.setattr(lines, "scan", growing)
    with pytest.raises(ConfigError, match="expected data that stays as it is"):
        fingerprint.scan((path,), 1)
