"""Checkpoints in an object store: sent with the manifest last, brought and verified on a node."""

from __future__ import annotations

import hashlib
import secrets
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from train.checkpoint import manifest
from train.checkpoint.manifest import COMPLETE, MANIFEST, CorruptCheckpoint
from train.data.progress import Reporter
from train.errors import CheckpointError, ConfigError
from train.files import Entry, measure
from train.lock import Lock
from train.object_store import (
    Folder,
    ask,
    growing,
    is_final,
    patiently,
    unreachable,
    words,
)

LATEST = "latest"
"""A file next to the checkpoints: the name of the one that was last uploaded whole."""
KEY = "resume_from_checkpoint"
SMALL = 1 << 20

Tell = Callable[[str], None]


def upload(folder: Path, url: str, tell: Tell) -> int:
    """Upload a whole checkpoint, or find it there; try again until it is done.

    Returns:
        How many bytes were sent.

    Raises:
        ConfigError: The store cannot be used from here.
        CorruptCheckpoint: The folder is not whole, or was removed meanwhile.
    """
    top = Folder.at(url, key="upload_to")
    there, seal = top / folder.name, (folder / COMPLETE).read_bytes() if folder.is_dir() else b""
    _, files = manifest.sealed(folder)
    sent = 0

    def lastingly(work: Callable[[], object]) -> object:
        def is_ours(error: Exception) -> bool:
            return isinstance(error, CorruptCheckpoint)

        return patiently(work, tell=tell, waits=growing(), final=is_ours)

    def send(name: str) -> int:
        file = folder / name
        if not file.is_file() or (name in files and file.stat().st_size != files[name].size):
            raise CorruptCheckpoint(f"{file} was removed or changed during its upload")
        (there / name).send(file)
        return file.stat().st_size

    if lastingly((there / COMPLETE).read) != seal:
        # First: what an earlier history left there under this name must not look whole.
        for name in (COMPLETE, MANIFEST):
            lastingly((there / name).remove)
        for name in (*files, MANIFEST, COMPLETE):
            lastingly(lambda: send(name))  # noqa: B023  (called at once)
            sent += (folder / name).stat().st_size
    lastingly(lambda: (top / LATEST).write(f"{folder.name}\n".encode()))
    return sent


def probe(url: str, tell: Tell) -> None:
    """Refuse a store that takes nothing from here; one that is away may be there later."""
    file = Folder.at(url, key="upload_to") / f".probe-{secrets.token_hex(8)}"
    try:
        file.write(b"")
        file.size()
        file.remove()
        file.read()  # (without s3:ListBucket, what is missing is refused as what is secret is)
    except Exception as error:
        if is_final(error):
            raise unreachable(file.parent, error, key="upload_to") from error
        tell(f"upload_to: {words(error)}; tried again with the first checkpoint")


def bring(url: str, output: Path, *, tell: Tell, reporter: Reporter) -> Path:
    """Return the folder of a store's checkpoint below `output`, downloaded and verified there.

    One process of those that share the folder downloads it. What an interrupted download has left
    is kept as far as its hashes are right.

    Raises:
        CheckpointError: The checkpoint is damaged or incomplete.
        ConfigError: The store cannot be reached, or there is no room.
    """
    output.mkdir(parents=True, exist_ok=True)
    with Lock(output / ".download.owner").held():
        there, files = find_whole(url, tell)
        try:
            return _bring(there, files, output, tell, reporter)
        except CorruptCheckpoint as damage:
            raise _refused(there, damage, tell) from damage


def find_whole(url: str, tell: Tell) -> tuple[Folder, dict[str, Entry]]:
    """Return the checkpoint that a URL means and its files; each is there in its size.

    Raises:
        CheckpointError: Something is missing, or of another size.
        ConfigError: The store cannot be reached.
    """
    there = find(url, tell)
    try:
        return there, look(there, tell)
    except CorruptCheckpoint as damage:
        raise _refused(there, damage, tell) from damage


def find(url: str, tell: Tell) -> Folder:
    """Return the checkpoint that a URL means; `latest` is the one that was uploaded last."""
    there = Folder.at(url, key=KEY)
    if there.name != LATEST:
        return there
    named = ask(there, there.read, key=KEY, tell=tell)
    name = (named or b"").decode(errors="replace").strip()
    if manifest.step_of(Path(name)) is None or "/" in name:
        found = f"{name[:40]!r} in it" if named else "no such file"
        raise CheckpointError(
            f"{there.url}: expected the name of a checkpoint that was uploaded whole, found {found}"
        )
    return there.parent / name


