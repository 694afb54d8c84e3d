"""What a test must not be skipped for, although this machine lacks it."""

from __future__ import annotations

import os

REQUIRED = "CLUSTERCTL_TESTS_REQUIRE"
"""Environment variable: `netns`, `gpu`, or both with a comma."""


def is_required(name: str) -> bool:
    """Tell whether a test must fail, not be skipped, for want of this."""
    return name in os.environ.get(REQUIRED, "").split(",")
