"""The file of the quarantine in bad states, and with several writers."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

import pytest

from clusterctl.errors import ClusterError
from clusterctl.verbs.quarantine.entries import DAY, MOST, MOST_KEYS, Entries, Machine, put
from clusterctl.verbs.quarantine.store import FILE, change_entries, read_entries

NOW = 1_000_000_000.0


def add(root: Path, *names: str) -> None:
    for name in names:
        machine = Machine(cluster="lab", node=name, host=name, keys=("SHA256:a",))

        def change(entries: Entries, machine: Machine = machine) -> Entries:
            return put(entries, machine, "bad", now=NOW, until=NOW + DAY)

        change_entries(root, change)


def test_what_was_written_is_read_again_by_this_user_alone(tmp_path: Path) -> None:
    root = tmp_path / "state"
    assert read_entries(root) == ()
    add(root, "gpu1")
    (entry,) = read_entries(root)
    assert (entry.node, entry.keys, entry.until) == ("gpu1", ("SHA256:a",), NOW + DAY)
    assert (root / FILE).stat().st_mode & 0o777 == 0o600
    assert root.stat().st_mode & 0o777 == 0o700


def test_the_most_that_may_be_kept_can_be_read(tmp_path: Path) -> None:
    keys = tuple(f"SHA256:{number}{'k' * 42}" for number in range(MOST_KEYS))

    def change(entries: Entries) -> Entries:
        machine = Machine(cluster="lab", node="n" * 253, host="n" * 253, keys=keys)
        (entry,) = put(entries, machine, "\U0001f525" * 999, now=NOW, until=NOW + DAY)
        return (entry,) * MOST

    change_entries(tmp_path, change)
    assert len(read_entries(tmp_path)) == MOST


def test_keys_of_a_later_version_are_ignored(tmp_path: Path) -> None:
    add(tmp_path, "gpu1")
    document = json.loads((tmp_path / FILE).read_text())
    document["entries"][0]["color"] = document["moon"] = "full"
    (tmp_path / FILE).write_text(json.dumps(document))
    assert [one.node for one in read_entries(tmp_path)] == ["gpu1"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "it is damaged"),
        ('{"schema": 1, "entr', "it is damaged"),
        ("[1]", "it is damaged"),
        ("\0" * 99, "it is damaged"),
        ("[" * 99999, "it is damaged"),
        ('{"schema": 1}', "it is damaged: entries: expected a list, found None"),
        ('{"schema": 1, "entries": [{"cluster": "lab"}]}', "it is damaged: entries[0].node"),
        ('{"schema": 2, "entries": []}', "expected schema 1, found 2, of a later clusterctl"),
        (" " * (17 << 20), "expected at most 16777216 bytes, found more"),
    ],
    ids=range(9),
)
def test_a_file_that_cannot_be_read_is_told_and_never_replaced(
    tmp_path: Path, text: str, told: str
) -> None:
    path = tmp_path / FILE
    path.write_text(text)
    for attempt in (lambda: read_entries(tmp_path), lambda: add(tmp_path, "gpu1")):
        with pytest.raises(ClusterError) as refused:
            attempt()
        assert f"cannot read {path}" in str(refused.value)
        assert told in str(refused.value)
        assert f"mv {path} {path}.old" in (refused.value.hint or "")
    assert path.read_text() == text


def test_a_folder_that_cannot_be_written_is_told_with_what_helps(tmp_path: Path) -> None:
    root = tmp_path / "file"
    root.write_text("")
    assert read_entries(root) == ()
    with pytest.raises(ClusterError, match="cannot write"):
        add(root, "gpu1")
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(ClusterError, match="not a folder of this user alone") as refused:
        add(shared, "gpu1")
    assert refused.value.hint == f"chmod -R go-w {shared}"


def test_two_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    names = [[f"w{writer}n{number}" for number in range(20)] for writer in range(3)]
    writers = [context.Process(target=add, args=(tmp_path, *some)) for some in names]
    for one in writers:
        one.start()
    for one in writers:
        one.join(60)
        assert one.exitcode == 0
    assert {one.node for one in read_entries(tmp_path)} == {name for some in names for name in some}
    assert sorted(path.name for path in tmp_path.iterdir()) == [FILE, f"{FILE}.lock"]
