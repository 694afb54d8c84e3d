"""Check a zip as torch writes it: `zipfile` reads generously, torch does not."""

from __future__ import annotations

import io
import os
import struct
import zipfile
from typing import Any, BinaryIO, Callable, Dict

CHUNK = 1024 * 1024
ZIP_MAGIC = b"PK\x03\x04"
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

Progress = Callable[[int], None]
"""Called with the number of bytes that were read."""


class Invalid(Exception):  # noqa: N818  (a finding, not a program error)
    """The file is not whole; `str()` says how it shows."""


class NoChecksum(Exception):  # noqa: N818  (a finding, not a program error)
    """Nothing speaks against the file, and nothing proves it; `str()` says why."""


class Window(io.RawIOBase):
    """A part of a file as a file of its own; tells how far it was read."""

    def __init__(self, stream: BinaryIO, offset: int, length: int, progress: Progress) -> None:
        super().__init__()
        self._stream, self._offset, self._length, self._progress = stream, offset, length, progress
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
        self._progress(len(data))
        return len(data)


def check_zip(stream: io.RawIOBase, name: str, *, content: bool) -> Dict[str, int]:
    """Check a zip of torch's: its structure, and with `content` every record's CRC.

    Returns:
        The size of each record, by its name without the first folder.

    Raises:
        Invalid: a header contradicts another one, or a checksum is wrong.
        NoChecksum: with `content`: it was written without checksums.
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
    except Invalid as broken:
        raise Invalid("%s is changed: %s" % (name, broken)) from broken
    except zipfile.BadZipFile as error:
        if "CRC" in str(error):
            what = str(error).replace("Bad CRC-32 for file ", "").strip("'")
            message = "%s is changed: the checksum of its record %s is wrong" % (name, what)
            raise Invalid(message) from error
        raise Invalid("%s cannot be read: %s" % (name, error)) from error
    except Exception as error:  # damage leads to any: EOFError, RuntimeError …
        raise Invalid("%s cannot be read: %s" % (name, str(error) or repr(error))) from error
    if content and not summed:
        raise NoChecksum(name)
    return {record.filename.partition("/")[2]: record.file_size for record in records}


def _check_end(stream: BinaryIO, count: int) -> None:
    """Raise Invalid if the directory's end, which `zipfile` reads generously, contradicts it."""
    size = stream.seek(0, os.SEEK_END)
    length = min(size, _END.size + 0xFFFF)
    stream.seek(size - length)
    tail = stream.read(length)
    at = tail.rfind(_END_MAGIC)
    end = size - length + at
    _, disk, first_disk, here, total, long, offset, comment = _END.unpack_from(tail, at)
    if at + _END.size + comment != len(tail):
        raise Invalid("something follows its zip directory")
    locator_at = end - _END64_LOCATOR.size
    stream.seek(max(0, locator_at))
    locator = stream.read(_END64_LOCATOR.size)
    if locator_at >= 0 and locator.startswith(b"PK\x06\x07"):
        end = _END64_LOCATOR.unpack(locator)[2]
        stream.seek(end)
        found = _END64.unpack(stream.read(_END64.size))
        magic, rest, _, _, disk, first_disk, here, total, long, offset = found
        if magic != b"PK\x06\x06" or end + 12 + rest != locator_at:
            raise Invalid("the large end of its zip directory is not where it should be")
    at = offset
    for _ in range(count):
        stream.seek(at + _LENGTHS_AT)
        at += _ENTRY + sum(_LENGTHS.unpack(stream.read(_LENGTHS.size)))
    if disk or first_disk or (here, total) != (count, count) or not offset + long == end == at:
        raise Invalid("its zip directory is not as its end says")


def _check_header(stream: BinaryIO, record: zipfile.ZipInfo) -> None:
    """Raise Invalid if a record's own header is not as in the directory: torch reads both."""
    stream.seek(record.header_offset)
    magic, version, flags, method, _, _, crc, packed, size, name_length, _ = _LOCAL.unpack(
        stream.read(_LOCAL.size)
    )
    name = stream.read(name_length)
    found = (magic, version, flags, method)
    wanted = (ZIP_MAGIC, record.extract_version, record.flag_bits, record.compress_type)
    later = flags & _DESCRIPTOR
    sums = ((crc, record.CRC), (packed, record.compress_size), (size, record.file_size))
    same = all(one in (other, _IN_ZIP64) or (later and not one) for one, other in sums)
    stored = record.compress_type != zipfile.ZIP_STORED or record.compress_size == record.file_size
    inside = not record.volume and not record.external_attr & 0x10 and not record.flag_bits & 0x2061
    encoded = record.orig_filename.encode("utf-8" if flags & 0x800 else "cp437", "replace")
    if found != wanted or not same or not stored or not inside or name != encoded:
        raise Invalid("the header of its record %s is not as the directory says" % record.filename)
