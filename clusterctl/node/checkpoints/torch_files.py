"""Tell a whole file of torch.save from a cut or changed one, without torch, running nothing.

Since 1.6 torch writes a zip with a CRC per
record, before it wrote pickles and then the tensors' bytes, which nothing sums up.
"""

from __future__ import annotations

import io
import os
import struct
import zipfile
from typing import BinaryIO, Dict, Optional

from clusterctl.node.checkpoints.torch_pickles import SafeUnpickler, element_size
from clusterctl.node.checkpoints.torch_zip import (
    ZIP_MAGIC,
    Invalid,
    NoChecksum,
    Progress,
    Window,
    check_zip,
)

SUFFIXES = (".pt", ".pth", ".bin", ".ckpt", ".pt.tar", ".pth.tar")
_LEGACY_MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""The pickled number that files of `_use_new_zipfile_serialization=False` begin with."""
_LENGTH = struct.Struct("<q")
_PICKLE_LIMIT = 16 * 1024 * 1024
"""Bytes of a pickle that is read for the step in it."""
_NEAR = 8
"""Bits by which a magic number may differ to be a damaged one."""


def check_torch_file(path: str, *, content: bool, progress: Progress) -> None:
    """Check a file of torch.save, which is regular and not empty; with `content` every byte.

    Raises:
        Invalid: it is cut or changed.
        NoChecksum: it is of a kind without checksums.
    """
    name = os.path.basename(path)
    size = os.path.getsize(path)
    with open(path, "rb") as stream:
        start = stream.read(max(len(_LEGACY_MAGIC), 64))
        if start.startswith(ZIP_MAGIC):
            if not _has_directory(stream):
                raise Invalid("%s is cut: its zip directory is missing" % name)
            check_zip(Window(stream, 0, size, progress), name, content=content)
        elif start.startswith(_LEGACY_MAGIC):
            _check_legacy(stream, name, size)
        else:
            _refuse_damage(stream, start, name)
            _check_pickle(stream, name, size)


def _refuse_damage(stream: BinaryIO, start: bytes, name: str) -> None:
    """Raise Invalid for the usual things that lie where a file of torch.save should."""
    if not start.strip(b"\0"):
        raise Invalid("%s begins with zeros: its blocks were never written" % name)
    if start.startswith(b"version https://git-lfs"):
        raise Invalid("%s is a pointer of Git LFS, not the file itself (git lfs pull)" % name)
    if start.lstrip()[:1] == b"<":
        raise Invalid("%s is a page of HTML or XML, not a file of torch.save" % name)
    magics = [magic for magic in (ZIP_MAGIC, _LEGACY_MAGIC) if _distance(start, magic) <= _NEAR]
    if magics or _has_directory(stream):
        raise Invalid("%s is changed: its first bytes are not those of torch.save" % name)


def _distance(start: bytes, magic: bytes) -> int:
    """Return the number of different bits; many where one is shorter."""
    if len(start) < len(magic):
        return 8 * len(magic)
    return sum(bin(one ^ other).count("1") for one, other in zip(start, magic))


def _check_pickle(stream: BinaryIO, name: str, size: int) -> None:
    """Take a plain pickle for what it is; torch.load reads those, too."""
    if size > _PICKLE_LIMIT:
        raise NoChecksum("%s is none of the kinds that torch writes" % name)
    stream.seek(0)
    try:
        SafeUnpickler(stream).load()
        whole = stream.tell() == size
    except Exception as error:  # damage leads to any
        if name.endswith((".pt", ".pth", ".tar")):
            raise Invalid("%s is no file of torch.save" % name) from error
        raise NoChecksum("%s is none of the kinds that torch writes" % name) from error
    if not whole:
        raise Invalid("%s is changed: its pickle ends before the file does" % name)
    raise NoChecksum(name)


def _check_legacy(stream: BinaryIO, name: str, size: int) -> None:
    """Follow a file of the old format to its last byte."""
    stream.seek(0)
    try:
        reader = SafeUnpickler(stream)
        for _ in range(4):
            reader.load()  # the magic number, the protocol, the machine, the object itself
        keys = reader.load()
        at = stream.tell()
        for key in keys:
            kind, count = reader.storages[str(key)]
            stream.seek(at)
            (found,) = _LENGTH.unpack(stream.read(_LENGTH.size))
            width = _element(name, kind, wanted=count, found=found)
            at += _LENGTH.size + width * count
    except (Invalid, NoChecksum):
        raise
    except Exception as error:  # damage leads to any
        raise Invalid("%s cannot be read: %s" % (name, str(error) or repr(error))) from error
    if at != size:
        raise Invalid("%s has %d bytes, its tensors say %d" % (name, size, at))
    raise NoChecksum(name)


def _element(name: str, kind: str, *, wanted: int, found: int) -> int:
    width = element_size(kind)
    if width is None:
        raise NoChecksum("%s holds elements of an unknown kind, %s" % (name, kind))
    if found != wanted:
        raise Invalid("%s is changed: a tensor has %d elements, not %d" % (name, found, wanted))
    return width


def _has_directory(stream: BinaryIO) -> bool:
    try:
        return zipfile.is_zipfile(stream)
    except zipfile.BadZipFile:  # there is one, and it contradicts itself
        return False


def saved_counters(path: str) -> Dict[str, Optional[int]]:
    """Return `step`, `epoch` and `world_size` that a file of torch.save says; None: it does not."""
    found: Dict[str, Optional[int]] = {}
    try:
        with open(path, "rb") as stream, zipfile.ZipFile(stream) as archive:
            record = next(one for one in archive.infolist() if one.filename.endswith("/data.pkl"))
            if record.file_size > _PICKLE_LIMIT:
                return {}
            root = SafeUnpickler(io.BytesIO(archive.read(record))).load()
    except Exception:  # noqa: BLE001  (whatever is in there, it says no step)
        return {}
    parts = [root, root.get("meta")] if isinstance(root, dict) else []  # MMEngine's are in meta
    for name, keys in _NUMBERS.items():
        values = [part.get(key) for part in parts if isinstance(part, dict) for key in keys]
        found[name] = next((n for n in values if isinstance(n, int) and n is not True), None)
    return found


_NUMBERS = {
    "step": ("step", "global_step", "iteration", "iter", "iter_num", "num_updates"),
    "epoch": ("epoch",),
    "world_size": ("world_size", "num_ranks", "num_processes"),
}
