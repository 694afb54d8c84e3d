"""The command that was typed, with one thing changed: what a hint proposes to type next."""

import re
import shlex
from collections.abc import Sequence

_FLAG = re.compile(
    r"(?P<before>(?:[^:]+: )?)(?P<flag>--?[a-z][a-z-]*)(?: (?P<value>'[^']*'|[^\s'\"]+))?"
)
_COMMAND = re.compile(
    r"(?P<before>(?:[^:]+: )?)(?:(?P<flag>--[a-z-]+) (?P<value>\S+) )?-- (?P<command>\S.*)"
)
_LAUNCH = re.compile(
    r"(?P<before>[^`]*?)clusterctl launch (?P<flags>(?:\S.*? )?)-- (?P<command>\S.*)"
)
_LAUNCHER = {"--launcher", "--launcher-args"}
"""Flags of launch that a hint with another program replaces, also if it has none of them."""
_SECOND_NAME = {"--node": "--nodes", "--inventory": "-i"}
"""Second name of a flag → the one that hints use."""


def complete_hint(hint: str, words: Sequence[str]) -> str:
    """Return a hint that is only a flag as the whole command: `--nodes 3` as typed with it.

    Args:
        hint: a line of `--flag value`, of `-- COMMAND` (also after such a flag), or of a launch of
            another program, which keeps the options that were typed, alone or as `why: …`; any
            other stays.
        words: what was typed, without the program's name.
    """
    ours = words[: words.index("--")] if "--" in words else words
    if ran := _COMMAND.fullmatch(hint):
        ours = with_flag(ours, ran["flag"], [ran["value"]]) if ran["flag"] else ours
        return f"{ran['before']}{shlex.join(('clusterctl', *ours))} -- {ran['command']}"
    if words[:1] == ["launch"] and (launch := _LAUNCH.fullmatch(hint)):
        ours = _launch(ours[1:], shlex.split(launch["flags"]))
        return f"{launch['before']}{shlex.join(('clusterctl', *ours))} -- {launch['command']}"
    found = _FLAG.fullmatch(hint)
    if found is None:
        return hint
    value = shlex.split(found["value"]) if found["value"] else []
    command = shlex.join(("clusterctl", *with_flag(words, found["flag"], value)))
    return f"{found['before']}{command}"


def _launch(typed: Sequence[str], flags: Sequence[str]) -> list[str]:
    """Return the typed options of a launch with those of a hint; the hint's launcher is taken."""
    new = _options(flags)
    replaced = _LAUNCHER | {_name(option) for option in new} - {"--env"}
    kept = [
        option for option in _options(typed) if _name(option) not in replaced and option not in new
    ]
    return ["launch", *(word for option in (*kept, *new) for word in option)]


def _options(words: Sequence[str]) -> list[list[str]]:
    """Return the words of each option: the flag, and its value if that is a word of its own."""
    found: list[list[str]] = []
    for word in words:
        if re.match(r"-[^\s=]*(=|$)", word) or not found:
            found.append([word])
        else:
            found[-1].append(word)
    return found


def _name(option: Sequence[str]) -> str:
    name = option[0].partition("=")[0]
    return _SECOND_NAME.get(name, name)


def with_flag(words: Sequence[str], flag: str, value: Sequence[str]) -> list[str]:
    """Return the words with the flag in place of the one that was given, else at its end."""
    at = words.index("--") if "--" in words else len(words)
    ours, rest = list(words[:at]), list(words[at:])
    for place, word in enumerate(ours):
        name, equals, _ = word.partition("=")
        if _SECOND_NAME.get(name, name) == _SECOND_NAME.get(flag, flag):
            after = place + 1 if equals or not value else place + 2
            return [*ours[:place], name, *value, *ours[after:], *rest]
    return [*ours, flag, *value, *rest]


def as_typed(argv: list[str]) -> list[str]:
    """Return the words of a command line without the first flag of one inside of a batch job."""
    return [*argv[:1], *argv[3:]] if argv[1:2] == ["--run-id"] else argv


def without_flag(words: Sequence[str], flag: str) -> list[str]:
    """Return the words without a flag that has a value."""
    end = words.index("--") if "--" in words else len(words)
    return [
        word
        for place, word in enumerate(words)
        if place >= end
        or not (word == flag or word.startswith(f"{flag}=") or words[place - 1 : place] == [flag])
    ]


def with_run(words: Sequence[str], word: str | None, run: str) -> list[str]:
    """Return the words with the id of the run that they mean, perhaps by no word at all."""
    if word:
        return with_word(words, word, run)
    at = words.index("--") if "--" in words else len(words)
    return [*words[:at], run, *words[at:]]


def with_word(words: Sequence[str], wrong: str, right: str) -> list[str]:
    """Return the words with a word, or a flag with its value behind `=`, written right."""
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if word == wrong or (equals and name == wrong):
            new = right if word == wrong else f"{right}={value}"
            return [*words[:place], new, *words[place + 1 :]]
    return list(words)
