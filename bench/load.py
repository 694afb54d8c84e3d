"""Loading a large base: each rank reads its slices, against rank 0 reading it whole and sending it.

`python bench/load.py [--gigabytes N] [--nodes 2] [--folder DIR]` writes a random GLM-4 mixture of
experts in bfloat16, drops its files from the page cache, and has gloo ranks on CPUs load it for
LoRA by train/'s own code. Printed by rank: seconds, bytes read from disk, peak memory of its own
(anonymous) and peak of mapped files, which the kernel can drop at any time.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

GIB = 2**30
SHARD = GIB
EVERY = 0.01
"""Seconds between two looks at the memory of the ranks."""
SHAPE: dict[str, Any] = {
    "vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 8192, "head_dim": 128,
    "num_attention_heads": 16, "num_key_value_heads": 4, "n_routed_experts": 64,
    "num_experts_per_tok": 4, "moe_intermediate_size": 1024, "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}  # fmt: skip
LAYER = 0.79
"""GiB of one of its layers."""


def write_model(folder: Path, gigabytes: float) -> int:
    """Write a random model in shards, as the hub has them; return its bytes."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.core_model_loading import revert_weight_conversion

    shape = AutoConfig.for_model(
        "glm4_moe", num_hidden_layers=1 + max(1, round(gigabytes / LAYER)), **SHAPE
    )
    with torch.device("meta"):
        network = AutoModelForCausalLM.from_config(shape, dtype=torch.bfloat16)
    folder.mkdir()
    shape.save_pretrained(folder)
    shards: list[dict[str, Any]] = [{}]
    for name, like in revert_weight_conversion(network, network.state_dict()).items():
        if sum(t.nbytes for t in shards[-1].values()) > SHARD:
            shards.append({})
        shards[-1][name] = like
    weight_map: dict[str, str] = {}
    noise = torch.empty(1 << 24, dtype=torch.bfloat16).normal_(std=0.02)
    for number, tensors in enumerate(shards):
        path = folder / f"model-{number + 1:05}-of-{len(shards):05}.safetensors"
        made = {
            n: noise.repeat(-(-like.numel() // len(noise)))[: like.numel()].view(like.shape).clone()
            for n, like in tensors.items()
        }
        save_file(made, path, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(tensors, path.name)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def drop_from_cache(folder: Path) -> None:
    """Have the next reader read the files from disk."""
    for path in folder.glob("*.safetensors"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def be_a_rank(folder: Path, meet: Path, nodes: list[int], rank: int, *, whole: bool) -> None:
    """Load the model, and print what that took."""
    import torch

    from train.config.config import Config
    from train.distributed.env import RankEnv
    from train.distributed.process_group import Ranks
    from train.model import model
    from train.model.layout import Layout
    from train.model.load import make_on_meta

    node_of = [number for number, count in enumerate(nodes) for _ in range(count)]
    env = RankEnv(
        rank=rank,
        world_size=sum(nodes),
        local_rank=rank - node_of.index(node_of[rank]),
        local_world_size=nodes[node_of[rank]],
        node_rank=node_of[rank],
        nodes=len(nodes),
        launched=True,
    )
    if whole:
        vars(model)["_load_slices"] = lambda *_: "the benchmark compares it"
    setattr(model.Model, "try_head", lambda _: None)  # noqa: B010  (a forward pass)
    config = Config(name_or_path=str(folder), dataset_path="-", dtype="bfloat16")
    ranks = Ranks.join(env, timeout=1800, rendezvous=f"file://{meet}")
    network = make_on_meta(config, folder, torch.bfloat16)
    ranks.barrier()
    before, began = counters("io"), time.monotonic()
    print("began", flush=True)
    laid = Layout(name="hsdp" if len(nodes) > 1 else "fsdp")
    made = model.build(config, ranks, folder, laid, network)
    after = counters("io")
    ranks.barrier()
    said = {
        "seconds": time.monotonic() - began,
        "from_disk": after["read_bytes"] - before["read_bytes"],
        "read_calls": after["rchar"] - before["rchar"],
        "held": counters("status")["RssAnon"] * 1024,
        "remarks": made.remarks,
    }
    print(json.dumps(said), flush=True)
    ranks.leave()


def counters(name: str, process: int | str = "self") -> dict[str, int]:
    """Return the numbers in /proc/PID/io or /proc/PID/status."""
    text = Path(f"/proc/{process}/{name}").read_text()
    return {key: int(value) for key, value in re.findall(r"(?m)^(\w+):\s+(\d+)", text)}


def load(folder: Path, nodes: list[int], *, whole: bool) -> list[dict[str, float]]:
    """Load the model on such ranks; return what each took."""
    drop_from_cache(folder)
    with tempfile.TemporaryDirectory() as name:
        argv = [sys.executable, __file__, "--folder", str(folder), "--meet", f"{name}/meet"]
        argv += ["--nodes", ",".join(map(str, nodes)), *(["--whole"] if whole else [])]
        processes = [
            subprocess.Popen([*argv, "--rank", str(rank)], stdout=subprocess.PIPE, text=True)
            for rank in range(sum(nodes))
        ]
        for process in processes:
            assert process.stdout
            if process.stdout.readline() != "began\n":
                sys.exit(f"rank {processes.index(process)} failed")
        start = [counters("status", process.pid) for process in processes]
        peaks = [{"RssAnon": 0, "RssFile": 0} for _ in processes]
        while all(process.poll() is None for process in processes):
            for process, peak in zip(processes, peaks, strict=True):
                try:
                    now = counters("status", process.pid)
                except OSError:
                    continue
                for key in peak:
                    peak[key] = max(peak[key], now.get(key, 0) * 1024)
            time.sleep(EVERY)
        rows = []
        for process, peak, at_first in zip(processes, peaks, start, strict=True):
            out, _ = process.communicate()
            if process.returncode:
                sys.exit(f"rank {processes.index(process)} failed")
            rows.append(json.loads(out) | peak | {"start": at_first["RssAnon"] * 1024})
    return rows


def available() -> int:
    """Return the bytes of memory that can be used without swapping."""
    found = re.search(r"MemAvailable:\s+(\d+)", Path("/proc/meminfo").read_text())
    assert found
    return int(found[1]) * 1024


def compare(folder: Path, nodes: list[int], size: int) -> None:
    """Load both ways, if there is memory for both, and print a line a rank."""
    print(f"{size / GIB:.1f} GiB on disk, ranks of the nodes: {nodes}")
    head = ("", "seconds", "from disk", "peak own", "of it at start", "held", "peak mapped")
    print(("{:14}" + "{:>16}" * 6).format(*head))
    found = {}
    for way, copies in (("slices", len(nodes)), ("whole", len(nodes) + 1)):
        needed = size * copies + 2 * GIB * sum(nodes)
        if needed > available():
            print(f"{way}: left out, needs {needed / GIB:.0f} GiB of {available() / GIB:.0f}")
            continue
        found[way] = load(folder, nodes, whole=way == "whole")
        for rank, row in enumerate(found[way]):
            sizes = ("from_disk", "RssAnon", "start", "held", "RssFile")
            cells = [f"{row['seconds']:.1f} s", *(f"{row[key] / GIB:.2f} GiB" for key in sizes)]
            print(("{:14}" + "{:>16}" * 6).format(f"{way}, rank {rank}", *cells), flush=True)
    if len(found) == 2:
        for what, key in (("peak own memory", "RssAnon"), ("seconds", "seconds")):
            ours, theirs = (max(row[key] for row in found[way]) for way in ("slices", "whole"))
            print(f"{what} of the largest rank, slices to whole: {ours / theirs:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=8.0)
    parser.add_argument("--nodes", default="2", help="ranks of each node: 2 or 1,1")
    parser.add_argument("--folder", type=Path, help="where the model goes, and is removed")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--meet", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--whole", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    nodes = [int(count) for count in options.nodes.split(",")]
    if options.rank is not None:
        be_a_rank(options.folder, options.meet, nodes, options.rank, whole=options.whole)
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        free = shutil.disk_usage(name).free
        if free < 1.5 * options.gigabytes * GIB:
            sys.exit(f"{name}: expected room for {options.gigabytes} GiB, found {free / GIB:.0f}")
        folder = Path(name) / "model"
        compare(folder, nodes, write_model(folder, options.gigabytes))


if __name__ == "__main__":
    main()
