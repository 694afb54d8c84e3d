"""Checkpoints of every format as programs write them, and what a node says of them."""

from __future__ import annotations

import hashlib
import io
import json
import os
import struct
import zipfile
from pathlib import Path
from typing import Any

from clusterctl.node.agent.call_channel import CallChannel
from clusterctl.node.checkpoints.checkpoints import checkpoints

LINK = CallChannel(io.BytesIO(), os.open(os.devnull, os.O_WRONLY))


def ask(workdir: Path, **args: Any) -> list[dict[str, Any]]:
    here = {"cluster": "c", "run": "r", "node": "n", "state": str(workdir / "state")}
    answer = checkpoints({"workdir": str(workdir), **here, **args}, b"", LINK)
    found: list[dict[str, Any]] = answer.head["candidates"]
    return found


def judged(path: Path, **args: Any) -> dict[str, Any]:
    (one,) = ask(path.parent, which=path.name, **{"verify": True, **args})
    return one


def flip_a_bit(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def torch_file(path: Path, payload: bytes = b"weights" * 100) -> Path:
    """Write the kind of zip that torch.save writes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}.")
        archive.writestr("archive/data/0", payload)
    return path


def safetensors(path: Path, size: int = 64, *, tensor: str = "w") -> Path:
    header = {tensor: {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(range(size)))
    return path


def ours(path: Path, step: int = 120) -> Path:
    path.mkdir(parents=True)
    (path / "__0_0.distcp").write_bytes(b"shard 0" * 50)
    (path / "__1_0.distcp").write_bytes(b"shard 1" * 50)
    (path / "state.json").write_text(json.dumps({"step": step}))
    files = {
        file.name: {
            "size": file.stat().st_size,
            "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        }
        for file in path.iterdir()
    }
    manifest = path / "MANIFEST.json"
    manifest.write_text(json.dumps({"schema": 1, "files": files}))
    (path / "COMPLETE").write_text(hashlib.sha256(manifest.read_bytes()).hexdigest() + "\n")
    return path


def trainer(path: Path, step: int = 20) -> Path:
    path.mkdir(parents=True)
    safetensors(path / "model-00001-of-00002.safetensors", tensor="a")
    safetensors(path / "model-00002-of-00002.safetensors", tensor="b")
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors"}}
    index["weight_map"]["b"] = "model-00002-of-00002.safetensors"
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    torch_file(path / "optimizer.pt")
    (path / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return path


def verl(path: Path, ranks: range, *, world_size: int = 4) -> Path:
    (path / "actor" / "huggingface").mkdir(parents=True)
    (path / "actor" / "huggingface" / "config.json").write_text("{}")
    for rank in ranks:
        for kind in ("model", "optim", "extra_state"):
            file = path / "actor" / f"{kind}_world_size_{world_size}_rank_{rank}.pt"
            torch_file(file, b"%d" % rank * 500)
    torch_file(path / "data.pt")
    return path


def rank_files(path: Path, ranks: range, *, world_size: int | None = 4) -> Path:
    path.mkdir(parents=True)
    for rank in ranks:
        torch_file(path / f"model_state_rank{rank}.pt", b"%d" % rank * 500)
    if 0 in ranks:
        metadata = {"step": 20} | ({"world_size": world_size} if world_size else {})
        (path / "metadata.json").write_text(json.dumps(metadata))
    return path
