"""Tell a whole file of torch.save from a cut or changed one, without torch, running nothing.

Runs on nodes: standard library only, Python 3.9. Since 1.6 torch writes a zip with a CRC per
record, before it wrote pickles and then the tensors' bytes, which nothing sums up.
"""

from __future__ import annotations

import io
import os
import struct
import zipfile
from typing import Any, BinaryIO, Callable, Dict, Optional

from clusterctl.node.pickles import Reader, element_size

CHUNK = 1024 * 1024
SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")
ZIP_MAGIC = b"PK\x03\x04"
_LEGACY_MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""The pickled number that files of `_use_new_zipfile_serialization=False` begin with."""
_END = struct.Struct("<4s4H2LH")
_END_MAGIC = b"PK\x05\x06"
_END64_LOCATOR = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
_ENTRY, _LENGTHS_AT = 46, 28
"""Bytes of a directory entry without its name, and where in it the lengths of the rest are."""
_LENGTHS = struct.Struct("<3H")
_LOCAL = struct.Struct("<4s5H3L2H")
_IN_ZIP64 = 0xFFFFFFFF
_DESCRIPTOR = 0x08
_LENGTH = struct.Struct("<q")
_PICKLE_LIMIT = 16 * 1024 * 1024
"""Bytes of a pickle that is read for the step in it."""
_NEAR = 8
"""Bits by which a magic number may differ to be a damaged one."""

Beat = Callable[[int], None]
"""Called with the number of bytes that were read."""


class Broken(Exception):  # noqa: N818  (what was found out, not a fault of ours)
    """The file is not whole; `str()` says how it shows."""


class Unproven(Exception):  # noqa: N818  (what was found out, not a fault of ours)
    """Nothing speaks against the file, and nothing proves it; `str()` says why."""


class Window(io.RawIOBase):
    """A part of a file as a file of its own; tells how far it was read."""

    def __init__(self, stream: BinaryIO, offset: int, length: int, beat: Beat) -> None:
        super().__init__()
        self._stream, self._offset, self._length, self._beat = stream, offset, length, beat
        self._at = 0

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        """Move within the part."""
        self._at = max(0, offset + (0, self._at, self._length)[whence])
        return self._at

    def tell(self) -> int:
        """Return where it is within the part."""
        return self._at

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401  (any buffer)
        """Read; never beyond the part."""
        wanted = max(0, min(len(buffer), self._length - self._at))
        self._stream.seek(self._offset + self._at)
        data = self._stream.read(wanted)
        buffer[: len(data)] = data
        self._at += len(data)
        self._beat(len(data))
        return len(data)


def check_torch_file(path: str, *, content: bool, beat: Beat) -> None:
    """Check a file of torch.save.

    Args:
        path: a regular file that is not empty.
        content: read every byte, not only its structure.
        beat: told how far it is.

    Raises:
        Broken: it is cut or changed.
        Unproven: it is of a kind without checksums.
    """
    name = os.path.basename(path)
    size = os.path.getsize(path)
    with open(path, "rb") as stream:
        start = stream.read(max(len(_LEGACY_MAGIC), 64))
        if start.startswith(ZIP_MAGIC):
            if not _has_directory(stream):
                raise Broken("%s is cut: its zip directory is missing" % name)
            check_zip(Window(stream, 0, size, beat), name, content=content)
        elif start.startswith(_LEGACY_MAGIC):
            _check_legacy(stream, name, size, content=content, beat=beat)
        else:
            _refuse_damage(stream, start, name)
            _check_pickle(stream, name, size)


def _refuse_damage(stream: BinaryIO, start: bytes, name: str) -> None:
    """Name the usual things that lie where a file of torch.save should.

    Raises:
        Broken: it is one of them.
    """
    if not start.strip(b"\0"):
        raise Broken("%s begins with zeros: its blocks were never written" % name)
    if start.startswith(b"version https://git-lfs"):
        raise Broken("%s is a pointer of Git LFS, not the file itself (git lfs pull)" % name)
    if start.lstrip()[:1] == b"<":
        raise Broken("%s is a page of HTML or XML, not a file of torch.save" % name)
    magics = [magic for magic in (ZIP_MAGIC, _LEGACY_MAGIC) if _distance(start, magic) <= _NEAR]
    if magics or _has_directory(stream):
        raise Broken("%s is changed: its first bytes are not those of torch.save" % name)


def _distance(start: bytes, magic: bytes) -> int:
    """Return the number of different bits; many where one is shorter."""
    if len(start) < len(magic):
        return 8 * len(magic)
    return sum(bin(one ^ other).count("1") for one, other in zip(start, magic))


def _check_pickle(stream: BinaryIO, name: str, size: int) -> None:
    """Take a plain pickle for what it is; torch.load reads those, too."""
    if size > _PICKLE_LIMIT:
        raise Unproven("%s is none of the kinds that torch writes" % name)
    stream.seek(0)
    try:
        Reader(stream).load()
        whole = stream.tell() == size
    except Exception as error:  # damage leads to any
        if name.endswith((".pt", ".pth")):
            raise Broken("%s is no file of torch.save" % name) from error
        raise Unproven("%s is none of the kinds that torch writes" % name) from error
    if not whole:
        raise Broken("%s is changed: its pickle ends before the file does" % name)
    raise Unproven(name)


def _check_legacy(stream: BinaryIO, name: str, size: int, *, content: bool, beat: Beat) -> None:
    """Follow a file of the old format to its last byte.

    Raises:
        Broken: it is cut, or has other lengths than its tensors.
        Unproven: it is whole, and has no checksums.
    """
    stream.seek(0)
    try:
        reader = Reader(stream)
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
    except (Broken, Unproven):
        raise
    except Exception as error:  # damage leads to any
        raise Broken("%s cannot be read: %s" % (name, str(error) or repr(error))) from error
    if at != size:
        raise Broken("%s has %d bytes, its tensors say %d" % (name, size, at))
    if content:
        beat(0)
    raise Unproven(name)


def _element(name: str, kind: str, *, wanted: int, found: int) -> int:
    width = element_size(kind)
    if width is None:
        raise Unproven("%s holds elements of an unknown kind, %s" % (name, kind))
    if found != wanted:
        raise Broken("%s is changed: a tensor has %d elements, not %d" % (name, found, wanted))
    return width


def _has_directory(stream: BinaryIO) -> bool:
    try:
        return zipfile.is_zipfile(stream)
    except zipfile.BadZipFile:  # there is one, and it contradicts itself
        return False


def check_zip(stream: io.RawIOBase, name: str, *, content: bool) -> Dict[str, int]:
    """Check a zip of torch's: its structure, and with `content` every record's CRC.

    Returns:
        The size of each record, by its name without the first folder.

    Raises:
        Broken: a header contradicts another one, or a checksum is wrong.
        Unproven: with `content`: it was written without checksums.
    """
    buffered = io.BufferedReader(stream, CHUNK)
    try:
        with zipfile.ZipFile(buffered) as archive:
            records = archive.infolist()
            _check_end(buffered, len(records))
            for record in records:
                _check_header(buffered, record)
            summed = any(record.CRC for record in records)
            if content and summed:
                for record in records:
                    with archive.open(record) as data:
                        while data.read(CHUNK):
                            pass
    except Broken as broken:
        raise Broken("%s is changed: %s" % (name, broken)) from broken
    except zipfile.BadZipFile as error:
        if "CRC" in str(error):
            what = str(error).replace("Bad CRC-32 for file ", "").strip("'")
            message = "%s is changed: the checksum of its record %s is wrong" % (name, what)
            raise Broken(message) from error
        raise Broken("%s cannot be read: %s" % (name, error)) from error
    except Exception as error:  # damage leads to any: EOFError, RuntimeError …
        raise Broken("%s cannot be read: %s" % (name, str(error) or repr(error))) from error
    if content and not summed:
        raise Unproven(name)
    return {record.filename.partition("/")[2]: record.file_size for record in records}


def _check_end(stream: BinaryIO, count: int) -> None:
    """Check the end of the directory, which `zipfile` reads generously.

    Raises:
        Broken: it contradicts the directory.
    """
    size = stream.seek(0, os.SEEK_END)
    length = min(size, _END.size + 0xFFFF)
    stream.seek(size - length)
    tail = stream.read(length)
    at = tail.rfind(_END_MAGIC)
    end = size - length + at
    _, disk, first_disk, here, total, long, offset, comment = _END.unpack_from(tail, at)
    if at + _END.size + comment != len(tail):
        raise Broken("something follows its zip directory")
    locator_at = end - _END64_LOCATOR.size
    stream.seek(max(0, locator_at))
    locator = stream.read(_END64_LOCATOR.size)
    if locator_at >= 0 and locator.startswith(b"PK\x06\x07"):
        end = _END64_LOCATOR.unpack(locator)[2]
        stream.seek(end)
        found = _END64.unpack(stream.read(_END64.size))
        magic, rest, _, _, disk, first_disk, here, total, long, offset = found
        if magic != b"PK\x06\x06" or end + 12 + rest != locator_at:
            raise Broken("the large end of its zip directory is not where it should be")
    at = offset
    for _ in range(count):
        stream.seek(at + _LENGTHS_AT)
        at += _ENTRY + sum(_LENGTHS.unpack(stream.read(_LENGTHS.size)))
    if disk or first_disk or (here, total) != (count, count) or not offset + long == end == at:
        raise Broken("its zip directory is not as its end says")


def _check_header(stream: BinaryIO, record: zipfile.ZipInfo) -> None:
    """Compare a record's own header with what the directory says of it: torch reads both.

    Raises:
        Broken: they differ.
    """
    stream.seek(record.header_offset)
    magic, version, flags, method, _, _, crc, packed, size, name_length, _ = _LOCAL.unpack(
        stream.read(_LOCAL.size)
    )
    name = stream.read(name_length)
    told = (magic, version, flags, method)
    wanted = (ZIP_MAGIC, record.extract_version, record.flag_bits, record.compress_type)
    later = flags & _DESCRIPTOR
    sums = ((crc, record.CRC), (packed, record.compress_size), (size, record.file_size))
    same = all(one in (other, _IN_ZIP64) or (later and not one) for one, other in sums)
    stored = record.compress_type != zipfile.ZIP_STORED or record.compress_size == record.file_size
    inside = not record.volume and not record.external_attr & 0x10 and not record.flag_bits & 0x2061
    encoded = record.orig_filename.encode("utf-8" if flags & 0x800 else "cp437", "replace")
    if told != wanted or not same or not stored or not inside or name != encoded:
        raise Broken("the header of its record %s is not as the directory says" % record.filename)


def numbers_inside(path: str) -> Dict[str, Optional[int]]:
    """Return `step`, `epoch` and `world_size` that a file of torch.save says; None: it does not."""
    found: Dict[str, Optional[int]] = {}
    try:
        with open(path, "rb") as stream, zipfile.ZipFile(stream) as archive:
            record = next(one for one in archive.infolist() if one.filename.endswith("/data.pkl"))
            if record.file_size > _PICKLE_LIMIT:
                return {}
            root = Reader(io.BytesIO(archive.read(record))).load()
    except Exception:  # noqa: BLE001  (whatever is in there, it says no step)
        return {}
    for name, keys in _NUMBERS.items():
        said = [root.get(key) for key in keys] if isinstance(root, dict) else []
        found[name] = next((n for n in said if isinstance(n, int) and n is not True), None)
    return found


_NUMBERS = {
    "step": ("step", "global_step", "iteration"),
    "epoch": ("epoch",),
    "world_size": ("world_size", "num_ranks", "num_processes"),
}
