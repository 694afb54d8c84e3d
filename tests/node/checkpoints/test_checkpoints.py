"""A checkpoint is complete only when each byte that must be there is there."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import struct
import zipfile
from pathlib import Path

import pytest

from clusterctl.node.agent.call_channel import OperationError
from clusterctl.node.checkpoints import checkpoints as checkpoints_module
from tests.node.checkpoints.written import (
    ask,
    flip_a_bit,
    judged,
    ours,
    rank_files,
    torch_file,
    trainer,
    verl,
)


def test_ours_whole(tmp_path: Path) -> None:
    found = judged(ours(tmp_path / "step-000120"))
    assert (found["complete"], found["format"], found["step"]) == (True, "clusterctl", 120)
    assert found["why"] == ""


@pytest.mark.parametrize("name", ["__0_0.distcp", "__1_0.distcp", "state.json"])
def test_ours_with_any_flipped_bit_is_refused(tmp_path: Path, name: str) -> None:
    path = ours(tmp_path / "step-1")
    flip_a_bit(path / name, 5)
    found = judged(path)
    assert not found["complete"]
    assert f"{name} is changed" in found["why"]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("__1_0.distcp", "__1_0.distcp is missing"),
        ("MANIFEST.json", "MANIFEST.json is missing"),
        ("COMPLETE", "COMPLETE is missing"),
    ],
)
def test_ours_with_a_missing_file_is_refused_without_reading_content(
    tmp_path: Path, name: str, why: str
) -> None:
    path = ours(tmp_path / "step-1")
    (path / name).unlink()
    found = judged(path, verify=False)
    assert not found["complete"]
    assert why in found["why"]


def test_ours_with_a_changed_manifest_is_refused(tmp_path: Path) -> None:
    path = ours(tmp_path / "step-1")
    flip_a_bit(path / "MANIFEST.json", 30)
    assert "not the one that COMPLETE was written for" in judged(path)["why"]


def test_a_manifest_cannot_name_files_outside(tmp_path: Path) -> None:
    path = ours(tmp_path / "step-1")
    manifest = path / "MANIFEST.json"
    manifest.write_text(json.dumps({"files": {"../../etc/passwd": {"size": 1, "sha256": "x"}}}))
    (path / "COMPLETE").write_text(hashlib.sha256(manifest.read_bytes()).hexdigest() + "\n")
    assert "broken entry" in judged(path)["why"]


def test_trainer(tmp_path: Path) -> None:
    found = judged(trainer(tmp_path / "checkpoint-20"))
    assert (found["complete"], found["format"], found["step"]) == (True, "trainer", 20)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("model-00002-of-00002.safetensors", "model-00002-of-00002.safetensors is missing"),
        ("trainer_state.json", "trainer_state.json, which is written last, is missing"),
        ("model.safetensors.index.json", "it holds no weights"),
    ],
)
def test_trainer_with_a_missing_file_is_refused(tmp_path: Path, name: str, why: str) -> None:
    path = trainer(tmp_path / "checkpoint-20")
    (path / name).unlink()
    assert why in judged(path, verify=False)["why"]


def test_cut_files_are_refused(tmp_path: Path) -> None:
    path = trainer(tmp_path / "checkpoint-20")
    shard = path / "model-00001-of-00002.safetensors"
    os.truncate(shard, shard.stat().st_size - 1)
    assert "its header says" in judged(path, verify=False)["why"]
    other = trainer(tmp_path / "checkpoint-40")
    os.truncate(other / "optimizer.pt", 500)
    assert "optimizer.pt is cut" in judged(other, verify=False)["why"]


def test_a_flipped_bit_in_a_torch_file_is_found_by_its_checksum(tmp_path: Path) -> None:
    path = torch_file(tmp_path / "checkpoint_0001000.pt")
    assert judged(path)["complete"]
    assert judged(path)["step"] == 1000
    flip_a_bit(path, 300)
    assert judged(path, verify=False)["complete"]
    assert "is changed" in judged(path)["why"]


def damaged(folder: Path) -> dict[str, Path]:
    """Make checkpoints whose damage no checksum meets first, each by what is read of it."""
    flagged = torch_file(folder / "a_1.pt")
    directory = flagged.read_bytes().index(b"PK\x01\x02")
    flip_a_bit(flagged, directory + 8)  # says that the record is encrypted
    header = b'{"w": {"data_offsets": [0, "64"]}}'
    offsets = folder / "b_2.safetensors"
    offsets.write_bytes(struct.pack("<Q", len(header)) + header + bytes(64))
    metadata = folder / "c_3" / ".metadata"
    metadata.parent.mkdir()
    metadata.write_bytes(b"\x80\x04\x95" + b"\xff" * 8)  # a pickle's frame of 2 ** 64 bytes
    return {
        "not as the directory says": flagged,
        "broken safetensors": offsets,
        "not a torch": metadata.parent,
    }


def test_no_damage_hides_the_other_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    spoilt = damaged(tmp_path / "out")
    torch_file(tmp_path / "out" / "whole_4.pt")
    for why, path in spoilt.items():
        found = judged(path)
        assert not found["complete"]
        assert why in found["why"]
    (tmp_path / "out" / "c_3" / ".metadata").unlink()
    (tmp_path / "out" / "c_3").rmdir()  # beside folders only files count that are named as one
    found = {one["name"]: one["complete"] for one in ask(tmp_path, path="out", verify=True)}
    assert found == {"whole_4.pt": True, "a_1.pt": False, "b_2.safetensors": False}


def test_rank_files_on_shared_storage(tmp_path: Path) -> None:
    found = judged(rank_files(tmp_path / "checkpoint-20", range(4)))
    assert (found["complete"], found["format"]) == (True, "rank-files")
    (tmp_path / "checkpoint-20" / "model_state_rank2.pt").unlink()
    assert "model_state_rank2.pt is missing" in judged(tmp_path / "checkpoint-20")["why"]


def test_rank_files_of_one_node_say_which_part_they_are(tmp_path: Path) -> None:
    found = judged(rank_files(tmp_path / "checkpoint-20", range(2, 4)), world_size=4)
    assert not found["complete"]
    part = found["part"]
    assert (part["ranks"], part["supposed"], part["metadata"]) == ([2, 3], 4, False)


def test_shards_of_verl_are_complete_if_all_ranks_of_their_names_are_there(tmp_path: Path) -> None:
    path = verl(tmp_path / "global_step_10", range(4))
    found = judged(path)
    assert (found["complete"], found["format"], found["step"]) == (True, "verl", 10)
    (path / "actor" / "optim_world_size_4_rank_3.pt").unlink()
    found = judged(path)
    why = "saved by 4 ranks: actor/optim_world_size_4_rank_3.pt is missing"
    assert (found["complete"], found["why"], found["part"]["ranks"]) == (False, why, [0, 1, 2])
    flip_a_bit(path / "actor" / "model_world_size_4_rank_1.pt", 200)
    assert "model_world_size_4_rank_1.pt is changed" in judged(path)["why"]


def test_a_file_of_a_step_needs_those_of_all_ranks_that_older_steps_have(tmp_path: Path) -> None:
    for step in ("000100", "000200"):
        for name in ("model_%s", "optim_%s_rank0", "optim_%s_rank1"):
            torch_file(tmp_path / f"{name % step}.pt")
    assert all(one["complete"] for one in ask(tmp_path))
    (tmp_path / "optim_000200_rank1.pt").unlink()
    why = "optim_*_rank1.pt of step 200 is missing: older ones have it"
    assert {one["why"] for one in ask(tmp_path) if one["step"] == 200} == {why}
    assert all(one["complete"] for one in ask(tmp_path) if one["step"] == 100)


def test_checkpoints_of_a_programs_own_folders_are_found_below(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for folder, names in (
        ("20261130-0123-resnet", ("checkpoint-1.pth.tar", "last.pth.tar")),  # timm
        ("exp2/weights", ("last.pt",)),  # YOLO
    ):
        (out / folder).mkdir(parents=True)
        for name in names:
            torch_file(out / folder / name)
    found = {one["name"]: one for one in ask(tmp_path, path="out")}
    assert set(found) == {
        "20261130-0123-resnet/checkpoint-1.pth.tar",
        "20261130-0123-resnet/last.pth.tar",
        "exp2/weights/last.pt",
    }
    last = found["exp2/weights/last.pt"]
    assert (last["path"], last["complete"]) == (str(out / "exp2/weights/last.pt"), True)
    torch_file(out / "step_5.pt")
    assert [one["name"] for one in ask(tmp_path, path="out")] == ["step_5.pt"]


@pytest.mark.parametrize("run", ["2026-11-30_04-45-40", "2026-11-30/04-45-40"])
def test_checkpoints_below_the_dated_folder_of_a_run_are_found(tmp_path: Path, run: str) -> None:
    (tmp_path / "out" / "2026-11-30_04-44-31" / ".hydra").mkdir(parents=True)
    folder = tmp_path / "out" / run / "checkpoints"
    folder.mkdir(parents=True)
    torch_file(folder / "last.ckpt")
    (found,) = ask(tmp_path, path="out")
    assert (found["name"], found["complete"]) == (f"{run}/checkpoints/last.ckpt", True)
    (tmp_path / "out" / "step_5").mkdir()  # it lost its files: nothing older is taken unnoticed
    assert {one["name"] for one in ask(tmp_path, path="out")} >= {"step_5"}


def test_shards_of_two_numbers_of_ranks_are_of_two_saves(tmp_path: Path) -> None:
    path = verl(tmp_path / "global_step_10", range(4))
    torch_file(path / "actor" / "model_world_size_2_rank_0.pt")
    assert "shards of 2 and 4 ranks" in judged(path)["why"]


def test_shards_of_verl_on_one_of_two_nodes_are_a_part(tmp_path: Path) -> None:
    part = judged(verl(tmp_path / "global_step_10", range(2, 4)))["part"]
    assert (part["ranks"], part["world_size"], part["whole"]) == ([2, 3], 4, False)


def with_step(path: Path, step: int) -> None:
    """Write what torch.save writes of a dict with a step in it."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"step": step, "model": {}}))


