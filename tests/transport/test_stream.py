"""What a child of ours may do to its pipes."""

from __future__ import annotations

import sys

from clusterctl.transport.stream import ERRORS_LIMIT, ProcessStream

PRINTS_WITHOUT_MEASURE = """
import os
os.write(2, b"the beginning")
for _ in range(200):
    os.write(2, b"x" * 10_000)
os.write(2, b"the reason")
"""


def test_of_what_a_process_writes_to_stderr_the_ends_are_kept() -> None:
    stream = ProcessStream([sys.executable, "-I", "-S", "-c", PRINTS_WITHOUT_MEASURE])
    try:
        assert stream.receive(60.0) == b""
        errors = stream.ending().errors
    finally:
        stream.close()
    assert len(errors) == ERRORS_LIMIT
    assert errors.startswith(b"the beginning")
    assert errors.endswith(b"the reason")
