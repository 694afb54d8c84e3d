"""Whether the model in a folder is whole: every shard of its index, at its full length."""

from __future__ import annotations

import json
import os
import time

from clusterctl.node.checkpoints.safetensors_files import SUFFIX, check_safetensors
from clusterctl.node.checkpoints.torch_zip import Invalid

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Mapping

INDEXES = (".safetensors.index.json", ".bin.index.json")
INDEX_LIMIT = 64 * 1024 * 1024
SECONDS = 1.0
"""For the headers of all shards: the folder itself must be read in five."""
MOST = 20
WEIGHTS = ("model.safetensors", "model-00001-of-", "pytorch_model.bin", "pytorch_model-00001-of-")
TOKENIZERS = frozenset(
    {
        "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "vocab.txt",
        "spiece.model", "sentencepiece.bpe.model", "tekken.json", "tiktoken.model",
    }
)  # fmt: skip


def check_model(folder: str, sizes: Mapping[str, int]) -> Dict[str, Any]:
    """Return `faults` of weights below a folder, and `lacks`: files that belong next to them.

    Args:
        folder: of the model, or of several.
        sizes: of its files, by their path in it; negative for a link to no file.
    """
    faults = []
    for fault in _faults(folder, sizes):
        faults.append(fault)
        if len(faults) == MOST:
            break
    return {"faults": faults, "lacks": _lacks(folder, sizes)}


def _faults(folder: str, sizes: Mapping[str, int]) -> Iterator[str]:
    for name in sizes:
        if name.endswith(INDEXES):
            yield from _missing_shards(folder, name, sizes)
    until = time.monotonic() + SECONDS
    for name, size in sizes.items():
        if not name.endswith(SUFFIX) or size < 0:
            continue
        if time.monotonic() > until:
            return
        try:
            check_safetensors(os.path.join(folder, name))
        except Invalid as error:
            yield str(error)


def _missing_shards(folder: str, index: str, sizes: Mapping[str, int]) -> Iterator[str]:
    try:
        with open(os.path.join(folder, index), "rb") as file:
            shards = set(json.loads(file.read(INDEX_LIMIT))["weight_map"].values())
    except (ValueError, LookupError, AttributeError, TypeError, RecursionError):
        yield "%s is not a valid index" % index
        return
    for shard in sorted(map(str, shards)):
        name = os.path.join(os.path.dirname(index), shard)
        if sizes.get(name, -1) < 0:
            yield "%s is missing, but %s names it" % (name, os.path.basename(index))


def _lacks(folder: str, sizes: Mapping[str, int]) -> List[str]:
    """Return the kinds of files that a model for language needs in addition to its weights."""
    if not any(name.startswith(WEIGHTS) for name in sizes) or "model_index.json" in sizes:
        return []
    if "config.json" not in sizes:
        return ["config.json"]
    try:
        with open(os.path.join(folder, "config.json"), "rb") as file:
            language = "vocab_size" in json.loads(file.read(INDEX_LIMIT))
    except (ValueError, TypeError, RecursionError):
        return ["a valid config.json"]
    return ["tokenizer files"] if language and not TOKENIZERS.intersection(sizes) else []
