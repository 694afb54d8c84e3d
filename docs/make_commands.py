"""Writes docs/reference/commands.md from the parser itself: `python docs/make_commands.py`."""
# ruff: noqa: INP001  (a script, not a module of a package)

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

from clusterctl.cli.shared.parser import build_parser
from clusterctl.cli.shared.verbs import VERBS

PAGE = Path(__file__).parent / "reference" / "commands.md"

HEAD = """\
# Commands

Every command with all its options, as `--help` prints them. For what to type when, start with
[the how-tos](../README.md#how-to).

Every command has its own `--help` with examples. `-v` and `-q` work before or after the command.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | a problem was found |
| 2 | the command line or the inventory is wrong |
| 3 | unknown: a node did not answer |

`launch` and `resume` exit with the job's own code. They exit with 125 if clusterctl ended the run,
and with 130 if you stopped following. [Exit codes](exit-codes.md) has the details.
"""


def render() -> str:
    """Return the page."""
    # Help is wrapped for the width of the terminal, and colored on one.
    os.environ.update(COLUMNS="80", NO_COLOR="1")
    parser = build_parser(VERBS)
    blocks = [_block("clusterctl", parser)]
    for verb, child in _children(parser):
        blocks.append(f"## {verb}\n\n" + _block(f"clusterctl {verb}", child))
        blocks += [_block(f"clusterctl {verb} {name}", action) for name, action in _children(child)]
    return "\n".join([HEAD, *blocks])


def _block(command: str, parser: argparse.ArgumentParser) -> str:
    lines = (line.rstrip() for line in parser.format_help().splitlines())
    return f"```console\n$ {command} --help\n" + "\n".join(lines) + "\n```\n"


def _children(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:  # noqa: SLF001  (argparse has no other way to its verbs)
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            yield from action.choices.items()


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
