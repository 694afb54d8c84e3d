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
from clusterctl.cli import fish

VERBS: dict[str, str] = {
    "init": "look at hosts and write a hosts.yaml of them",
    "check": "find over SSH what would break the run",
    "setup": "make the same Python environment on every node",
    "exec": "run a command on every node",
    "sync": "mirror the current folder to every node",
    "push": "bring models and data to every node",
    "launch": "check, sync and start the job on every node, and follow it",
    "resume": "launch the job again from a verified checkpoint",
    "join": "let nodes join an elastic run while it runs",
    "status": "show what a run is doing, or why it ended",
    "logs": "show the merged logs of a run",
    "stop": "stop a run, and verify that nothing of it is left",
    "runs": "list the runs of a cluster",
    "export": "write the inventory's hosts for DeepSpeed, MPI, Ansible, SSH or accelerate",
    "forget": "remove the recorded host key of a reinstalled host",
    "sandbox": "a cluster of real sshd hosts on this machine",
}
"""Each verb is a module of this package with `add_arguments(parser)` and `run(args) -> int`."""
WITH_COMMAND = frozenset({"exec", "launch", "resume"})
"""Verbs that take a job's command after `--`."""

EXAMPLES: dict[str, tuple[str, ...]] = {
    "init": ("clusterctl init gpu1 gpu2", "clusterctl init 'ubuntu@gpu[01-04]' --accept-new"),
    "check": (
        "clusterctl check",
        "clusterctl check --nodes gpu1,gpu2 --only network",
        "clusterctl check --explain network.master-port",
    ),
    "setup": ("clusterctl setup", "clusterctl setup --requirements requirements.txt --offline"),
    "exec": ("clusterctl exec -- nvidia-smi -L", "clusterctl exec --nodes gpu1 -- df -h /data"),
    "sync": ("clusterctl sync", "clusterctl sync --nodes gpu1"),
    "push": ("clusterctl push", "clusterctl push /models/llama --from gpu1"),
    "launch": (
        "clusterctl launch -- train.py --lr 1e-4",
        "clusterctl launch --nodes 2 --env NCCL_DEBUG=INFO -- train.py",
        "clusterctl launch --dry-run -- -m train --config config.yaml",
    ),
    "resume": (
        "clusterctl resume --checkpoint latest",
        "clusterctl resume --checkpoint out/step-000040 --exclude gpu3",
    ),
    "join": (
        "clusterctl join --nodes gpu3",
        "clusterctl join lab-20261120-9f3c --nodes 'gpu[3-4]'",
    ),
    "status": ("clusterctl status", "clusterctl status --json"),
    "logs": ("clusterctl logs -f", "clusterctl logs --tail 50 --rank 0-3 --grep loss"),
    "stop": ("clusterctl stop", "clusterctl stop --all --grace 10"),
    "runs": ("clusterctl runs", "clusterctl runs --prune 5"),
    "export": (
        "clusterctl export --to deepspeed",
        "clusterctl export --to ansible --nodes gpu1,gpu2",
    ),
    "forget": ("clusterctl forget gpu3",),
    "sandbox": ("clusterctl sandbox up --nodes 4", "clusterctl sandbox demo"),
}
"""For the end of each verb's help."""

EXIT_USAGE = 2

_WRONG_WORD = re.compile(r"(?:arguments: |(?:VERB|ACTION): invalid choice: ')([^\s'=]+)")
"""The word that argparse's message is about."""


class Parser(argparse.ArgumentParser):
    """A parser whose help is coloured on a terminal and whose errors name the next command."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401  (argparse's own, and many)
        super().__init__(**{"formatter_class": _formatter, "allow_abbrev": False, **options})

    takes_command = False
    """The verb takes a command after `--`."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong with the command line, and end."""
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
        if word and self.takes_command and not word[1].startswith("-"):
            return f"{self.prog} -- {message.partition(': ')[2]}"
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
        if shell == "fish":
            sys.stdout.write(fish.completion(build_parser(VERBS)))
        else:
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
    _add_volume(parser, default=0)
    parser.add_argument(
        "--print-completion",
        action=_PrintCompletion,
        choices=("bash", "zsh", "fish", "tcsh"),
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
            # Left out, they keep what stands before the verb.
            _add_volume(child, default=argparse.SUPPRESS)
            examples = "".join(f"\n  {line}" for line in EXAMPLES[name])
            above = f"{child.epilog}\n\n" if child.epilog else ""
            child.epilog = f"{above}Examples:{examples}"
            child.takes_command = name in WITH_COMMAND
    return parser


def _add_volume(parser: argparse.ArgumentParser, *, default: object) -> None:
    """Add `-v` and `-q`."""
    verbose = "print more on stderr; again: still more"
    parser.add_argument("-v", "--verbose", action="count", default=default, help=verbose)
    quiet = "print only results, warnings and errors"
    parser.add_argument("-q", "--quiet", action="store_true", default=default, help=quiet)


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