def test_files_of_two_saves_in_one_folder_are_refused(tmp_path: Path) -> None:
    path = rank_files(tmp_path / "checkpoint-20", range(4))
    for rank in range(4):
        with_step(path / f"model_state_rank{rank}.pt", 20)
    assert judged(path)["complete"]
    with_step(path / "model_state_rank3.pt", 10)
    assert "two saves are mixed" in judged(path, verify=False)["why"]


def test_ranks_files_far_apart_are_of_one_save_if_each_says_the_same_step(tmp_path: Path) -> None:
    path = rank_files(tmp_path / "checkpoint-20", range(4))
    os.utime(path / "model_state_rank3.pt", (1000, 1000))
    assert "s apart" in judged(path)["why"]
    for rank in range(4):
        with_step(path / f"model_state_rank{rank}.pt", 20)
        os.utime(path / f"model_state_rank{rank}.pt", (1000 * rank, 1000 * rank))
    assert judged(path)["complete"]


def test_a_checkpoint_that_goes_away_meanwhile_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours(tmp_path / "out" / "step-000020", step=20)
    gone = str(tmp_path / "out" / "step-000040")
    there = str(tmp_path / "out" / "step-000020")
    monkeypatch.setattr(checkpoints_module, "_found_in", lambda _folder, _pulse: [there, gone])
    found = ask(tmp_path, path="out")
    assert {one["name"]: one["complete"] for one in found} == {
        "step-000020": True,
        "step-000040": False,
    }
    assert "while we looked" in next(one["why"] for one in found if not one["complete"])


