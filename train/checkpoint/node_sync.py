"""Folders that nodes share or do not: finding out which, and bringing files to where they lack."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from io import FileIO
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from train.distributed.process_group import Ranks
from train.errors import NodesDiffer
from train.files import Entry, measure

CHUNK = 1 << 24
PATIENCE = 3.0
"""Seconds that a network filesystem may take to show a new file."""


def find_storage(ranks: Ranks, folder: Path, wanted: str) -> bool:
    """Return whether all nodes see one folder, by a file that rank 0 puts there."""
    name = ranks.broadcast(f".probe-{uuid.uuid4().hex}")
    if ranks.is_first:
        (folder / name).touch()
    ranks.barrier()
    seen = not ranks.is_leader or _appears(folder / name)
    rows = ranks.gather(seen)
    if ranks.is_first:
        (folder / name).unlink()
    blind = ", ".join(ranks.hosts[rank] for rank, sees in enumerate(rows) if not sees)
    problem = ""
    if blind and rows.count(False) < len(ranks.leaders) - 1:
        problem = (
            f"output_dir {folder}: expected one folder on all nodes or one on each, "
            f"found that {blind} cannot see what {ranks.hosts[0]} writes and others can"
        )
    elif blind and wanted == "shared":
        problem = (
            f"checkpoint_storage: expected output_dir {folder} shared, found that {blind} cannot "
            f"see what {ranks.hosts[0]} writes there"
            "\nhint: mount it on all nodes, or set checkpoint_storage: per-node"
        )
    elif not blind and wanted == "per-node" and len(ranks.leaders) > 1:
        problem = (
            "checkpoint_storage: expected a folder of its own on each node, found that all see "
            f"the same {folder}\nhint: set checkpoint_storage: auto"
        )
    if problem:
        raise NodesDiffer(problem)
    return not blind


def _appears(path: Path) -> bool:
    until = time.monotonic() + PATIENCE
    while not path.exists():
        if time.monotonic() > until:
            return False
        time.sleep(0.1)
    return True


def copy_to_nodes(
    ranks: Ranks, folder: Path, files: Mapping[str, Entry], owners: Mapping[str, int]
) -> None:
    """Give every node's folder the files that it lacks, and verify that they arrived unchanged.

    `owners` has for each file the first rank of a node that has it. An OSError of this node's own
    files is raised at the end: the others got theirs anyway.
    """
    if not ranks.is_leader:
        return
    problems = [
        problem
        for name in sorted(files)
        if (problem := _broadcast_file(ranks, folder / name, files[name].size, owners[name]))
    ]
    if problems:
        raise problems[0]
    for name, wanted in files.items():
        if owners[name] != ranks.env.rank and measure(folder / name) != wanted:
            sender = ranks.hosts[owners[name]]
            raise OSError(f"{folder / name}: expected what {sender} sent, found other bytes")


def _broadcast_file(ranks: Ranks, path: Path, size: int, owner: int) -> OSError | None:
    """Send a file, or take and keep it; return what went wrong here.

    The others wait for this rank's part in every chunk: whatever happens, it continues to the end.
    """
    sends = owner == ranks.env.rank
    problem, file = None, None
    with ExitStack() as stack:
        try:
            # Unbuffered: closing it has nothing left to write, and to fail at.
            file = stack.enter_context(path.open("rb" if sends else "xb", buffering=0))
        except FileExistsError:
            pass  # it has this file already, and only listens
        except OSError as error:
            problem = error
        for start in range(0, size, CHUNK):
            chunk = torch.zeros(min(size - start, CHUNK), dtype=torch.uint8)
            if sends and file and not problem:
                problem = _attempt(_read, file, chunk)
            dist.broadcast(chunk, src=owner, group=ranks.between_nodes)
            if not sends and file and not problem:
                problem = _attempt(_write, file, chunk)
        if file and not sends and not problem:
            problem = _attempt(os.fsync, file.fileno())
    return problem


def _attempt(work: Callable[..., None], *args: Any) -> OSError | None:
    try:
        work(*args)
    except OSError as error:
        return error
    return None


def _read(file: FileIO, chunk: Tensor) -> None:
    left = chunk.numpy().data
    while left:
        if not (count := file.readinto(left)):
            raise OSError(f"{file.name}: shorter than its manifest says")
        left = left[count:]


def _write(file: FileIO, chunk: Tensor) -> None:
    left = chunk.numpy().data
    while left:
        left = left[file.write(left) :]
