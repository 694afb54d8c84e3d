"""A version fits a requirement as pip would judge it, or it is not judged."""

from __future__ import annotations

import pytest

from clusterctl.checks.software.packages import fits


@pytest.mark.parametrize(
    ("version", "specifiers", "fit"),
    [
        ("2.13.0+cpu", ">=2.4", True),
        ("2.3.1", ">=2.4", False),
        ("2.4", ">=2.4.0", True),
        ("2.10", ">2.9,<3", True),
        ("3.0", ">=2.4,<3", False),
        ("2.4.0", ">2.4", False),
        ("2.4.1", "==2.4.*", True),
        ("2.5", "==2.4.*", False),
        ("2.4", "==2.4.0", True),
        ("2.4.1", "!=2.4.1", False),
        ("4.57.3", "~=4.57.0", True),
        ("4.58.0", "~=4.57.0", False),
        ("4.58", "~=4.57", True),
        ("5.0", "~=4.57", False),
        ("2.4.0+cu128", "==2.4.0", True),
        ("2.4.0+cpu", "==2.4.0+cu128", False),
        ("2.4.0rc1", ">=2.4", True),
        ("1!1.0", "<1", True),
        ("anything", ">=2", True),
        ("24", "==24.0.*", True),
        ("2", "~=2.0.0", True),
        ("2.0", "!2", True),
        ("2.0", "", True),
    ],
)
def test_a_version_fits(version: str, specifiers: str, *, fit: bool) -> None:
    assert fits(version, specifiers) == fit
