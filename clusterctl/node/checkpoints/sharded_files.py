"""Check a checkpoint in which each rank wrote its own shard, as verl's workers do, and DeepSpeed's.

Verl's names tell how many ranks there were: `actor/model_world_size_4_rank_2.pt`. Source: verl,
utils/checkpoint/fsdp_checkpoint_manager.py. DeepSpeed's have the place of a rank in a grid:
`zero_pp_rank_3_mp_rank_00_optim_states.pt`. Source: DeepSpeed, runtime/engine.py.
"""

from __future__ import annotations

import os
import re
from typing import Dict, Iterable, List, Optional, Set, Tuple

from clusterctl.node.checkpoints.files import CheckpointContents, Inspection
from clusterctl.node.checkpoints.torch_zip import Invalid

_SHARD = re.compile(r"(\w+)_world_size_(\d{1,6})_rank_(\d{1,6})\.pt")

_ZERO = re.compile(
    r"(bf16_|fp16_|)zero_pp_rank_(\d{1,6})_mp_rank_(\d{1,6})_(model|optim)_states\.pt"
)


def check_zero(names: Iterable[str], world_size: Optional[int]) -> None:
    """Raise Invalid if the shard of a rank lacks among DeepSpeed's files.

    Args:
        names: the files of a folder; others are no matter.
        world_size: how many ranks wrote it at least, if that is known.
    """
    kinds: Dict[Tuple[str, str], Set[Tuple[int, int]]] = {}
    for match in filter(None, map(_ZERO.fullmatch, names)):
        kinds.setdefault((match[1], match[4]), set()).add((int(match[2]), int(match[3])))
    for (prefix, kind), held in sorted(kinds.items()):
        rows, columns = (max(place[axis] for place in held) + 1 for axis in (0, 1))
        grid = ((row, column) for row in range(rows) for column in range(columns))
        lacking = next((place for place in grid if place not in held), None)
        if lacking is None and len(held) < (world_size or 0):
            lacking = (rows, 0)
        if lacking:
            name = "%szero_pp_rank_%d_mp_rank_%02d_%s_states.pt" % (prefix, *lacking, kind)
            raise Invalid("%s is missing: each rank writes one" % name)


class Shards:
    """The shards in a folder and in the folders of its roles: `actor`, `critic`."""

    def __init__(self, path: str) -> None:
        """List them; what cannot be listed has none."""
        self.files: List[str] = []
        """Their paths within the checkpoint."""
        self.sizes: Set[int] = set()
        """The numbers of ranks that their names tell."""
        self.kinds: Dict[Tuple[str, str], Set[int]] = {}
        """Folder and prefix → the ranks that have such a file."""
        roles = [one for one in sorted(_names(path)) if os.path.isdir(os.path.join(path, one))]
        for folder in ["", *roles]:
            for name in sorted(_names(os.path.join(path, folder))):
                match = _SHARD.fullmatch(name)
                if match:
                    self.files.append(os.path.join(folder, name))
                    self.sizes.add(int(match[2]))
                    self.kinds.setdefault((folder, match[1]), set()).add(int(match[3]))


def _names(folder: str) -> List[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def check_shards(path: str, inspection: Inspection, found: CheckpointContents) -> str:
    """Return why it is only a part of a checkpoint; empty: it is all of it."""
    shards = Shards(path)
    if len(shards.sizes) > 1:
        several = " and ".join(map(str, sorted(shards.sizes)))
        raise Invalid("two saves are mixed: there are shards of %s ranks" % several)
    found.add_unverified(inspection.check_files(path, shards.files))
    (size,) = shards.sizes
    files = [os.path.join(path, name) for name in shards.files]
    held = set.intersection(*shards.kinds.values())
    lacking = [
        (rank, "%s_world_size_%d_rank_%d.pt" % (os.path.join(folder, prefix), size, rank))
        for (folder, prefix), ranks in sorted(shards.kinds.items())
        for rank in sorted(set(range(size)) - ranks)
    ]
    if not held:
        raise Invalid("saved by %d ranks, and no rank has all its files here" % size)
    found.part = {
        "ranks": sorted(held),
        "world_size": size,
        "supposed": inspection.expected_world_size,
        "metadata": True,  # each shard stands for itself
        "steps": [],
        "saved": [min(map(os.path.getmtime, files)), max(map(os.path.getmtime, files))],
        "whole": not lacking,
    }
    return "saved by %d ranks: %s is missing" % (size, min(lacking)[1]) if lacking else ""
