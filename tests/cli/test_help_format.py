"""Help has one layout, with colors and without."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from clusterctl.cli.shared import help_format


def help_of(formatter: Any) -> str:
    parser = argparse.ArgumentParser(
        prog="tool", description="Does it.", formatter_class=formatter, epilog="Examples:\n  tool 1"
    )
    parser.add_argument("paths", nargs="*", metavar="PATH", help="such as gpu[01-04]")
    parser.add_argument("-i", "--inventory", metavar="FILE", help="the inventory " * 9)
    parser.add_argument("-v", "--verbose", action="store_true", help="print more")
    parser.add_argument("--to", choices=("mpi", "ssh"), help="the form")
    return parser.format_help()


def test_help_reads_the_same_with_and_without_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    plain = help_of(help_format._Plain)
    assert plain == help_of(help_format._colored())
    assert "Usage: tool" in plain
    assert "-i, --inventory FILE" in plain
