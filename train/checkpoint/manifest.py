"""What makes a checkpoint's folder whole: hashed files, a seal, a rename; and which folders are."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from train.files import Entry, measure, sync_folder, write_durably

MANIFEST = "MANIFEST.json"
COMPLETE = "COMPLETE"
SCHEMA = 1
RUN = "CLUSTERCTL_RUN_ID"
"""Set by a launcher to an identifier of the run; equal on all nodes."""
EXPORTS = ("adapter", "model")
"""Folders of what was trained, next to the checkpoints."""
RECORDS = "metrics.jsonl"
"""The numbers of the steps, as `train.observe.records` keeps them."""
_NAME = re.compile(r"step-(\d{6,})")
_WRITTEN = re.compile(r"(step-\d{6,})\.tmp-(?:[0-9a-f]{8}|old-\d+)")
"""A step's folder that was being written, or that a newer one was about to replace."""


class CorruptCheckpoint(Exception):  # noqa: N818  (named for what is so)
    """A folder is not a whole checkpoint; the message says what is wrong with it."""


def folder_name(step: int) -> str:
    """Return the name of the folder of a step's checkpoint."""
    return f"step-{step:06d}"


def step_of(folder: Path) -> int | None:
    """Return the step that a folder's name stands for; None for any other name."""
    found = _NAME.fullmatch(folder.name)
    return int(found[1]) if found else None


def candidates(output: Path) -> list[Path]:
    """Return the folders that may be whole checkpoints, newest first."""
    if not output.is_dir():
        return []
    steps = {path: step for path in output.iterdir() if (step := step_of(path)) is not None}
    return sorted(steps, key=lambda path: steps[path], reverse=True)


def newest_step(output: Path) -> int:
    """Return the newest step that was sealed, its files unread; 0 if there is none."""
    steps = [step_of(folder) for folder in candidates(output) if _is_sealed(folder)]
    return (steps and steps[0]) or 0


def seal(folder: Path, step: int, files: Mapping[str, Entry]) -> None:
    """Write a folder's manifest, and the mark that it is complete."""
    listed = {name: {"size": e.size, "sha256": e.sha256} for name, e in sorted(files.items())}
    about: dict[str, Any] = {"schema": SCHEMA, "step": step}
    if run := os.environ.get(RUN):
        about["run"] = run
    text = json.dumps(about | {"files": listed}, indent=1) + "\n"
    write_durably(folder / MANIFEST, text)
    sync_folder(folder)
    write_durably(folder / COMPLETE, hashlib.sha256(text.encode()).hexdigest() + "\n")
    sync_folder(folder)


def sealed(folder: Path) -> tuple[str, dict[str, Entry]]:
    """Return a folder's seal and what its manifest lists, without reading the files.

    Raises:
        CorruptCheckpoint: The seal or the manifest is missing or not what was written.
    """
    try:
        text = (folder / MANIFEST).read_bytes()
        seal_here = (folder / COMPLETE).read_bytes()
    except FileNotFoundError as error:
        if not folder.exists():
            raise CorruptCheckpoint("there is no such folder") from None
        missing = os.path.basename(error.filename)  # noqa: PTH119  (a name as the OS gave it)
        raise CorruptCheckpoint(f"{missing} is missing: it was never finished") from None
    except OSError as error:
        raise CorruptCheckpoint(f"cannot be read: {error}") from error
    digest = hashlib.sha256(text).hexdigest()
    if seal_here != f"{digest}\n".encode():
        raise CorruptCheckpoint(f"{COMPLETE} does not fit {MANIFEST}: one of them was changed")
    return digest, listed(text)


def listed(text: bytes) -> dict[str, Entry]:
    """Return what a manifest lists; raise CorruptCheckpoint if it is none."""
    try:
        manifest: dict[str, Any] = json.loads(text)
        return {n: Entry(e["size"], e["sha256"]) for n, e in manifest["files"].items()}
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise CorruptCheckpoint(f"{MANIFEST} is of another program") from error


