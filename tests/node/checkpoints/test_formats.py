"""Real files of torch, whole and damaged: what is proven, what is doubted, what is refused."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from clusterctl.node.agent.call_channel import CallChannel, OperationError
from clusterctl.node.checkpoints import checkpoints, dcp_files, formats
from clusterctl.wire import read_message
from tests.lazy_torch import torch
from tests.node.checkpoints.written import (
    ask,
    flip_a_bit,
    judged,
    rank_files,
    safetensors,
    torch_file,
    trainer,
)
from tests.waiting import wait_until

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

UNSUMMED = "structure read, content not checksummed"


@contextlib.contextmanager
def without_checksums() -> Any:
    torch.serialization.set_crc32_options(False)
    try:
        yield
    finally:
        torch.serialization.set_crc32_options(True)


def state() -> dict[str, Any]:
    return {"step": 5, "w": torch.arange(300.0), "h": torch.ones(7, dtype=torch.bfloat16)}


def saved(path: Path, **options: Any) -> Path:
    torch.save(state(), path, **options)
    return path


def test_a_file_of_torch_save_is_proven_and_says_its_step(tmp_path: Path) -> None:
    found = judged(saved(tmp_path / "x.pt"))
    assert (found["complete"], found["step"], found["doubts"]) == (True, 5, [])


@pytest.mark.parametrize(
    ("name", "inside", "step", "epoch"),
    [
        ("ckpt.pt", {"iter_num": 20}, 20, None),
        ("epoch_2.pth", {"meta": {"epoch": 2, "iter": 392}}, 392, 2),
        ("model_best.pth.tar", {"epoch": 3}, None, 3),
        ("checkpoint-1.pth.tar", {"epoch": 1}, 1, 1),
    ],
)
def test_programs_name_the_step_and_the_epoch_in_their_own_ways(
    name: str, inside: dict[str, Any], step: int | None, epoch: int | None, tmp_path: Path
) -> None:
    torch.save(inside, tmp_path / name)
    (found,) = ask(tmp_path)
    assert (found["complete"], found["format"]) == (True, "file")
    assert (found["step"], found["epoch"]) == (step, epoch)


def test_a_file_without_checksums_is_whole_but_not_proven(tmp_path: Path) -> None:
    with without_checksums():
        found = judged(saved(tmp_path / "x.pt"))
    assert (found["complete"], found["doubts"]) == (True, [f"{UNSUMMED}: x.pt"])


def test_a_file_of_the_old_format_is_followed_to_its_end(tmp_path: Path) -> None:
    path = saved(tmp_path / "x.pt", _use_new_zipfile_serialization=False)
    found = judged(path)
    assert (found["complete"], found["doubts"]) == (True, [f"{UNSUMMED}: x.pt"])
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert "its tensors say" in judged(path, verify=False)["why"]
    path.write_bytes(whole[: len(whole) // 4])
    assert not judged(path, verify=False)["complete"]
    path.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    assert "first bytes" in judged(path, verify=False)["why"]


@pytest.mark.parametrize("name", ["x.pt", "x.bin", "x.ckpt"])
@pytest.mark.parametrize(
    ("content", "why"),
    [
        (bytes(5000), "begins with zeros"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "pointer of Git LFS"),
        (b"<!doctype html><html></html>", "page of HTML"),
    ],
)
def test_what_lies_there_instead_of_a_checkpoint_is_named(
    tmp_path: Path, name: str, content: bytes, why: str
) -> None:
    (tmp_path / name).write_bytes(content)
    assert why in judged(tmp_path / name, verify=False)["why"]


def test_a_flipped_first_byte_is_found(tmp_path: Path) -> None:
    path = saved(tmp_path / "x.pt")
    flip_a_bit(path, 0)
    assert "first bytes are not those of torch.save" in judged(path, verify=False)["why"]


def test_no_flipped_bit_that_torch_minds_is_accepted(tmp_path: Path) -> None:
    path = saved(tmp_path / "x.pt")
    whole = path.read_bytes()
    chosen = random.Random(7)
    directory = whole.index(b"PK\x01\x02")
    places = [*chosen.sample(range(len(whole)), 30), *range(directory, len(whole), 9)]
    for place in places:
        path.write_bytes(whole)
        flip_a_bit(path, place)
        if judged(path)["complete"]:
            loaded = torch.load(path)
            assert loaded["step"] == 5
            assert torch.equal(loaded["w"], state()["w"])


def distributed(path: Path) -> Path:
    dcp = pytest.importorskip("torch.distributed.checkpoint")
    dcp.save({"model": state()}, checkpoint_id=path, no_dist=True)
    return path


def test_a_distributed_checkpoint_is_proven_but_for_its_metadata(tmp_path: Path) -> None:
    found = judged(distributed(tmp_path / "step-5"))
    assert (found["complete"], found["doubts"]) == (True, [f"{UNSUMMED}: .metadata"])


def test_metadata_of_torch_2_15_on_python_3_13_is_known() -> None:
    recorded = Path(__file__).with_name("torch-2.15-python-3.13.metadata")
    plan = dcp_files.read_metadata(str(recorded), lambda _: None)
    assert plan.doubts == [f"{UNSUMMED}: .metadata"]
    assert {item.name for item in plan.items} == {"a", "t", "d", "n.x", "n.b"}


def test_a_flipped_bit_in_metadata_is_found_or_doubted(tmp_path: Path) -> None:
    path = distributed(tmp_path / "step-5")
    metadata = path / ".metadata"
    whole = metadata.read_bytes()
    found = []
    for place in random.Random(7).sample(range(len(whole)), 60):
        metadata.write_bytes(whole)
        flip_a_bit(metadata, place)
        one = judged(path)
        assert not one["complete"] or one["doubts"]
        found.append(one["complete"])
    assert found.count(False) > found.count(True)


def test_a_zeroed_shard_is_found(tmp_path: Path) -> None:
    path = distributed(tmp_path / "step-5")
    (shard,) = path.glob("*.distcp")
    shard.write_bytes(bytes(shard.stat().st_size))
    assert "is changed" in judged(path)["why"]


def test_two_saves_into_one_folder_are_reported_as_mixed(tmp_path: Path) -> None:
    path = distributed(tmp_path / "step-5")
    os.utime(path / ".metadata", (1000, 1000))  # the second save wrote shards, and died
    assert "two saves" in judged(path)["mixed"]


def fsdp(path: Path) -> Path:
    path.mkdir()
    distributed(path / "pytorch_model_fsdp_0")
    distributed(path / "optimizer_0")
    (path / "trainer_state.json").write_text('{"global_step": 5}')
    return path


def test_the_trainers_fsdp_optimizer_is_checked_too(tmp_path: Path) -> None:
    path = fsdp(tmp_path / "checkpoint-5")
    found = judged(path)
    assert found["complete"]
    assert not [doubt for doubt in found["doubts"] if "optimizer.pt" in doubt]
    (shard,) = (path / "optimizer_0").glob("*.distcp")
    shard.unlink()
    assert "optimizer_0: __0_0.distcp is missing" in judged(path, verify=False)["why"]


def test_an_empty_folder_of_deepspeed_is_no_weights(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint-5"
    (path / "global_step5").mkdir(parents=True)
    (path / "trainer_state.json").write_text('{"global_step": 5}')
    assert "it holds no weights" in judged(path)["why"]
    saved(path / "global_step5" / "mp_rank_00_model_states.pt")
    assert judged(path)["complete"]
    flip_a_bit(path / "global_step5" / "mp_rank_00_model_states.pt", 900)
    assert "global_step5: mp_rank_00_model_states.pt" in judged(path)["why"]


@pytest.mark.parametrize("within", ["", "checkpoint-5"])
def test_deepspeed_has_a_shard_of_each_rank(tmp_path: Path, within: str) -> None:
    path = tmp_path / within
    folder = path / "global_step5"
    folder.mkdir(parents=True)
    (path / "trainer_state.json").write_text('{"global_step": 5}')
    saved(folder / "mp_rank_00_model_states.pt")
    for rank in range(3):
        saved(folder / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    asked = path if within else folder
    assert judged(asked)["complete"]
    writer = {"run": "r", "began": 1.0, "world_size": 4}
    four = {"run": "r", "now": time.time(), "ancestors": [writer]}
    why = judged(asked, **four)["why"]
    assert "bf16_zero_pp_rank_3_mp_rank_00_optim_states.pt is missing" in why
    (folder / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink()
    assert "zero_pp_rank_1_mp_rank_00_optim_states.pt is missing" in judged(asked)["why"]


@pytest.mark.parametrize("name", ["checkpoint-50", "step_50", "epoch3"])
def test_a_folder_with_files_of_a_scripts_own(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.mkdir()
    saved(path / "model.pt")
    saved(path / "optimizer_state.pt")
    (path / "config.json").write_text("{}")
    found = judged(path)
    assert (found["complete"], found["format"], found["doubts"]) == (True, "folder", [])
    os.truncate(path / "optimizer_state.pt", 500)
    assert "optimizer_state.pt is cut" in judged(path, verify=False)["why"]


def test_a_checkpoint_of_nemo_automodel_is_checked_with_its_folders(tmp_path: Path) -> None:
    path = tmp_path / "epoch_0_step_9"
    path.mkdir()
    saved(path / "step_scheduler.pt")
    for name in ("model", "optim"):
        distributed(path / name)
    found = judged(path)
    assert (found["complete"], found["step"], found["format"]) == (True, 9, "folder")
    assert f"{UNSUMMED}: optim/.metadata" in found["doubts"]
    (path / ".incomplete").touch()
    assert ".incomplete is there" in judged(path, verify=False)["why"]
    (path / ".incomplete").unlink()
    (path / "optim" / "__0_0.distcp").unlink()
    assert "optim: __0_0.distcp is missing" in judged(path, verify=False)["why"]


def test_a_script_that_died_between_two_files_is_noticed(tmp_path: Path) -> None:
    whole = ["model.pt", "optimizer.pt"]
    for step, names in ((25, whole), (50, ["model.pt"]), (75, [*whole, "ema.pt"])):
        path = tmp_path / f"checkpoint-{step}"
        path.mkdir()
        for name in names:
            saved(path / name)
        os.utime(path, (step, step))
    assert judged(tmp_path / "checkpoint-25")["complete"]
    why = "optimizer.pt, which checkpoint-25 has, is missing"
    assert judged(tmp_path / "checkpoint-50")["why"] == why
    (tmp_path / "checkpoint-25").rename(tmp_path / "checkpoint-25.old")
    assert judged(tmp_path / "checkpoint-50")["complete"]


def test_files_of_ranks_in_a_folder_are_parts_of_a_checkpoint(tmp_path: Path) -> None:
    told = {}
    for node, names in {
        "a": ["model_rank0.pt", "optim_rank0.pt"],
        "b": ["model_rank1.pt", "optim_rank1.pt"],
        "both": ["rank0.pt", "rank1.pt"],
        "grid": ["mp_rank_00_model.pt", "mp_rank_01_model.pt"],
    }.items():
        path = tmp_path / node / "step15"
        path.mkdir(parents=True)
        for name in names:
            saved(path / name)
        told[node] = judged(path)
    parts = {node: one["part"] and one["part"]["ranks"] for node, one in told.items()}
    assert parts == {"a": [0], "b": [1], "both": [0, 1], "grid": None}
    assert all(one["complete"] for one in told.values())


def test_a_folder_of_step_files_is_no_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "epoch-1"
    folder.mkdir()
    saved(folder / "step10.pt")
    assert formats.checkpoint_kind(str(folder)) is None


def test_a_missing_optimizer_is_a_doubt(tmp_path: Path) -> None:
    path = trainer(tmp_path / "checkpoint-5")
    (path / "optimizer.pt").unlink()
    found = judged(path)
    assert found["complete"]
    assert "optimizer.pt is missing" in found["doubts"][-1] + found["doubts"][0]


def test_each_node_may_have_random_numbers_of_its_own(tmp_path: Path) -> None:
    one, other = (trainer(tmp_path / name / "checkpoint-5") for name in "ab")
    torch.save({"cpu": 1}, one / "rng_state_0.pth")
    torch.save({"cpu": 2}, other / "rng_state_1.pth")
    assert judged(one)["hash"] == judged(other)["hash"]
    saved(other / "optimizer.pt")
    assert judged(one)["hash"] != judged(other)["hash"]
    assert judged(one)["files"]["optimizer.pt"] != judged(other)["files"]["optimizer.pt"]


def test_small_files_of_equal_size_are_compared_by_a_quick_look_too(tmp_path: Path) -> None:
    paths = [tmp_path / folder / "x.pt" for folder in ("a", "b")]
    for path, payload in zip(paths, (b"one", b"two"), strict=True):
        path.parent.mkdir()
        torch_file(path, payload)
    one, other = (judged(path, verify=False)["hash"] for path in paths)
    assert one != other


def test_other_weights_of_equal_size_are_not_the_same(tmp_path: Path) -> None:
    hashes = []
    for folder, weights in (("a", torch.ones(400_000)), ("b", torch.zeros(400_000))):
        (tmp_path / folder).mkdir()
        torch.save(weights, tmp_path / folder / "x.pt")
        hashes.append(judged(tmp_path / folder / "x.pt", compare=True)["hash"])
    assert hashes[0] != hashes[1]


@pytest.mark.parametrize(
    "change",
    [
        lambda tensor: tensor.update(shape=[3]),
        lambda tensor: tensor.update(shape=[-64]),
        lambda tensor: tensor.update(dtype="F32"),
        lambda tensor: tensor.update(dtype="X8"),
        lambda tensor: tensor.update(data_offsets=[1, 64]),
        lambda tensor: tensor.update(more=1),
    ],
)
def test_a_safetensors_header_must_fit_its_tensors(
    tmp_path: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    path = safetensors(tmp_path / "x.safetensors")
    assert judged(path)["doubts"] == [f"{UNSUMMED}: x.safetensors"]
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    change(header["w"])
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
    assert "broken safetensors header" in judged(path, verify=False)["why"]


def test_a_tensor_that_an_index_names_must_be_there(tmp_path: Path) -> None:
    path = trainer(tmp_path / "checkpoint-5")
    safetensors(path / "model-00002-of-00002.safetensors", tensor="other")
    assert "holds no b" in judged(path, verify=False)["why"]


def test_a_link_to_nothing_beside_a_checkpoint_harms_nothing(tmp_path: Path) -> None:
    path = trainer(tmp_path / "checkpoint-5")
    (path / "latest").symlink_to("nowhere")
    assert judged(path)["complete"]


def test_a_pipe_is_never_read(tmp_path: Path) -> None:
    path = trainer(tmp_path / "out" / "checkpoint-5")
    os.mkfifo(path / "scheduler.pt")
    os.mkfifo(path / "notes")
    os.mkfifo(tmp_path / "out" / "step_6.pt")
    os.mkfifo(tmp_path / "out" / "MANIFEST.json")
    found = {one["name"]: one["why"] for one in ask(tmp_path, path="out")}
    assert found == {"checkpoint-5": "scheduler.pt is not a file", "step_6.pt": "it is not a file"}


def test_a_pickle_that_crashes_its_reader_hides_no_other(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    # A tuple as deep as this is hashed as a dict's key, on more stack than there is.
    deep = b"\x80\x02}" + b"N" + b"\x85" * 2_000_000 + b"Ns."
    (tmp_path / "out" / "step_7.pt").write_bytes(deep)
    torch_file(tmp_path / "out" / "step_5.pt")
    found = {one["name"]: one["why"] for one in ask(tmp_path, path="out")}
    assert found["step_5.pt"] == ""
    assert "its reader ended" in found["step_7.pt"]
    (crashed,) = (one for one in ask(tmp_path, path="out") if one["name"] == "step_7.pt")
    assert (crashed["step"], crashed["time"] > 0) == (7, True)


def test_what_names_a_checkpoint_and_is_none_is_listed(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    torch_file(tmp_path / "out" / "step_5.pt")
    (tmp_path / "out" / "step-6").mkdir()
    (tmp_path / "out" / "step-7.aside-1a2b").mkdir()
    (tmp_path / "out" / "step-8.bak").mkdir()
    (tmp_path / "out" / "runs").mkdir()
    (tmp_path / "out" / "model.tmpl-5").mkdir()
    found = {one["name"]: one["why"] for one in ask(tmp_path, path="out")}
    assert found == {"step_5.pt": "", "step-6": "it is empty"}


def test_the_size_of_another_run_is_only_a_supposition(tmp_path: Path) -> None:
    path = rank_files(tmp_path / "checkpoint-20", range(2), world_size=None)
    found = judged(path, world_size=3)
    assert found["complete"]
    assert (found["part"]["world_size"], found["part"]["supposed"]) == (None, 3)


def test_a_plain_pickle_is_read_without_running_anything(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "harm"),)

    (tmp_path / "x.pt").write_bytes(pickle.dumps({"evil": Evil()}))
    assert judged(tmp_path / "x.pt")["doubts"] == [f"{UNSUMMED}: x.pt"]
    buffer = io.BytesIO()
    torch.save({"evil": Evil()}, buffer)
    (tmp_path / "y.pt").write_bytes(buffer.getvalue())
    assert judged(tmp_path / "y.pt")["complete"]
    assert not (tmp_path / "harm").exists()


def test_it_is_told_how_much_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "PROGRESS_SECONDS", 0.0)
    path = saved(tmp_path / "x.pt")
    reader, writer = os.pipe()
    args = {"workdir": str(tmp_path), "which": "x.pt", "verify": True}
    here = {"cluster": "c", "run": "r", "node": "n", "state": str(tmp_path / "state")}
    checkpoints.checkpoints({**args, **here}, b"", CallChannel(io.BytesIO(), writer))
    os.close(writer)
    told = []
    with os.fdopen(reader, "rb") as stream:
        while (message := read_message(stream)) is not None:
            told.append(message.head["read"])
    assert told == sorted(told)
    assert told[-1] >= path.stat().st_size


def test_where_links_lead_is_told(tmp_path: Path) -> None:
    path = trainer(tmp_path / "checkpoint-5")
    assert judged(path)["real"] == [str(path)]
    away = tmp_path / "optimizer.pt"
    (path / "optimizer.pt").rename(away)
    (path / "optimizer.pt").symlink_to(away)
    assert judged(path)["real"] == sorted([str(path), str(away)])


def test_a_reader_that_hangs_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch_file(tmp_path / "x.pt")
    before = living_children()  # of other tests of this process
    monkeypatch.setattr(formats, "verify", lambda *_: time.sleep(600))
    with pytest.raises(OperationError, match="does not answer: nothing came from it for 1 s"):
        ask(tmp_path, which="x.pt", silence=1)
    wait_until(lambda: not living_children() - before)


def living_children() -> set[int]:
    """Return this process's living children."""
    return {child.pid for child in psutil.Process().children() if child.status() != "zombie"}