def look(there: Folder, tell: Tell) -> dict[str, Entry]:
    """Return what a checkpoint in a store consists of, its seal last."""
    if manifest.step_of(Path(there.name)) is None:
        raise CorruptCheckpoint("expected a name such as step-000120")
    texts = {}
    for name in (COMPLETE, MANIFEST):
        text = ask(there, (there / name).read, key=KEY, tell=tell)
        if text is None:
            raise CorruptCheckpoint(f"{name} is missing: it was never uploaded whole")
        texts[name] = text
    if texts[COMPLETE] != f"{hashlib.sha256(texts[MANIFEST]).hexdigest()}\n".encode():
        raise CorruptCheckpoint(f"{COMPLETE} does not fit {MANIFEST}: one of them was changed")
    files = manifest.listed(texts[MANIFEST])
    for name, entry in files.items():
        if Path(name).name != name:
            raise CorruptCheckpoint(f"{MANIFEST} names {name!r}, which is no file of a checkpoint")
        size = ask(there, (there / name).size, key=KEY, tell=tell)
        if size != entry.size:
            found = "none" if size is None else f"{size} bytes"
            raise CorruptCheckpoint(f"{name}: expected {entry.size} bytes, found {found}")
    return files | {name: _entry(texts[name]) for name in (MANIFEST, COMPLETE)}


def _bring(
    there: Folder, files: dict[str, Entry], output: Path, tell: Tell, reporter: Reporter
) -> Path:
    final = output / there.name
    seal = files[COMPLETE].sha256
    if (final / COMPLETE).is_file() and measure(final / COMPLETE).sha256 == seal:
        return final  # brought before; who loads it verifies it
    aside = output / f"{final.name}.tmp-{seal[:8]}"
    aside.mkdir(exist_ok=True)
    wanted = {name: entry for name, entry in files.items() if not _is_there(aside / name, entry)}
    size = sum(entry.size for entry in wanted.values())
    free = shutil.disk_usage(output).free
    if free < size + SMALL:
        said = f"{output}: expected {size / 2**30:.2f} GiB free for {there.url}"
        raise ConfigError(f"{said}, found {free / 2**30:.2f}")
    tell(f"downloading {there.url} ({size / 2**30:.2f} GiB) to {output}")
    began = time.monotonic()
    with reporter.during("downloading", size=size):
        for name in sorted(wanted, key=[*files].index):  # the seal is last in it
            _bring_file(there / name, aside / name, wanted[name], tell)
    tell(f"downloaded and verified {final} in {time.monotonic() - began:.1f} s")
    if final.exists():
        final.rename(final.with_name(f"{final.name}.aside-{seal[:8]}"))
    manifest.publish(aside, final)
    return final


def _bring_file(there: Folder, file: Path, wanted: Entry, tell: Tell) -> None:
    ask(there, lambda: there.bring(file), key=KEY, tell=tell)
    found = measure(file)
    if found != wanted:
        file.unlink()
        expected = f"expected {wanted.size} bytes with SHA-256 {wanted.sha256[:12]}"
        raise CorruptCheckpoint(
            f"{there.name}: {expected}, found {found.size} with {found.sha256[:12]}"
        )


def _is_there(file: Path, wanted: Entry) -> bool:
    return file.is_file() and file.stat().st_size == wanted.size and measure(file) == wanted


def _entry(text: bytes) -> Entry:
    return Entry(len(text), hashlib.sha256(text).hexdigest())


def _refused(there: Folder, damage: CorruptCheckpoint, tell: Tell) -> CheckpointError:
    """Return what is wrong with a checkpoint, and the newest other one that is sealed."""
    top, hint = there.parent, ""
    names = ask(top, top.names, key=KEY, tell=tell)
    steps = {name: step for name in names if (step := manifest.step_of(Path(name))) is not None}
    for name in sorted(steps, key=lambda name: steps[name]):
        if name != there.name and (top / name / COMPLETE).size():
            hint = f"\nhint: the newest other one: --resume-from-checkpoint {top.url}/{name}"
    return CheckpointError(f"{there.url}: {damage}{hint}")
