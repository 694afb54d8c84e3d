"""What a training is made of, as digests: its code, its base model, its data, its configuration."""

from __future__ import annotations

import hashlib
import json
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

from train.config.config import Config
from train.data import packing
from train.files import measure
from train.versions import version

if TYPE_CHECKING:
    from train.data.dataset import Corpus

SCHEMA = 1
"""Of state.json."""
WHOLE = 1 << 28
"""Files up to this size are hashed whole."""
SAMPLES, SAMPLE = 256, 1 << 12
"""Of longer ones this many blocks of this many bytes, spread evenly, and the size."""
NOT_THE_MODEL = frozenset({".md", ".png", ".jpg", ".lock", ".metadata"})


def code() -> str:
    """Return a digest of this program's source."""
    digest = hashlib.sha256()
    folder = Path(__file__).parent.parent
    for path in sorted((*folder.rglob("*.py"), folder / "config" / "foreign.yaml")):
        name = path.relative_to(folder).as_posix()
        digest.update(name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def base(folder: Path) -> str:
    """Return a digest of a model's files."""
    return base_files(folder)[0]


def base_files(folder: Path) -> tuple[str, dict[str, str]]:
    """Return a digest of a model's files, and a short one of each, in seconds for any size.

    Long files are hashed by samples of their bytes: enough to tell two models or a broken copy
    apart, and only rank 0's weights are ever used.
    """
    digest = hashlib.sha256()
    files = {}
    for path in sorted(folder.iterdir()):
        if not path.is_file() or path.name.startswith(".") or path.suffix in NOT_THE_MODEL:
            continue
        size = path.stat().st_size
        content = f"{path.name}\0{size}\0".encode()
        if size <= WHOLE:
            content += measure(path).sha256.encode()
        else:
            with path.open("rb") as file:
                for number in range(SAMPLES):
                    file.seek(number * (size - SAMPLE) // (SAMPLES - 1))
                    content += file.read(SAMPLE)
        digest.update(content)
        files[path.name] = hashlib.sha256(content).hexdigest()[:16]
    return digest.hexdigest(), files


def is_of_another(adapter: Path, base: str) -> bool:
    """Tell whether an adapter was trained on a model with another digest, if it says on which."""
    try:
        trained_on = json.loads((adapter / "metadata.json").read_text(encoding="utf-8")).get("base")
    except (OSError, ValueError, AttributeError):  # another program's adapter
        return False
    return bool(trained_on) and trained_on != base


def versions() -> dict[str, str]:
    """Return the versions of what computes."""
    names = ("torch", "transformers", "peft")
    return {"python": platform.python_version()} | {name: version(name) for name in names}


def must_match(about: dict[str, Any]) -> dict[str, str]:
    """Return the versions that must be the same on all nodes: of Python the first two numbers."""
    found: dict[str, str] = about["versions"]
    return found | {"python": found["python"].rpartition(".")[0]}


def about(config: Config, folder: Path, corpus: Corpus, world_size: int) -> dict[str, Any]:
    """Return what a checkpoint records of the training that it belongs to."""
    whole, files = base_files(folder)
    return {
        "schema": SCHEMA,
        "code": code(),
        "base": whole,
        "base_files": files,
        "corpus": corpus.key,
        "train_corpus": corpus.train_key,
        "packing": packing.VERSION,
        "config": config.to_dict(),
        "world_size": world_size,
        "versions": versions(),
    }
