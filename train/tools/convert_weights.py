"""Write a model's `pytorch_model*.bin` as safetensors: `python -m train.tools.convert_weights`.

Training reads a base in slices, which `.bin` files do not allow. The new files are next to the old
ones, in shards of 2 GB. No more than a shard is in memory, or a file that torch wrote before 1.6.
Every tensor is compared with its original before the files get their names.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from train.errors import USAGE, ConfigError, counted
from train.files import sync_folder

if TYPE_CHECKING:
    from torch import Tensor

SOURCE = "pytorch_model.bin"
SOURCE_INDEX = "pytorch_model.bin.index.json"
TARGETS = ("model.safetensors", "model.safetensors.index.json")
SHARD = "2GB"
ASIDE = ".convert-weights-"
AGAIN = "download the model again: hf download ORG/NAME --local-dir FOLDER"
DISK = "look for errors of the disk with dmesg, and convert again"


def main(argv: Sequence[str] | None = None) -> int:
    """Convert the folder's weights and print what was written."""
    parser = argparse.ArgumentParser(
        prog="python -m train.tools.convert_weights", description=__doc__
    )
    parser.add_argument("folder", type=Path, help="a model's folder with pytorch_model*.bin")
    folder = parser.parse_args(argv).folder
    from safetensors import SafetensorError

    try:
        written = convert(folder)
    except (ConfigError, OSError, SafetensorError) as error:
        print(f"error: {error}", file=sys.stderr)
        return USAGE
    size = sum(path.stat().st_size for path in written)
    wrote = f"{counted(len(written), 'file')}, {size / 2**30:.1f} GiB"
    print(f"{folder}: wrote {wrote}, equal to {SOURCE[:-4]}*.bin")
    print("the .bin files are not read by the training and may be removed")
    return 0


def convert(folder: Path) -> list[Path]:
    """Write a folder's weights as safetensors next to their `.bin` files; return the new files."""
    from huggingface_hub import save_torch_state_dict

    for name in TARGETS:
        if (folder / name).exists():
            raise ConfigError(
                f"{folder}: expected no {name}, found one: nothing to convert",
                hint=f"train on it as it is, or move {name} away to convert again",
            )
    sources = _sources(folder)
    needed, free = sum(path.stat().st_size for path in sources), shutil.disk_usage(folder).free
    if needed > free:
        found = f"{free / 2**30:.1f} GiB free"
        raise ConfigError(
            f"{folder}: expected room for {needed / 2**30:.1f} GiB, found {found}",
            hint=f"free {(needed - free) / 2**30:.1f} GiB on that disk, or move the folder",
        )
    weights = _load(sources)
    for killed in folder.glob(f"{ASIDE}*"):
        shutil.rmtree(killed)
    with tempfile.TemporaryDirectory(dir=folder, prefix=ASIDE) as name:
        aside = Path(name)
        save_torch_state_dict(weights, aside, max_shard_size=SHARD)
        _compare(aside, weights)
        # The index last: without it a reader finds no model, and this can run again.
        made = sorted(aside.iterdir(), key=lambda path: (path.name in TARGETS, path.name))
        for path in made:
            # safetensors makes files that one user alone can read.
            shutil.copymode(sources[0], path)
            with path.open("rb") as file:
                os.fsync(file.fileno())
            path.replace(folder / path.name)
        sync_folder(folder)
    return [folder / path.name for path in made]


def _sources(folder: Path) -> list[Path]:
    """Return the files to convert."""
    names = [SOURCE]
    if (folder / SOURCE_INDEX).is_file():
        try:
            index = json.loads((folder / SOURCE_INDEX).read_text(encoding="utf-8"))
            names = sorted({os.fspath(name) for name in index["weight_map"].values()})
        except (AttributeError, KeyError, TypeError, ValueError):
            problem = f"{folder / SOURCE_INDEX}: expected JSON with a weight_map, found none"
            raise ConfigError(problem, hint=AGAIN) from None
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise ConfigError(f"{folder}: expected {missing[0]}, found none", hint=AGAIN)
    return [folder / name for name in names]


def _load(sources: list[Path]) -> dict[str, Tensor]:
    """Map all tensors into memory, without reading them and without running what is pickled.

    Files that torch wrote before 1.6 are no zip files, and are read whole.
    """
    import torch

    weights: dict[str, Tensor] = {}
    storages: set[int] = set()
    for path in sources:
        try:
            mmap = zipfile.is_zipfile(path)
            found = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
        except (pickle.UnpicklingError, RuntimeError, ValueError, EOFError) as error:
            said = next(iter(str(error).strip().splitlines()), type(error).__name__)
            problem = f"{path}: expected tensors as torch.save writes them: {said}"
            raise ConfigError(problem, hint=AGAIN) from error
        for name, tensor in found.items() if isinstance(found, dict) else [("", None)]:
            if not isinstance(tensor, torch.Tensor):
                raise ConfigError(
                    f"{path}: expected a tensor by each name, found {name!r}",
                    hint="it must hold a state_dict and nothing else",
                )
            # Tied weights share their storage, which safetensors does not write.
            shared = tensor.untyped_storage().data_ptr() in storages
            storages.add(tensor.untyped_storage().data_ptr())
            weights[name] = tensor.clone() if shared else tensor
    if not weights:
        problem = f"{sources[0]}: expected tensors as torch.save writes them: found none"
        raise ConfigError(problem, hint=AGAIN)
    return weights


def _compare(folder: Path, weights: dict[str, Tensor]) -> None:
    """Refuse what was written if it is not its originals, bit by bit."""
    import torch
    from safetensors import safe_open

    def bits(tensor: Tensor) -> Tensor:  # a number that is none is equal to itself
        return tensor.contiguous().reshape(-1).view(torch.uint8)

    left = dict(weights)
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  (no dict)
                one, other = file.get_tensor(name), left.pop(name)
                same = one.dtype == other.dtype and one.shape == other.shape
                if not same or not torch.equal(bits(one), bits(other)):
                    raise ConfigError(f"{path}: {name} is not what was written", hint=DISK)
    if left:
        raise ConfigError(f"{folder}: {next(iter(left))} was not written", hint=DISK)


if __name__ == "__main__":
    sys.exit(main())
