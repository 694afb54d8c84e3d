"""Splits a shell script into words and operators; quotes and substitutions stay in the words."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

_BLANK = re.compile(r"(?:[ \t\r]|\\\r?\n|#[^\n]*)+")
"""With comments: `#` begins one at the beginning of a word only."""
_TEST_END = re.compile(r"\s\]\](?=[\s;&|)]|$)")
_SAME = {"|&": "|", ";&": ";;", ";;&": ";;"}
_PLAIN = re.compile(r"[^\s'\"\\$`()<>|&;]+")
_REDIRECTION = re.compile(r"(?:\d*(?:<<<|<<-?|>>|>\||[<>]&|<>|[<>])|&>>?)")
_OPERATOR = re.compile(r"&&|\|\||;;&|;;|;&|\|&|\(\s*\)|[;&|()\n]")
_VARIABLE = re.compile(r"\$(?:[A-Za-z_]\w*|[\d@*#?$!-])")


@dataclass(frozen=True, slots=True)
class Token:
    """A word, or an operator such as `&&`; the end of a line is one too."""

    kind: Literal["word", "operator"]
    text: str
    line: int


def tokens(text: str) -> Iterator[Token]:
    """Yield the words and operators of a script; redirections and here-documents are left out."""
    at, line, counted, redirected, documents = 0, 1, 0, False, list[tuple[str, bool]]()
    while at < len(text):
        line += text.count("\n", counted, at)
        counted = at
        if blank := _BLANK.match(text, at):
            at = blank.end()
        elif text.startswith("((", at):
            at = _parentheses_end(text, at + 1)
            yield Token("word", "((", line)
        elif (match := _REDIRECTION.match(text, at)) and not text.startswith(("<(", ">("), at):
            redirected, at = True, match.end()
            if match[0].lstrip("0123456789") in {"<<", "<<-"}:
                start = (_BLANK.match(text, at) or match).end()
                word = re.sub(r"[\"'\\]", "", text[start : _word_end(text, start)])
                documents.append((word, match[0][-1] == "-"))
        elif match := _OPERATOR.match(text, at):
            redirected, at = False, match.end()
            operator = "()" if match[0][-1] == ")" != match[0] else match[0]
            yield Token("operator", _SAME.get(operator, operator), line)
            if operator == "\n":
                at, documents = _after_documents(text, at, documents), []
        else:
            end = _word_end(text, at)
            if not redirected:
                yield Token("word", text[at:end].replace("\\\n", ""), line)
            at, redirected = _after_test(text, at, end), False


def _after_test(text: str, at: int, end: int) -> int:
    """Return where a word ends, and `[[ ... ]]` as a whole."""
    if text[at:end] != "[[":
        return end
    found = _TEST_END.search(text, end)
    return found.end() if found else len(text)


def _after_documents(text: str, at: int, documents: list[tuple[str, bool]]) -> int:
    """Return where the lines end that belong to here-documents."""
    for end_word, tabs in documents:
        while at < len(text):
            end = text.find("\n", at)
            end = len(text) if end < 0 else end
            written = text[at:end].rstrip("\r")
            at = end + 1
            if (written.lstrip("\t") if tabs else written) == end_word:
                break
    return min(at, len(text))


def _word_end(text: str, at: int) -> int:
    """Return where a word ends."""
    start = at
    while at < len(text):
        char = text[at]
        if plain := _PLAIN.match(text, at):
            at = plain.end()
        elif char == "\\":
            at += 2
        elif char in "'\"$`":
            at = substitution_end(text, at)
        elif char == "(" and at > start and text[at - 1] == "=":
            at = _parentheses_end(text, at + 1)  # an array
        elif char in "<>" and text.startswith("(", at + 1) and at == start:
            at = _parentheses_end(text, at + 2)
        else:
            break
    return min(max(at, start + 1), len(text))


def substitution_end(text: str, at: int) -> int:
    """Return where quotes, a variable or a substitution end that begin here."""
    char = text[at]
    if char == '"':
        return _until(text, at + 1, '"')
    if char in "'`":
        end = text.find(char, at + 1)
        return len(text) if end < 0 else end + 1
    if text.startswith("$(", at):
        return _parentheses_end(text, at + 2)
    if text.startswith("${", at):
        return _until(text, at + 2, "}")
    variable = _VARIABLE.match(text, at)
    return variable.end() if variable else at + 1


def _parentheses_end(text: str, at: int) -> int:
    return _until(text, at, ")")


def _until(text: str, at: int, closing: str) -> int:
    """Return where this closing character ends; quotes and substitutions in between are skipped."""
    while at < len(text):
        char = text[at]
        if char == closing:
            return at + 1
        if char == "\\":
            at += 2
        elif char in '$`"' or (char == "'" and closing == ")"):
            at = substitution_end(text, at)
        elif char == "(" and closing == ")":
            at = _parentheses_end(text, at + 1)
        elif char == "#" and closing == ")" and text[at - 1] in " \t\n":
            end = text.find("\n", at)
            at = len(text) if end < 0 else end
        else:
            at += 1
    return len(text)
