"""The command line's grammar: the verbs, their parser, help and shell completion."""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import shlex
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence

from clusterctl import __version__
from clusterctl.cli.shared.help_format import formatter
from clusterctl.cli.shared.hint_commands import with_word
from clusterctl.cli.shared.verbs import EXAMPLES, VERBS, WITH_COMMAND, module_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

EXIT_USAGE = 2
LAUNCHER_ARGS = "--launcher-args"

_CHOICE = re.compile(r"argument (.+?): invalid choice: '(.*?)' \(choose from (.*)\)", re.DOTALL)
_ONE_VALUE = re.compile(r"argument (.+?): expected one argument")
_MISSING = "the following arguments are required: "
_VERB = "VERB"
_BEGUN = 4
"""Letters, with the dashes, by which one word that begins so is meant."""


class Parser(argparse.ArgumentParser):
    """A parser whose help is colored on a terminal and whose errors name the next command."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401  (argparse's own, and many)
        super().__init__(**{"formatter_class": formatter, "allow_abbrev": False, **options})
        self.words: Sequence[str] = ()
        """What stood after the verb."""

    takes_command = False
    """The verb takes a command after `--`."""
    command: Sequence[str] = ()
    """The words after `--`, which are not parsed here."""
    example = ""
    """A command that is complete."""

    def _print_message(self, message: str, file: Any = None) -> None:  # noqa: ANN401
        """Write help or a version; argparse itself would hide that a disk is full."""
        (file or sys.stderr).write(message)

    def error(self, message: str) -> NoReturn:
        """Say what is wrong with the command line, and what to type instead; end."""
        self._end(*self._explained(message), about="")

    def parse_known_args(  # type: ignore[override]  # argparse's overloads
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse; a verb that is left with words reports them itself, as it knows its own flags."""
        self.words = tuple(args or ())
        self._refuse_help_of_a_command()
        found, rest = super().parse_known_args(self._with_values(), namespace)
        if rest:
            self._refuse(rest)
        return found, rest

    def _with_values(self) -> list[str]:
        """Return the words with the launcher's arguments in one with their flag.

        To argparse, a word that begins with a dash is never a value. A flag of clusterctl is not.
        """
        found: list[str] = []
        pending = False
        for place, word in enumerate(self.words):
            if not pending:
                found.append(word)
                pending = word == LAUNCHER_ARGS in self._option_string_actions
                continue
            pending = False
            if word.partition("=")[0] in self._option_string_actions:
                joined = f"{LAUNCHER_ARGS}={word}"
                typed = self._typed((*self.words[: place - 1], joined, *self.words[place + 1 :]))
                what = f"{LAUNCHER_ARGS}: expected the launcher's arguments, found {word}"
                self._end(f"{what}, a flag of {self.prog}", f"if it is the launcher's: {typed}")
            found[-1] += f"={word}"
        return found

    def _refuse(self, rest: Sequence[str]) -> NoReturn:
        """End because of words that mean nothing here."""
        wrong, *_ = rest
        at = self.words.index(wrong) if wrong in self.words else 0
        listed = at > 1 and self.words[at - 2] in _NODE_LISTS and self.words[at - 1][:1].isalpha()
        if listed and wrong[:1].isalpha() and (self.command or not self.takes_command):
            flag = self.words[at - 2]
            joined = ",".join((self.words[at - 1], *rest))
            others = [word for word in self.words[at:] if word not in rest]
            what = f"{flag}: expected names with commas, found {wrong!r} after a space"
            self._end(what, self._typed([*self.words[: at - 1], joined, *others]))
        if self.command and not wrong.startswith("-") and self.prog.endswith(" exec"):
            what = f"expected nodes in --nodes, found {wrong!r} before the `--`"
            self._end(what, self._typed([*self._own_words(rest), "--nodes", ",".join(rest)]))
        if self.command and not wrong.startswith("-"):
            what = f"expected the program's own words after it, found {wrong!r} before the `--`"
            self.command = (*self.command, *rest)
            self._end(what, self._typed(self._own_words(rest)))
        if self.takes_command and not wrong.startswith("-"):
            what = f"expected `--` before the command, found {wrong!r} without it"
            # Such a word is a line for a shell, and `exec` starts none.
            is_line = self.prog.endswith(" exec") and len(rest) == 1 and set(wrong) & set(" ;|&<>$")
            line = ("sh", "-c") if is_line else ()
            self._end(what, self._typed([*self._own_words(rest), "--", *line, *rest]))
        if not wrong.startswith("-"):
            self._end(f"expected no further word, found {wrong!r}")
        flag = wrong.partition("=")[0]
        self._answer_foreign(rest)
        near = _nearest(flag, self._option_string_actions)
        typed = with_word(self.words, flag, near) if near else None
        if self.command and not near:  # it may be a flag of the command
            self.command = (*self.command, *rest)
            typed = self._own_words(rest)
        self._end(f"there is no flag {flag}", self._typed(typed) if typed else "")

    def _answer_foreign(self, rest: Sequence[str]) -> None:
        """End because of a flag of another launcher, with what to type instead."""
        from clusterctl.cli.shared.foreign_flags import translate  # noqa: PLC0415  (only for an error)

        known = self._option_string_actions.__contains__
        typed, unknown, answers = translate(self._own_words(rest), rest, known)
        if not answers:
            return
        self.command = (*self.command, *unknown)
        why = "; ".join(answer.why for answer in answers)
        hint = next((answer.hint for answer in answers if answer.hint), self._typed(typed))
        self._end(why, hint)

    def _refuse_help_of_a_command(self) -> None:
        """End if `-h` stands behind a command without `--`: it is a flag of that command."""
        if not self.takes_command or any(not a.option_strings for a in self._actions):
            return
        bare = (
            n for n, word in enumerate(self.words) if not (word[:1] == "-" or self._is_value(n))
        )
        command = self.words[next(bare, len(self.words)) :]
        if {"-h", "--help"} & set(command):
            self._refuse(command)

    def _own_words(self, rest: Sequence[str]) -> list[str]:
        """Return the words that are not the rest; the value of a flag may equal one of the rest."""
        ours, pending = [], list(rest)
        for place, word in enumerate(self.words):
            if pending and word == pending[0] and not self._is_value(place):
                del pending[0]
            else:
                ours.append(word)
        return ours

    def _is_value(self, place: int) -> bool:
        """Tell whether the flag before a word takes it as its value."""
        action = self._option_string_actions.get(self.words[place - 1]) if place else None
        return action is not None and action.nargs is None

    def _end(self, what: str, hint: str = "", *, about: str | None = None) -> NoReturn:
        """End with a message about this verb, and what to type instead."""
        where = f"{self.prog}: " if about is None else about
        sys.stderr.write(f"error: {where}{what}\nhint: {hint or f'{self.prog} --help'}\n")
        sys.exit(EXIT_USAGE)

    def _typed(self, words: Sequence[str]) -> str:
        """Return the whole command with these words after the verb."""
        behind = ("--", *self.command) if self.command else ()
        return f"{self.prog} {shlex.join((*words, *behind))}".rstrip()

    def _explained(self, message: str) -> tuple[str, str]:
        """Return argparse's message in the form of all others, and a hint or nothing."""
        if choice := _CHOICE.fullmatch(message):
            name, wrong = choice[1], choice[2]
            if name == _VERB and (foreign := self._foreign_verb(wrong)):
                return foreign
            known = [word.strip("'") for word in choice[3].split(", ")]
            near = _nearest(wrong, known)
            hint = self._typed(with_word(self.words, wrong, near)) if near else ""
            told = f"{name}: expected {', '.join(known)}; found {wrong!r}"
            # `--help` has the verbs, each with what it does.
            return (f"there is no verb {wrong!r}" if name == _VERB else told), hint
        if lacking := _ONE_VALUE.fullmatch(message):
            metavar = next(
                (a.metavar for a in self._actions if "/".join(a.option_strings) == lacking[1]), None
            )
            return f"{lacking[1]}: expected {metavar or 'a value'}, found none", ""
        if message.startswith(_MISSING):
            names = message.removeprefix(_MISSING)
            # The flag may be there, with a typo: argparse looks for what is missing first.
            flags = [word.partition("=")[0] for word in self.words if word.startswith("--")]
            for name in names.split(", "):
                if near := _nearest(name, flags):
                    typed = self._typed(with_word(self.words, near, name))
                    return f"{self.prog}: expected {name}, found {near}", typed
            example = shlex.split(self.example)
            # What is typed stays: another run than the one that it names could be resumed.
            more = example[example.index(names) :] if names in example else []
            hint = self._typed((*self.words, *more)) if more else self.example
            return f"{self.prog}: expected {names}, found none", hint
        return message.removeprefix("argument "), ""

    def _foreign_verb(self, wrong: str) -> tuple[str, str] | None:
        """Return the message and the hint for a verb of another tool; None: it is none."""
        from clusterctl.cli.shared.foreign_verbs import answer_to  # noqa: PLC0415  (only for an error)
        from clusterctl.plan.command.launcher_flags import start_of  # noqa: PLC0415  (the same)

        at = list(self.words).index(wrong)
        before, rest = self.words[:at], self.words[at + 1 :]
        program = start_of((wrong, *rest)) or re.fullmatch(r"python[\d.]*|bash|.+\.(py|sh)", wrong)
        found = answer_to("run" if program else wrong)
        if found is None:
            return None
        why, (verb, *flags) = found
        choices = [[verb, *flags], shlex.split(EXAMPLES.get(verb, ("",))[0])[1:]]
        if wrong == "help":
            choices = [[*rest[:1], "--help"], *choices]
        elif program:
            choices.insert(0, [*before, verb, "--", *self.words[at:]])
        elif rest and "--" not in flags:
            bare = [word for word in rest if not word.startswith("-")]
            choices[:0] = [
                [*before, verb, *flags, *rest],
                [*before, verb, "--", *rest],
                [*before, verb, *flags, *bare],
            ]
        return f"there is no verb {wrong}: {why}", self._typed(next(filter(_parses, choices)))


