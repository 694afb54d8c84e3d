"""Reads the lines of the kernel log that matter, from whichever source this user may read.

The sources in turn: /dev/kmsg, `dmesg` (in a container without that device), and the journal,
which members of `systemd-journal` and `adm` may read where the other two are restricted to root.
"""

from __future__ import annotations

import os

from clusterctl.wire import to_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Iterator, Optional, Sequence, Tuple

    Line = Tuple[float, bytes]

DEVICE = "/dev/kmsg"
DMESG = ("dmesg", "--raw", "--color=never")
JOURNAL = ("journalctl", "-k", "-b", "-q", "-o", "short-monotonic", "--no-pager")
RECORD = 8192
"""Bytes of a record at most: the kernel refuses to hand out a part of one."""
NEWEST = 500
"""Lines to send at most."""


def read_kernel_log(patterns: Sequence[str], write: Callable[[bytes], None]) -> None:
    """Send `{source, lines}`: each line that contains a pattern, with its seconds since boot.

    If this user may read no source, send `{error}`.
    """
    wanted = [pattern.encode() for pattern in patterns]
    sources = (("kmsg", _device), ("dmesg", _dmesg), ("journal", _journal))
    why = ""
    for source, lines in sources:
        try:
            found = [line for line in lines() if any(pattern in line[1] for pattern in wanted)]
        except OSError as error:
            why = why or "%s: %s" % (error.filename or source, error.strerror or error)
            continue
        texts = [(at, text.decode("utf-8", "replace")) for at, text in found[-NEWEST:]]
        return write(to_json({"source": source, "lines": texts}))
    return write(to_json({"error": why}))


def _device() -> Iterator[Line]:
    """Yield the records of /dev/kmsg: `priority,sequence,microseconds,flags;text`."""
    descriptor = os.open(DEVICE, os.O_RDONLY | os.O_NONBLOCK)
    records = []
    while True:
        try:
            records.append(os.read(descriptor, RECORD))
        except BlockingIOError:
            break  # that was the newest
        except BrokenPipeError:
            continue  # the oldest was overwritten: the next read continues after it
        if not records[-1]:
            break
    os.close(descriptor)
    for line in b"".join(records).splitlines():
        head, semicolon, text = line.partition(b";")
        fields = head.split(b",")
        # A record's further lines begin with a space, and are variables.
        if semicolon and len(fields) > 2 and fields[2].isdigit():  # noqa: PLR2004
            yield int(fields[2]) / 1e6, text


def _dmesg() -> Iterator[Line]:
    return _program(DMESG)


def _journal() -> Iterator[Line]:
    return _program(JOURNAL)


def _program(argv: Sequence[str]) -> Iterator[Line]:
    """Yield a program's lines, which look like `<6>[   12.345678] text`."""
    import subprocess  # noqa: PLC0415  (start-up counts, and this is rarely needed)

    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    if done.returncode or not done.stdout:
        words = done.stderr.decode("utf-8", "replace").strip() or "it printed nothing"
        raise PermissionError("%s: %s" % (argv[0], words))
    for line in done.stdout.splitlines():
        parsed = _parsed(line)
        if parsed is not None:
            yield parsed


def _parsed(line: bytes) -> Optional[Line]:
    head, bracket, text = line.partition(b"] ")
    try:
        return (float(head.partition(b"[")[2]), text) if bracket else None
    except ValueError:
        return None
