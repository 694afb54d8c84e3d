"""The rule by which the supervisor and the first cause take a rank's end for a launcher's doing."""

from __future__ import annotations

import signal

import pytest

from clusterctl.node.launcher_reaction import is_reaction


@pytest.mark.parametrize(
    ("killed_by", "unknown", "expected"),
    [
        (signal.SIGTERM, [99.5], True),
        (signal.SIGTERM, [90.0, 99.0], True),
        (signal.SIGTERM, [98.9], False),
        (signal.SIGTERM, [100.1], False),
        (signal.SIGTERM, [], False),
        (signal.SIGKILL, [99.5], False),
        (None, [99.5], False),
    ],
)
def test_only_a_term_soon_after_an_unknown_end_is_a_reaction(
    killed_by: int | None, unknown: list[float], *, expected: bool
) -> None:
    assert is_reaction(killed_by, 100.0, unknown) is expected