def test_a_broken_rank_file_is_no_part(tmp_path: Path) -> None:
    path = rank_files(tmp_path / "checkpoint-20", range(2))
    flip_a_bit(path / "model_state_rank1.pt", 200)
    found = judged(path)
    assert "model_state_rank1.pt is changed" in found["why"]
    assert found["part"] is None


def test_all_are_listed_and_what_is_unfinished_is_named(tmp_path: Path) -> None:
    ours(tmp_path / "out" / "step-000020", step=20)
    ours(tmp_path / "out" / "step-000100", step=100)
    (tmp_path / "out" / "step-000120.tmp-a1b2").mkdir()
    (tmp_path / "out" / "runs").mkdir()
    found = {one["step"]: one for one in ask(tmp_path, path="out")}
    assert {step: one["complete"] for step, one in found.items()} == {
        120: False,
        100: True,
        20: True,
    }
    assert "being written" in found[120]["why"]


def test_the_same_checkpoint_elsewhere_has_the_same_hash(tmp_path: Path) -> None:
    for make, name in ((ours, "step-1"), (trainer, "checkpoint-1")):
        first, second = make(tmp_path / "a" / name), make(tmp_path / "b" / name)
        assert judged(first)["hash"] == judged(second)["hash"] != ""


def test_what_is_missing_is_an_error_that_names_both_places(tmp_path: Path) -> None:
    with pytest.raises(OperationError, match=r"there is no .*nope"):
        ask(tmp_path, path="out", which="nope")
    with pytest.raises(OperationError, match="cannot list"):
        ask(tmp_path, path="out")


