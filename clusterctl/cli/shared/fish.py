"""Shell completion for fish, which shtab does not write."""

import argparse
from collections.abc import Iterator


def completion(parser: argparse.ArgumentParser) -> str:
    """Return the script that completes a parser's verbs and options."""
    lines = [f"complete -c {parser.prog} -f"]
    lines += _options(parser, parser.prog, "__fish_use_subcommand")
    for verbs in parser._actions:  # noqa: SLF001  (argparse has no public list, as shtab knows)
        if not isinstance(verbs, argparse._SubParsersAction):  # noqa: SLF001
            continue
        summaries = {choice.dest: choice.help or "" for choice in verbs._choices_actions}  # noqa: SLF001
        for name, child in verbs.choices.items():
            words = f"-n __fish_use_subcommand -a {name} -d {_quoted(summaries[name])}"
            lines.append(f"complete -c {parser.prog} {words}")
            lines += _options(child, parser.prog, f"__fish_seen_subcommand_from {name}")
    return "\n".join(lines) + "\n"


def _options(parser: argparse.ArgumentParser, prog: str, condition: str) -> Iterator[str]:
    for action in parser._actions:  # noqa: SLF001
        if not action.option_strings or action.help == argparse.SUPPRESS:
            continue
        words = [f"complete -c {prog} -n {_quoted(condition)}"]
        words += [
            f"-l {option[2:]}" if option.startswith("--") else f"-s {option[1:]}"
            for option in action.option_strings
        ]
        if action.choices:
            words.append(f"-x -a {_quoted(' '.join(map(str, action.choices)))}")
        elif action.nargs != 0:
            words.append("-r -F")  # its value may be a file
        yield " ".join([*words, f"-d {_quoted(action.help or '')}"])


def _quoted(text: str) -> str:
    """Quote a word for fish, where only these two characters are special."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