_NODE_LISTS = ("--nodes", "--exclude")
"""Flags of which the value may be a list."""


def _parses(words: Sequence[str]) -> bool:
    """Tell whether these words are a clusterctl command line."""
    verb = next((word for word in words if not word.startswith("-")), "")
    at = words.index("--") if "--" in words else len(words)
    if at < len(words) and verb not in WITH_COMMAND:
        return False
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        try:
            build_parser([verb]).parse_args(words[:at])
        except SystemExit as end:
            return not end.code
    return True


def _nearest(wrong: str, known: Iterable[str]) -> str | None:
    """Return what was probably meant."""
    import difflib  # noqa: PLC0415  (only where a word is wrong)

    known = tuple(known)
    begun = [each for each in known if each.startswith(wrong) and len(wrong) >= _BEGUN]
    begun = begun or [each for each in known if sorted(each) == sorted(wrong)]
    if len(begun) == 1:  # `--procs` for `--procs-per-node`, `tpo` for `top`
        return begun[0]
    cutoff = 0.81 if wrong.startswith("--") else 0.75  # the dashes are alike in all flags
    near = next(iter(difflib.get_close_matches(wrong, known, n=1, cutoff=cutoff)), None)
    # `--name` is another word than `--ifname`, not a typo of it.
    return None if near and wrong.endswith(near.lstrip("-")) else near


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