def test_a_link_is_the_checkpoint_that_it_leads_to(tmp_path: Path) -> None:
    folder = tmp_path / "out" / "step_20"
    folder.mkdir(parents=True)
    torch_file(folder / "model.pt")
    (tmp_path / "out" / "latest").symlink_to("step_20")
    (tmp_path / "out" / "newest").symlink_to("latest")
    for name in ("latest", "out/newest"):
        (found,) = ask(tmp_path, path="out", which=f"./{name}")
        assert (found["path"], found["step"], found["complete"]) == (str(folder), 20, True)
    (tmp_path / "out" / "gone").symlink_to("nothing")
    with pytest.raises(OperationError, match=r"there is no .*gone"):
        ask(tmp_path, path="out", which="out/gone")


def test_a_folder_of_something_else_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "notes.txt").write_text("")
    assert "none of the known kinds" in judged(tmp_path / "data")["why"]


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
def test_torch_distributed_checkpoint(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    dcp = pytest.importorskip("torch.distributed.checkpoint")
    state = {"model": {"w": torch.arange(100.0), "b": torch.ones(3)}, "step": 5}
    path = tmp_path / "step-5"
    dcp.save(state, checkpoint_id=path, no_dist=True)
    assert judged(path)["complete"]
    (shard,) = path.glob("*.distcp")
    os.utime(path / ".metadata", (1000, 1000))
    copied = judged(path)
    assert copied["complete"]
    assert "a copy, or two saves" in copied["mixed"]
    whole = shard.read_bytes()
    flip_a_bit(shard, whole.index(torch.arange(100.0).numpy().tobytes()[:40]) + 20)
    assert "is changed" in judged(path)["why"]
    shard.write_bytes(whole[:-1])
    assert "expected" in judged(path, verify=False)["why"]
    shard.unlink()
    assert "is missing" in judged(path, verify=False)["why"]
    metadata = path / ".metadata"
    metadata.write_bytes(metadata.read_bytes()[:200])
    assert ".metadata" in judged(path)["why"]


def test_of_endless_checkpoints_those_last_written_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (5, 1, 4, 2, 3):
        os.utime(trainer(tmp_path / f"step-{step}"), (step, step))
    monkeypatch.setattr(checkpoints_module, "MOST", 3)
    assert sorted(one["name"] for one in ask(tmp_path)) == ["step-3", "step-4", "step-5"]
    monkeypatch.setattr(checkpoints_module, "MOST_FILES", 1)
    assert len(ask(tmp_path)) == 1
