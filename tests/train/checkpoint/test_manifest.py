"""What a killed run left: sealed folders get their names back, half-written ones go."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from train.checkpoint import manifest
from train.files import measure


def sealed(folder: Path, content: str = "x") -> Path:
    folder.mkdir(parents=True)
    (folder / "file").write_text(content)
    manifest.seal(folder, 7, {"file": measure(folder / "file")})
    return folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_crash_between_the_renames_loses_no_step(tmp_path: Path) -> None:
    sealed(tmp_path / "step-000007.tmp-0123abcd", "new")
    sealed(tmp_path / "step-000007.tmp-old-123", "old")
    manifest.sweep(tmp_path)
    assert names(tmp_path) == ["step-000007"]
    assert (tmp_path / "step-000007/file").read_text() == "new"


def test_the_old_one_comes_back_where_the_new_one_is_not_whole(tmp_path: Path) -> None:
    (tmp_path / "step-000007.tmp-0123abcd").mkdir()
    sealed(tmp_path / "step-000007.tmp-old-123", "old")
    manifest.sweep(tmp_path)
    assert names(tmp_path) == ["step-000007"]
    assert (tmp_path / "step-000007/file").read_text() == "old"


def test_what_is_there_is_not_replaced(tmp_path: Path) -> None:
    sealed(tmp_path / "step-000007", "there")
    sealed(tmp_path / "step-000007.tmp-0123abcd", "other")
    manifest.sweep(tmp_path)
    assert names(tmp_path) == ["step-000007"]
    assert (tmp_path / "step-000007/file").read_text() == "there"


@pytest.mark.parametrize("name", ["tmp-pruned", "tmp-brought", "tmp-left"])
def test_what_was_to_be_removed_does_not_come_back(tmp_path: Path, name: str) -> None:
    sealed(tmp_path / f"step-000007.{name}")
    manifest.sweep(tmp_path)
    assert names(tmp_path) == []


def test_half_a_folder_gets_no_name(tmp_path: Path) -> None:
    folder = sealed(tmp_path / "step-000007.tmp-0123abcd")
    (folder / "COMPLETE").unlink()
    manifest.sweep(tmp_path)
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{}",
        '{"files": []}',
        '{"files": {"f": 1}}',
        '{"files": {"f": {"size": 1}}}',
        "?",
        "\xff",
    ],
)
def test_a_manifest_of_another_program_is_damage(tmp_path: Path, text: str) -> None:
    (tmp_path / "MANIFEST.json").write_bytes(text.encode("latin-1"))
    digest = measure(tmp_path / "MANIFEST.json").sha256
    (tmp_path / "COMPLETE").write_text(f"{digest}\n")
    with pytest.raises(manifest.CorruptCheckpoint, match="is of another program"):
        manifest.verify(tmp_path)


def test_a_seal_of_another_manifest_or_without_its_end_is_damage(tmp_path: Path) -> None:
    seal = sealed(tmp_path / "step-000007") / "COMPLETE"
    for text in (seal.read_text().rstrip("\n"), f"{'0' * 64}\n"):
        seal.write_text(text)
        with pytest.raises(manifest.CorruptCheckpoint, match="does not fit"):
            manifest.verify(seal.parent)


def test_a_byte_that_was_changed_is_damage(tmp_path: Path) -> None:
    (sealed(tmp_path / "step-000007") / "file").write_text("y")
    with pytest.raises(manifest.CorruptCheckpoint, match="its bytes were changed"):
        manifest.verify(tmp_path / "step-000007")


def test_the_newest_that_are_whole_are_kept(tmp_path: Path) -> None:
    for step in range(1, 6):
        sealed(tmp_path / f"step-00000{step}")
    (tmp_path / "step-000004/COMPLETE").unlink()
    manifest.prune(tmp_path, 2)
    assert names(tmp_path) == ["step-000003", "step-000004", "step-000005"]


def test_what_is_of_another_history_is_set_aside_but_not_the_base(tmp_path: Path) -> None:
    for name in ("step-000007", "step-000008", "adapter", "model"):
        sealed(tmp_path / name)
    for name in ("adapter", "model"):
        (tmp_path / name / "config.json").write_text("{}")
    manifest.set_aside(tmp_path, 7, "m", tmp_path / "model")
    assert names(tmp_path) == ["adapter.aside-m", "model", "step-000007", "step-000008.aside-m"]


@pytest.mark.parametrize("name", ["MANIFEST.json", "file"])
def test_what_cannot_be_read_is_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    sealed(tmp_path / "step-000007")
    real = Path.open

    def refused(path: Path, *args: Any, **how: Any) -> Any:
        if path.name == name:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *args, **how)

    monkeypatch.setattr(Path, "open", refused)

    def read_bytes(path: Path) -> bytes:
        with path.open("rb") as file:
            content: bytes = file.read()
            return content

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    with pytest.raises(manifest.CorruptCheckpoint, match=r"cannot be read: .*Permission denied"):
        manifest.verify(tmp_path / "step-000007")


def test_a_manifest_says_which_run_wrote_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for run in ("", "lab-1"):
        monkeypatch.setenv("CLUSTERCTL_RUN_ID", run)
        folder = tmp_path / f"step-00000{len(run)}"
        folder.mkdir()
        (folder / "a").write_text("a")
        manifest.seal(folder, 1, {"a": measure(folder / "a")})
        said = json.loads((folder / "MANIFEST.json").read_text())
        assert said.get("run", "") == run
        manifest.verify(folder)
