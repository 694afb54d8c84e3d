"""How help is formatted: with colors on a terminal, by rich, which takes long to import."""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections.abc import Iterable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def formatter(prog: str) -> argparse.HelpFormatter:
    """Return a formatter of help texts; argparse asks for one with every argument."""
    return (_colored() if sys.stdout.isatty() else _Plain)(prog)


class _Plain(argparse.RawDescriptionHelpFormatter):
    """The layout of rich-argparse."""

    def __init__(self, prog: str) -> None:
        """Take the width as `shutil` does where there is no terminal; its import takes long."""
        columns = os.environ.get("COLUMNS", "")
        super().__init__(prog, width=((int(columns) if columns.isdecimal() else 0) or 80) - 2)

    def start_section(self, heading: str | None) -> None:
        """Begin a section: `Options`."""
        super().start_section(heading and heading.title())

    def add_usage(
        self,
        usage: str | None,
        actions: Iterable[argparse.Action],
        groups: Iterable[Any],
        prefix: str | None = None,
    ) -> None:
        """Add the usage."""
        super().add_usage(usage, actions, groups, "Usage: " if prefix is None else prefix)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        """Return `-i, --inventory FILE`, as Python 3.13 does."""
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        value = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(action.option_strings)} {value}"


@functools.cache
def _colored() -> type[argparse.HelpFormatter]:
    """Return the class of formatters for a terminal, made once."""
    from rich_argparse import RawDescriptionRichHelpFormatter  # noqa: PLC0415

    class Formatter(RawDescriptionRichHelpFormatter):
        # Brackets in our texts are host ranges, not markup.
        text_markup = False
        help_markup = False

    return Formatter
