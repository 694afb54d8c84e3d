"""The command line's grammar: the verbs, their parser, help and shell completion."""

from __future__ import annotations

import argparse
import functools
import importlib
import itertools
import re
import sys
from collections.abc import Collection, Sequence
from typing import Any, NoReturn

from clusterctl import __version__

VERBS: dict[str, str] = {
    "init": "look at hosts and write a hosts.yaml of them",
    "check": "find over SSH what would break the run",
    "setup": "make the same Python environment on every node",
    "exec": "run a command on every node",
    "sync": "mirror the current folder to every node",
    "push": "bring models and data to every node",
    "launch": "check, sync and start the job on every node, and follow it",
    "resume": "launch the job again from a verified checkpoint",
    "status": "show what a run is doing, or why it ended",
    "logs": "show the merged logs of a run",
    "stop": "stop a run, and verify that nothing of it is left",
    "runs": "list the runs of a cluster",
    "export": "write the inventory's hosts for DeepSpeed, MPI, Ansible, SSH or accelerate",
    "forget": "remove the recorded host key of a reinstalled host",
    "sandbox": "a cluster of real sshd hosts on this machine",
}
"""Each verb is a module of this package with `add_arguments(parser)` and `run(args) -> int`."""

EXIT_USAGE = 2

_WRONG_WORD = re.compile(r"(?:arguments: |(?:VERB|ACTION): invalid choice: ')([^\s'=]+)")
"""The word that argparse's message is about."""


class Parser(argparse.ArgumentParser):
    """A parser whose help is coloured on a terminal and whose errors name the next command."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401  (argparse's own, and many)
        super().__init__(**{"formatter_class": _formatter, "allow_abbrev": False, **options})

    def error(self, message: str) -> NoReturn:
        """Say what is wrong with the command line, and end."""
        self.print_usage(sys.stderr)
        sys.stderr.write(f"error: {message}\nhint: {self._next(message)}\n")
        sys.exit(EXIT_USAGE)

    def parse_known_args(  # type: ignore[override]  # argparse's overloads
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse; a verb that is left with words says so itself, as it knows its own flags."""
        found, rest = super().parse_known_args(args, namespace)
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        return found, rest

    def _next(self, message: str) -> str:
        """Return what was probably meant, else where to read."""
        import difflib  # noqa: PLC0415  (only where a word is wrong)

        word = _WRONG_WORD.search(message)
        below = [
            action.choices or () for action in self._actions if action.nargs == argparse.PARSER
        ]
        known = [*self._option_string_actions, *itertools.chain(*filter(None, below))]
        near = difflib.get_close_matches(word[1], known, n=1, cutoff=0.75) if word else []
        return f"did you mean {near[0]}?" if near else f"{self.prog} --help"


class _PrintCompletion(argparse.Action):
    """Prints a completion script, which knows all verbs, and ends."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        _namespace: object,
        shell: object,
        _option: object = None,
    ) -> None:
        assert isinstance(shell, str)
        import shtab  # noqa: PLC0415  (a tenth of a second, for this one flag)

        sys.stdout.write(shtab.complete(build_parser(VERBS), shell) + "\n")
        parser.exit()


def build_parser(verbs: Collection[str]) -> argparse.ArgumentParser:
    """Build the parser with the arguments of these verbs; their modules alone are imported.

    The other verbs are known by name and summary.
    """
    parser = Parser(
        prog="clusterctl",
        description="From a handful of GPU machines and SSH to a running multi-node training.",
    )
    parser.add_argument("--version", action="version", version=f"clusterctl {__version__}")
    parser.add_argument("-v", "--verbose", action="count", default=0, help="print more on stderr")
    parser.add_argument(
        "--print-completion",
        action=_PrintCompletion,
        choices=("bash", "zsh", "tcsh"),
        help="print a completion script for a shell",
    )
    # Without `prog` argparse writes a usage for it, for which all of rich is imported.
    children = parser.add_subparsers(
        dest="verb", metavar="VERB", parser_class=Parser, prog=parser.prog
    )
    for name, summary in VERBS.items():
        child = children.add_parser(
            name, help=summary, description=f"{summary[0].upper()}{summary[1:]}."
        )
        if name in verbs:
            importlib.import_module(f"clusterctl.cli.{name}").add_arguments(child)
    return parser


def _formatter(prog: str) -> argparse.HelpFormatter:
    """Return a formatter of help texts; argparse asks for one with every argument."""
    return _formatter_class()(prog)


@functools.cache
def _formatter_class() -> type[argparse.HelpFormatter]:
    """Return the class of formatters, made once."""
    from rich_argparse import RawDescriptionRichHelpFormatter  # noqa: PLC0415

    class Formatter(RawDescriptionRichHelpFormatter):
        # Brackets in our texts are host ranges, not markup.
        text_markup = False
        help_markup = False

    return Formatter
