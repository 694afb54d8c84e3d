"""What a file is that is no data set, by its first bytes, and the command that makes one of it."""

from __future__ import annotations

import shlex
from pathlib import Path

from train.data.files import streams, tar_members
from train.data.files.bad_line import NO_UTF8
from train.errors import ConfigError

START = 1 << 16
"""Bytes that are read."""
BOMS = {
    b"\xff\xfe\0\0": "UTF-32", b"\0\0\xfe\xff": "UTF-32", b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}  # fmt: skip
"""How text of another encoding begins; a longer mark is before one that it begins with."""
ZEROS = {
    b"\1\0\0\0": "UTF-32LE", b"\0\0\0\1": "UTF-32BE",
    b"\1\0\1\0": "UTF-16LE", b"\0\1\0\1": "UTF-16BE",
}  # fmt: skip
"""Which of the first bytes are 0 if it does not, as 0 and 1."""
OTHER = (".txt", ".arrow", ".feather", ".zip", ".xlsx")
"""Endings of files that people take for a data set."""
MAGIC = {
    b"PK\3\4": (".zip", "a ZIP archive"),
    b"version https://git-lfs": (".lfs", "a pointer of Git LFS"),
    b"\xff\xff\xff\xff": (".arrow", "an Arrow stream"),
    b"ARROW1": (".feather", "an Arrow file"),
    b"<": (".html", "HTML or XML"),
}
TO_PARQUET = (
    "python3 -c 'import sys, pyarrow as a, pyarrow.parquet as p; "
    "p.write_table(a.ipc.{open}(a.memory_map(sys.argv[1])).read_all(), sys.argv[2])' "
    "{{file}} {{parquet}}"
)
WAYS_OUT = {
    ".txt": "python3 -c 'import json, sys; "
    '[print(json.dumps({{"text": t}})) for t in sys.stdin]\' < {file} > {jsonl}',
    ".arrow": TO_PARQUET.format(open="open_stream"),
    ".feather": TO_PARQUET.format(open="open_file"),
    ".zip": "python3 -m zipfile -e {file} {folder}",
    ".tar": "tar -xf {file} -C {parent}",
    ".lfs": "git -C {parent} lfs pull",
    ".xlsx": "save its sheet as CSV, in UTF-8",
    ".html": "download the file itself: this is a page about it",
}


def refuse_other(path: Path, *, key: str, is_table: bool) -> None:
    """Refuse a file that is something else than JSON, or than a table of text."""
    with streams.opened(path) as stream:
        start = stream.bytes.read(START)
    if name := encoding(start):
        hint = None if stream.compressed else to_utf8(path, name)
        raise ConfigError(f"{key}: expected UTF-8 text in {path}, found {name}", hint=hint)
    text = start.removeprefix(streams.BOM).lstrip()
    ending, what = _told(text, is_table=is_table)
    if tar_members.is_archive(start):
        if tar_members.is_of_samples(start):
            return
        ending, what = ".tar", "a tar archive of other files than KEY.json or KEY.txt"
    if ending:
        wanted = "CSV or TSV" if is_table else "JSON lines or a JSON array"
        is_sheet = ending == ".zip" and path.suffix.lower() == ".xlsx"
        is_hidden = stream.compressed and ending != ".tar"  # tar decompresses what it reads
        hint = None if is_hidden else way_out(path, ".xlsx" if is_sheet else ending)
        raise ConfigError(f"{key}: expected {wanted} in {path}, found {what}", hint=hint)


def _told(text: bytes, *, is_table: bool) -> tuple[str, str]:
    """Return the ending and the name of what begins like this; nothing for what is wanted."""
    if is_table and text.startswith(b"<"):
        return "", ""
    for magic, found in MAGIC.items():
        if text.startswith(magic):
            return found
    if is_table or text[:1] in {b"", b"{", b"["} or text.startswith(b"PAR1"):
        return "", ""
    lines = text.splitlines()
    if any(line.lstrip().startswith(b"{") for line in lines):
        return "", ""  # its first lines are bad
    if b"\0" in text:
        return ".bin", "binary data"
    return ".txt", f"text: {lines[0][:40].decode(errors='replace')!r}"


def encoding(start: bytes) -> str | None:
    """Return the name of an encoding with characters of 2 or 4 bytes, if text begins in one."""
    for mark, name in BOMS.items():
        if start.startswith(mark):
            return name
    return ZEROS.get(bytes(byte > 0 for byte in start[:4]))


def to_utf8(path: Path, encoding: str) -> str:
    """Return the command that makes UTF-8 text of a file."""
    target = path.with_suffix(f".utf8{path.suffix}")
    return f"iconv -f {encoding} -t UTF-8 {_quoted(path)} > {_quoted(target)}"


def of_line(where: str, reason: str) -> str | None:
    """Return the command for a file with a line that is not UTF-8: most others are Windows-1252."""
    path = Path(where.rpartition(":")[0])
    is_text = path.suffix.lower() not in {".parquet", *streams.SUFFIXES}
    return to_utf8(path, "WINDOWS-1252") if reason.startswith(NO_UTF8) and is_text else None


def way_out(path: Path, ending: str) -> str | None:
    """Return what makes a data set of a file with such an ending, of a name of its own."""
    words = {
        "file": _quoted(path),
        "folder": _quoted(path.with_name(f"{path.stem}.files")),
        "parent": _quoted(path.parent),
        **{kind: _quoted(path.with_suffix(f".rows.{kind}")) for kind in ("jsonl", "parquet")},
    }
    way = WAYS_OUT.get(ending)
    return way.format(**words) if way else None


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
