"""The command: picks the verb, runs it, and turns whatever happens into an exit code."""

import argparse
import gc
import shlex
import sys
from collections.abc import Sequence

from clusterctl.cli.shared.hint_commands import as_typed, complete_hint, with_word
from clusterctl.cli.shared.output import cannot_write, give_up, harden_streams
from clusterctl.cli.shared.parser import EXIT_USAGE, build_parser
from clusterctl.cli.shared.signals import termination_as_interrupt
from clusterctl.cli.shared.verbs import VERBS, WITH_COMMAND, module_of
from clusterctl.errors import ClusterError, Interrupted, SeveralRuns, UsageError
from clusterctl.safe_text import strip_controls

GARBAGE_THRESHOLD = 50_000
"""New objects until Python looks for cycles; by default it does so all the time while importing."""
EXIT_BUG = 70
EXIT_INTERRUPTED = 130


def _verb_of(argv: Sequence[str]) -> str | None:
    for word in argv:
        if not word.startswith("-"):
            return word if word in VERBS else None
    return None


def split_command(argv: list[str]) -> tuple[list[str], list[str]]:
    """Split at the first `--`: what comes after is the job's, to the letter."""
    if "--" not in argv:
        return argv, []
    at = argv.index("--")
    return argv[:at], argv[at + 1 :]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb.

    Returns:
        The exit code: the verb's own, 2 for usage, 70 for a bug, 130 when interrupted, also by
        SIGTERM or SIGHUP: 143 and 129 would mean a rank that a signal ended.
    """
    harden_streams()
    gc.set_threshold(GARBAGE_THRESHOLD)
    try:
        with termination_as_interrupt():
            return _run(list(sys.argv[1:] if argv is None else argv))
    except KeyboardInterrupt as interrupt:
        sys.stderr.write(f"\ninterrupted{f' by {interrupt}' if str(interrupt) else ''}\n")
        return EXIT_INTERRUPTED
    except OSError as problem:
        if not cannot_write(problem):
            raise
        return give_up(problem)


def _run(argv: list[str]) -> int:
    """Parse the command line and run its verb."""
    verb = _verb_of(argv)
    words = as_typed(argv)
    argv, command = split_command(argv) if verb in WITH_COMMAND else (argv, [])
    parser = build_parser([verb] if verb else [], command)
    try:
        args = parser.parse_args(argv, argparse.Namespace(command=command, words=words))
    except SystemExit as exit_request:
        sys.stdout.flush()
        return exit_request.code if isinstance(exit_request.code, int) else EXIT_USAGE
    if args.verb is None:
        parser.print_help()
        return EXIT_USAGE
    from clusterctl.cli.shared.log_lines import log_to_stderr  # noqa: PLC0415  (--help needs it not)

    log_to_stderr(args.verbose, quiet=args.quiet)
    return _do(args)


def _do(args: argparse.Namespace) -> int:
    """Run the verb; the only place that catches everything."""
    try:
        code = module_of(args.verb).run(args)
        sys.stdout.flush()
    except ClusterError as error:
        if isinstance(error, SeveralRuns):
            typed = (with_word(args.words, error.word, run) for run in error.choices)
            error.hint = "\n".join(shlex.join(("clusterctl", *words)) for words in typed)
        elif isinstance(error, UsageError) and not error.hint:
            error.hint = f"clusterctl {args.verb} --help"
        say(error, args.words)
        return error.exit_code
    except Exception as problem:
        if cannot_write(problem):
            return give_up(problem)
        import logging  # noqa: PLC0415  (--help needs it not)

        logging.getLogger("clusterctl").exception(
            "this is a bug in clusterctl; please report it with the lines below"
        )
        return EXIT_BUG
    assert isinstance(code, int)
    return code


def say(error: ClusterError, words: Sequence[str] = ()) -> None:
    """Print a known error and its hints to stderr, safe for the terminal; a hint is a line.

    Args:
        error: what happened.
        words: what was typed: a hint that is only a flag becomes the whole command.
    """
    word = "" if isinstance(error, Interrupted) else "error: "  # a wish is no error
    for line in str(error).splitlines():
        sys.stderr.write(f"{word}{strip_controls(line)}\n")
    for line in (error.hint or "").splitlines():
        sys.stderr.write(f"hint: {strip_controls(complete_hint(line, words))}\n")