def build_parser(verbs: Collection[str], command: Sequence[str] = ()) -> argparse.ArgumentParser:
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
        dest="verb", metavar=_VERB, parser_class=Parser, prog=parser.prog
    )
    for name, summary in VERBS.items():
        child = children.add_parser(
            name, help=summary, description=f"{summary[0].upper()}{summary[1:]}."
        )
        if name in verbs:
            module_of(name).add_arguments(child)
            # Left out, they keep what stands before the verb.
            for each in (child, *_below(child)):
                _add_volume(each, default=argparse.SUPPRESS)
            examples = "".join(f"\n  {line}" for line in EXAMPLES[name])
            above = f"{child.epilog}\n\n" if child.epilog else ""
            child.epilog = f"{above}Examples:{examples}"
            child.takes_command = name in WITH_COMMAND
            child.command = command
            child.example = EXAMPLES[name][0]
    return parser


def _below(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield the parsers of a verb's own actions."""
    for action in parser._actions:  # noqa: SLF001  (argparse has no other way)
        if action.nargs == argparse.PARSER and isinstance(action.choices, dict):
            yield from action.choices.values()


def _add_volume(parser: argparse.ArgumentParser, *, default: object) -> None:
    """Add `-v` and `-q`."""
    verbose = "print more on stderr; again: still more"
    parser.add_argument("-v", "--verbose", action="count", default=default, help=verbose)
    quiet = "print only results, warnings and errors"
    parser.add_argument("-q", "--quiet", action="store_true", default=default, help=quiet)
