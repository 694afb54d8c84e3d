"""What makes a checkpoint in a store whole, by a store that is a folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from train import object_store
from train.checkpoint import manifest, remote
from train.data.progress import SILENT
from train.errors import CheckpointError, ConfigError
from train.files import measure
from train.object_store import Folder


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Return a whole checkpoint, and make the folder `store`."""
    (tmp_path / "store").mkdir()
    return make(tmp_path / "output" / "step-000007")


def make(folder: Path, content: str = "weights") -> Path:
    folder.mkdir(parents=True)
    (folder / "state.json").write_text("{}")
    (folder / "shard").write_text(content)
    names = ("state.json", "shard")
    manifest.seal(folder, 7, {name: measure(folder / name) for name in names})
    return folder


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/store/run"


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the files that are sent, in their order; nobody waits for another try."""
    names: list[str] = []
    send = Folder.send

    def record(self: Folder, file: Path) -> None:
        Path(self.path).parent.mkdir(parents=True, exist_ok=True)  # as no store needs it
        send(self, file)
        names.append(file.name)

    monkeypatch.setattr(Folder, "send", record)
    monkeypatch.setattr("time.sleep", lambda _: None)
    return names


def bring(url: str, tmp_path: Path) -> Path:
    return remote.bring(url, tmp_path / "other", tell=print, reporter=SILENT)


def test_the_manifest_and_the_seal_come_last(
    checkpoint: Path, url: str, sent: list[str], tmp_path: Path
) -> None:
    assert remote.upload(checkpoint, url, print) > 0
    assert sent[-2:] == ["MANIFEST.json", "COMPLETE"]
    assert remote.upload(checkpoint, url, print) == 0, "it is there already"
    brought = bring(f"{url}/latest", tmp_path)
    assert brought == tmp_path / "other" / "step-000007"
    assert manifest.verify(brought) == manifest.verify(checkpoint)
    assert bring(f"{url}/step-000007", tmp_path) == brought


def test_what_another_history_left_there_is_not_whole_while_it_is_replaced(
    checkpoint: Path, url: str, sent: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote.upload(make(tmp_path / "before" / "step-000007", "wEIGHTS"), url, print)
    sealed: list[bool] = []
    send = Folder.send

    def look(self: Folder, file: Path) -> None:
        sealed.append((self.parent / "COMPLETE").size() is not None)
        send(self, file)

    monkeypatch.setattr(Folder, "send", look)
    remote.upload(checkpoint, url, print)
    assert not any(sealed)
    assert (bring(f"{url}/latest", tmp_path) / "shard").read_text() == "weights"


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def write(name: str, text: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / name).write_text(text)

    return damage


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (remove("COMPLETE"), "COMPLETE is missing: it was never uploaded whole"),
        (remove("MANIFEST.json"), "MANIFEST.json is missing"),
        (remove("shard"), "shard: expected 7 bytes, found none"),
        (write("shard", "weight"), "shard: expected 7 bytes, found 6 bytes"),
        (write("shard", "wEIGHTS"), "shard: expected 7 bytes with SHA-256 "),
        (write("MANIFEST.json", "{}"), "COMPLETE does not fit MANIFEST.json"),
    ],
)
def test_what_is_not_whole_is_refused(
    checkpoint: Path, url: str, sent: list[str], tmp_path: Path,
    damage: Callable[[Path], None], words: str,
) -> None:  # fmt: skip
    remote.upload(checkpoint, url, print)
    earlier = checkpoint.rename(checkpoint.with_name("step-000005"))
    remote.upload(earlier, url, print)
    damage(tmp_path / "store" / "run" / "step-000007")
    with pytest.raises(CheckpointError) as refused:
        bring(f"{url}/step-000007", tmp_path)
    assert words in str(refused.value)
    assert f"hint: the newest other one: --resume-from-checkpoint {url}/step-000005" in str(
        refused.value
    )
    assert not (tmp_path / "other" / "step-000007").exists()


def test_a_manifest_cannot_name_files_elsewhere(
    checkpoint: Path, url: str, sent: list[str], tmp_path: Path
) -> None:
    remote.upload(checkpoint, url, print)
    there = tmp_path / "store" / "run" / "step-000007"
    manifest.seal(there, 7, {"../../evil": measure(there / "shard")})
    with pytest.raises(CheckpointError, match="no file of a checkpoint"):
        bring(f"{url}/step-000007", tmp_path)


def test_an_interrupted_download_keeps_what_is_right(
    checkpoint: Path, url: str, sent: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote.upload(checkpoint, url, print)
    brought: list[str] = []
    load = Folder.bring

    def fail_once(self: Folder, file: Path) -> None:
        if self.name == "MANIFEST.json" and not brought.count(self.name):
            brought.append(self.name)
            raise KeyboardInterrupt
        brought.append(self.name)
        load(self, file)

    monkeypatch.setattr(Folder, "bring", fail_once)
    with pytest.raises(KeyboardInterrupt):
        bring(f"{url}/latest", tmp_path)
    bring(f"{url}/latest", tmp_path)
    assert brought == ["shard", "state.json", "MANIFEST.json", "MANIFEST.json", "COMPLETE"]


def test_another_checkpoint_of_that_name_is_set_aside(
    checkpoint: Path, url: str, sent: list[str], tmp_path: Path
) -> None:
    remote.upload(checkpoint, url, print)
    make(tmp_path / "other" / "step-000007", "another")
    bring(f"{url}/latest", tmp_path)
    (aside,) = (tmp_path / "other").glob("step-000007.aside-*")
    assert (aside / "shard").read_text() == "another"


def test_an_upload_is_tried_again_until_it_is_done(
    checkpoint: Path, url: str, sent: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = iter([OSError("no route"), PermissionError("expired"), OSError("reset")])
    send, told = Folder.send, list[str]()

    def fail(self: Folder, file: Path) -> None:
        for error in failures:
            raise error
        send(self, file)

    monkeypatch.setattr(Folder, "send", fail)
    remote.upload(checkpoint, url, told.append)
    assert told == [
        "OSError: no route; trying again in 1 s",
        "PermissionError: expired; trying again in 2 s",
        "OSError: reset; trying again in 4 s",
    ]


def test_waits_grow_up_to_five_minutes() -> None:
    waits = object_store.growing()
    assert [next(waits) for _ in range(10)][-3:] == [128.0, 256.0, 300.0]


def test_a_checkpoint_that_is_removed_amid_its_upload_ends_it(
    checkpoint: Path, url: str, sent: list[str]
) -> None:
    (checkpoint / "shard").unlink()
    with pytest.raises(manifest.CorruptCheckpoint, match="was removed or changed"):
        remote.upload(checkpoint, url, print)


def test_a_store_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Protocol not known: nothere"):
        Folder.at("nothere://bucket/run", key="upload_to")
    with pytest.raises(CheckpointError, match="uploaded whole, found no such file"):
        bring(f"file://{tmp_path}/latest", tmp_path)


def answered(error: Exception, code: str) -> Exception:
    """Return what s3fs makes of an answer without a message, such as Ceph's."""
    error.__cause__ = cause = Exception()
    cause.response = {"Error": {"Code": code, "Message": None}}  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize(
    ("fails", "error", "words"),
    [
        ("write", PermissionError("denied"), "denied\nhint: .*env_from of the job"),
        ("read", PermissionError("403: Forbidden"), "an upload needs s3:ListBucket, "),
        ("write", answered(PermissionError(None), "AccessDenied"), "Error: AccessDenied\n"),
        ("write", answered(FileNotFoundError(None), "NoSuchBucket"), "Error: NoSuchBucket$"),
        ("write", OSError("no route"), None),
    ],
)
def test_a_start_refuses_a_store_that_refuses_it_and_none_that_is_away(
    monkeypatch: pytest.MonkeyPatch, fails: str, error: Exception, words: str | None
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(Folder, fails, fail)
    told: list[str] = []
    if words:
        with pytest.raises(ConfigError, match=words):
            remote.probe("memory://bucket/run", told.append)
        return
    remote.probe("memory://bucket/run", told.append)
    assert told == ["upload_to: OSError: no route; tried again with the first checkpoint"]


def test_the_check_tries_to_write_and_looks_for_all_files(
    checkpoint: Path, url: str, sent: list[str], tmp_path: Path
) -> None:
    from train.config.config import Config
    from train.preflight import _store

    remote.upload(checkpoint, url, print)
    config = Config(
        name_or_path="m", dataset_path="d", upload_to=url, resume_from_checkpoint=f"{url}/latest"
    )
    written, found = _store(config)
    assert (written.state, found.state) == ("ok", "ok")
    assert "step-000007: " in found.said
    assert not list((tmp_path / "store" / "run").glob(".probe*"))
    (tmp_path / "store" / "run" / "step-000007" / "shard").unlink()
    *_, found = _store(config)
    assert found.state == "fail"
    assert "shard: expected 7 bytes, found none" in found.said
