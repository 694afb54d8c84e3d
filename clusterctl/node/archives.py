"""Tell a whole file of a checkpoint from a cut or changed one, without torch and running nothing.

Runs on nodes: standard library only, Python 3.9. safetensors files say in their header how long
they are; what torch writes is a zip, with a CRC per record; a torch distributed checkpoint's
`.metadata` is a pickle, read here with every class replaced by an empty one.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import struct
import zipfile
from typing import Any, BinaryIO, Dict, Iterator, List, Optional, Tuple

_HEADER_LIMIT = 100 * 1024 * 1024
_CHUNK = 1024 * 1024
_ZIP_MAGIC = b"PK\x03\x04"
_LENGTH = struct.Struct("<Q")

ZIP_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")
SAFETENSORS_SUFFIX = ".safetensors"


class Broken(Exception):  # noqa: N818  (what was found out, not a fault of ours)
    """The file is not whole; `str()` says how it shows."""


def digest(path: str) -> str:
    """Return the SHA-256 of a file's bytes."""
    found = hashlib.sha256()
    with open(path, "rb") as stream:
        for chunk in iter(lambda: stream.read(_CHUNK), b""):
            found.update(chunk)
    return found.hexdigest()


def check_shape(path: str) -> None:
    """Check quickly that a file is there to its end.

    Raises:
        Broken: it is missing, empty or cut.
    """
    name = os.path.basename(path)
    if not os.path.isfile(path):
        raise Broken("%s is missing" % name)
    if os.path.getsize(path) == 0:
        raise Broken("%s is empty" % name)
    if path.endswith(SAFETENSORS_SUFFIX):
        _check_safetensors(path)
    elif path.endswith(ZIP_SUFFIXES) and _starts_as_zip(path) and not _has_directory(path):
        raise Broken("%s is cut: its zip directory is missing" % name)


def check_content(path: str) -> None:
    """Check every byte that the file itself lets us check.

    Raises:
        Broken: a record's checksum is wrong, or the file is not whole.
    """
    check_shape(path)
    if path.endswith(ZIP_SUFFIXES) and _starts_as_zip(path):
        with open(path, "rb") as stream:
            _check_zip(stream, os.path.basename(path))


def check_slice(path: str, offset: int, length: int) -> None:
    """Check the records of one item that lies within a shard as a zip of its own.

    Raises:
        Broken: a record's checksum is wrong.
    """
    with open(path, "rb") as stream:
        stream.seek(offset)
        data = stream.read(length)
    if data.startswith(_ZIP_MAGIC):
        _check_zip(io.BytesIO(data), os.path.basename(path))


def _starts_as_zip(path: str) -> bool:
    with open(path, "rb") as stream:
        return stream.read(len(_ZIP_MAGIC)) == _ZIP_MAGIC


def _has_directory(path: str) -> bool:
    try:
        return zipfile.is_zipfile(path)
    except zipfile.BadZipFile:  # there is one, and it contradicts itself
        return False


def _check_zip(stream: BinaryIO, name: str) -> None:
    try:
        with zipfile.ZipFile(stream) as archive:
            bad = archive.testzip()
    except Exception as error:  # damage leads to any: EOFError, RuntimeError …
        raise Broken("%s cannot be read: %s" % (name, str(error) or repr(error))) from error
    if bad is not None:
        raise Broken("%s is changed: the checksum of its record %s is wrong" % (name, bad))


def _check_safetensors(path: str) -> None:
    name = os.path.basename(path)
    size = os.path.getsize(path)
    with open(path, "rb") as stream:
        start = stream.read(_LENGTH.size)
        length = _LENGTH.unpack(start)[0] if len(start) == _LENGTH.size else _HEADER_LIMIT + 1
        if length > _HEADER_LIMIT:
            raise Broken("%s has no safetensors header" % name)
        try:
            header = json.loads(stream.read(length))
            ends = [
                tensor["data_offsets"][1] for key, tensor in header.items() if key != "__metadata__"
            ]
            wanted = _LENGTH.size + length + max(ends, default=0)
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise Broken("%s has a broken safetensors header" % name) from error
    if size != wanted:
        raise Broken("%s has %d bytes, its header says %d" % (name, size, wanted))


class _Blank:
    """Stands for every class that a pickle names: takes whatever is built of it, does nothing."""

    state: Dict[str, Any]

    def __new__(cls, *_args: object, **_named: object) -> _Blank:  # noqa: PYI034  (3.9 has no Self)
        blank = object.__new__(cls)
        blank.state = {}
        return blank

    def __init__(self, *_args: object, **_named: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        for part in state if isinstance(state, tuple) else (state,):
            if isinstance(part, dict):
                self.state.update(part)

    def __setitem__(self, key: object, value: object) -> None:
        pass

    def append(self, item: object) -> None:
        pass

    def extend(self, items: object) -> None:
        pass


class _BlankUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> type:
        return type(name, (_Blank,), {"__module__": module})

    def persistent_load(self, _pid: object) -> None:
        """Leave tensors where they are."""


def step_inside(path: str) -> Optional[int]:
    """Return the step that a file of torch.save says it is of; None: it says none."""
    try:
        with zipfile.ZipFile(path) as archive:
            pickled = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
            root = _BlankUnpickler(io.BytesIO(archive.read(pickled))).load()
    except Exception:  # noqa: BLE001  (whatever is in there, it says no step)
        return None
    steps = [root.get(key) for key in ("step", "global_step")] if isinstance(root, dict) else []
    return next((step for step in steps if isinstance(step, int)), None)


Item = Tuple[str, int, int]
"""A file's name, and the offset and length of one item in it."""


def dcp_items(path: str) -> List[Item]:
    """Read from a `.metadata` which bytes of which shard must be there.

    Raises:
        Broken: it is not a torch distributed checkpoint's metadata.
    """
    try:
        with open(path, "rb") as stream:
            root = _BlankUnpickler(stream).load()
        return list(_items(root.state["storage_data"]))
    except (pickle.UnpicklingError, EOFError, OSError, KeyError, ValueError) as error:
        raise Broken(".metadata cannot be read: %s" % (str(error) or "it is cut")) from error
    except Exception as error:  # a pickle may hold anything, and damage more than that
        raise Broken(".metadata is not a torch distributed checkpoint's") from error


def _items(storage: Dict[Any, Any]) -> Iterator[Item]:
    for place in storage.values():
        state = place.state
        yield str(state["relative_path"]), int(state["offset"]), int(state["length"])