def verify(folder: Path) -> str:
    """Verify that every file of a checkpoint is what was written; name the first that is not.

    Returns:
        The seal: the manifest's hash, equal for equal checkpoints.
    """
    digest, files = sealed(folder)
    for name, wanted in files.items():
        try:
            size = (folder / name).stat().st_size
        except FileNotFoundError:
            raise CorruptCheckpoint(f"{name} is missing") from None
        except OSError as error:
            raise CorruptCheckpoint(f"{name} cannot be read: {error}") from error
        if size != wanted.size:
            raise CorruptCheckpoint(f"{name}: expected {wanted.size} bytes, found {size}")
        try:
            found = measure(folder / name)
        except OSError as error:
            raise CorruptCheckpoint(f"{name} cannot be read: {error}") from error
        if found != wanted:
            message = f"{name}: expected SHA-256 {wanted.sha256[:12]}, found {found.sha256[:12]}"
            raise CorruptCheckpoint(f"{message}: its bytes were changed")
    return digest


def _is_sealed(folder: Path) -> bool:
    try:
        sealed(folder)
    except CorruptCheckpoint:
        return False
    return True


def publish(written: Path, final: Path) -> None:
    """Give a sealed folder its name, in one step that is there after a crash or is not."""
    if final.exists():
        old = final.with_name(f"{final.name}.tmp-old-{os.getpid()}")
        final.rename(old)
        written.rename(final)
        _remove(old)
    else:
        written.rename(final)
    sync_folder(final.parent)


def prune(output: Path, keep: int, spared: Path | None = None) -> None:
    """Remove the oldest sealed checkpoints; incomplete ones neither count nor are deleted.

    `spared` is being read, and left for the next time.
    """
    whole = [folder for folder in candidates(output) if _is_sealed(folder)]
    for folder in whole[keep:]:
        if folder == spared:
            continue
        # Renamed first: a crash in the middle must not leave half a checkpoint under a good name.
        gone = folder.with_name(f"{folder.name}.tmp-pruned")
        try:
            folder.rename(gone)
        except OSError as error:
            print(f"{folder}: could not be removed: {error}", file=sys.stderr)
        else:
            _remove(gone)


def sweep(output: Path) -> None:
    """Put in place what an earlier, killed run of this folder had sealed; remove the rest."""
    # Of two of one step the newer first: a crash between the renames of `publish` leaves both.
    for path in sorted(output.glob("step-*.tmp-*"), key=lambda path: ".tmp-old-" in path.name):
        found = _WRITTEN.fullmatch(path.name)
        if found and not (output / found[1]).exists() and _is_sealed(path):
            path.rename(output / found[1])
            sync_folder(output)
    for name in ("step-*", *EXPORTS):
        for path in output.glob(f"{name}.tmp-*"):
            _remove(path)
    for name in (".probe-*", ".status.json.*"):
        for path in output.glob(name):
            path.unlink(missing_ok=True)


def _remove(folder: Path) -> None:
    """Remove a folder as far as possible: NFS keeps what another process still reads."""
    try:
        shutil.rmtree(folder)
    except OSError as error:
        print(f"{folder}: could not be removed: {error}", file=sys.stderr)


def is_export(folder: Path) -> bool:
    """Return whether a folder is an adapter or a model, and not code of that name."""
    return any((folder / name).is_file() for name in ("adapter_config.json", "config.json"))


def set_aside(output: Path, after: int, mark: str, base: Path) -> list[Path]:
    """Rename what belongs to another history than that of this step; `latest` skips it then.

    An export is of the last step that there was. So it stays if no later checkpoint is here, and
    the training that continues will replace it by its own. The records of a history that is
    continued from an earlier step are copied, since the ones until then are of both. The base
    model stays, wherever it is.
    """
    found = [folder for folder in candidates(output) if (step_of(folder) or 0) > after]
    if found or not after:
        exports = (output / name for name in EXPORTS)
        found += [
            path
            for path in exports
            if is_export(path) and not base.resolve().is_relative_to(path.resolve())
        ]
    if not after and (output / RECORDS).exists():
        found.append(output / RECORDS)
    elif found and (output / RECORDS).is_file():
        shutil.copyfile(output / RECORDS, output / f"{RECORDS}.aside-{mark}")
    return [path.rename(path.with_name(f"{path.name}.aside-{mark}")) for path in found]


def ever_set_aside(output: Path) -> tuple[int, int]:
    """Return how much of other histories a folder holds: how many files and folders, and bytes."""
    found = list(output.glob("*.aside-*"))
    files = (file for top in found for file in (top, *top.rglob("*")) if file.is_file())
    return len(found), sum(file.stat().st_size for file in files)
