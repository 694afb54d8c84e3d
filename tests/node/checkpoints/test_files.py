"""Any bytes in a checkpoint give a verdict, in bounded memory; none breaks the others' reading."""

from __future__ import annotations

import io
import json
import pickle
import resource
import shutil
import struct
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterctl.node.checkpoints import torch_pickles
from clusterctl.node.checkpoints.checkpoints import inspect
from clusterctl.node.checkpoints.files import no_progress
from clusterctl.node.checkpoints.origin import Origin
from clusterctl.node.checkpoints.safetensors_files import check_safetensors
from clusterctl.node.checkpoints.torch_pickles import SafeUnpickler
from clusterctl.node.checkpoints.torch_zip import Invalid
from tests.damage import ANY_JSON, as_json, damaged, damaged_json
from tests.node.checkpoints.written import ours, rank_files, safetensors, torch_file, trainer

KINDS: dict[str, Callable[[Path], Path]] = {
    "ours": ours,
    "checkpoint-20": trainer,
    "ranks": lambda path: rank_files(path, range(2), world_size=2),
    "model.safetensors": safetensors,
    "model.pt": torch_file,
}
GROWTH_LIMIT = 400 * 1024
"""KiB that the whole of it may add to this process's peak."""


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a pickle take less, so that refusing one costs no time."""
    monkeypatch.setattr(torch_pickles, "_MEMORY_LIMIT", 128 * 1024**2)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a whole checkpoint of each kind."""
    folder = tmp_path_factory.mktemp("whole")
    for name, write in KINDS.items():
        write(folder / name)
    (folder / "dcp").mkdir()
    (folder / "dcp" / ".metadata").write_bytes(pickle.dumps({"state_dict_metadata": {}}, 2))
    (folder / "dcp" / "__0_0.distcp").write_bytes(torch_file(folder / "x.pt").read_bytes())
    parts: tuple[object, ...] = (0x1950A86A20F9469CFC6C, 1001, {}, {}, ["0"])
    (folder / "legacy.pt").write_bytes(b"".join(pickle.dumps(part, 2) for part in parts))
    return folder


def verdict(path: Path) -> dict[str, Any]:
    """Judge a checkpoint as `checkpoints` does in its child, and pass it on as that does."""
    told: list[dict[str, Any]] = []
    args = {"verify": True, "compare": True, "world_size": 2}
    origin = Origin({"state": "/no-such"}, str(path.parent))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answer = inspect(str(path), args, origin, told.append, no_progress)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < GROWTH_LIMIT
    assert answer["complete"] == (not answer["why"])
    found: dict[str, Any] = json.loads(json.dumps(answer))
    return found


def copied(path: Path, folder: str) -> tuple[Path, list[Path]]:
    """Return a copy of a checkpoint, and its files."""
    copy = Path(folder) / path.name
    if path.is_file():
        return Path(shutil.copy2(path, copy)), [copy]
    shutil.copytree(path, copy)
    return copy, sorted(file for file in copy.rglob("*") if file.is_file())


def test_a_seal_with_other_white_space_is_refused_as_the_training_refuses_it(whole: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        copy, _ = copied(whole / "ours", folder)
        seal = copy / "COMPLETE"
        seal.write_bytes(b"\t" + seal.read_bytes())
        assert "COMPLETE" in verdict(copy)["why"]


@given(st.data())
def test_a_file_that_was_changed(whole: Path, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(sorted(whole.iterdir())))
    with tempfile.TemporaryDirectory() as folder:
        copy, files = copied(path, folder)
        file = data.draw(st.sampled_from(files))
        content = file.read_bytes()
        try:
            value = json.loads(content)
        except ValueError:
            value = None
        if isinstance(value, dict) and data.draw(st.booleans()):
            changed = as_json(data.draw(damaged_json(value)))
        else:
            changed = data.draw(damaged(content) | st.binary())
        file.write_bytes(changed)
        answer = verdict(copy)

        if changed != content and copy.name == "ours":
            assert not answer["complete"]


@given(damaged_json({"w": {"dtype": "U8", "shape": [2, 4], "data_offsets": [0, 8]}}))
def test_a_header_of_safetensors(tmp_path: Path, header: Any) -> None:
    text = json.dumps(header).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(8))
    try:
        names = check_safetensors(str(path))
    except Invalid:
        return
    assert isinstance(header, dict)
    assert set(names) == set(header) - {"__metadata__"}


def test_a_shape_that_would_take_hours_to_multiply_is_refused_at_once(tmp_path: Path) -> None:
    shape = "[" + ",".join(["9" * 4000] * 1000) + "]"
    text = b'{"w":{"dtype":"U8","shape":' + shape.encode() + b',"data_offsets":[0,8]}}'
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(8))
    with pytest.raises(Invalid, match=r"broken safetensors header$"):
        check_safetensors(str(path))


def test_a_pickle_that_asks_for_gigabytes_is_refused(tmp_path: Path) -> None:
    data = b"\x80\x02}r\xff\xff\xff\x7f."  # remember the dictionary as number 2,147,483,647
    with pytest.raises(MemoryError):
        SafeUnpickler(io.BytesIO(data)).load()
    (tmp_path / "x.pt").write_bytes(data)
    assert not verdict(tmp_path / "x.pt")["complete"]
    with zipfile.ZipFile(tmp_path / "y.pt", "w") as archive:
        archive.writestr("archive/data.pkl", data)
    assert verdict(tmp_path / "y.pt")["step"] is None
    assert resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY


@settings(max_examples=settings().max_examples // 2)
@given(
    st.sampled_from(["MANIFEST.json", "trainer_state.json", "metadata.json", ".metadata"]),
    ANY_JSON.map(as_json) | st.binary() | damaged(b'{"files": {"a": {"size": 1, "sha256": ""}}}'),
)
def test_noise_under_the_name_of_a_checkpoints_file(name: str, content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "one")
        path.mkdir()
        (path / name).write_bytes(content)
        (path / "COMPLETE").touch()
        assert not verdict(path)["complete"]
