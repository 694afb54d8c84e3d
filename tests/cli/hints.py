"""Finds the commands of ours in what hints say."""

from __future__ import annotations

import re
from collections.abc import Iterator

COMMAND = re.compile(r"(?<![\w./-])clusterctl (?=[a-z-])")
WORD = re.compile(r"[ \t]*((?:'[^']*'|\"[^\"]*\"|[^\s'\"`]+)+)")
ENDS = (";", ",", ":", ")", ".", "…")
SENTENCE = frozenset({
    "and", "asks", "brings", "compares", "copies", "deletes", "ends", "find", "has", "if",
    "in", "instead", "is", "joins", "lists", "looks", "makes", "measures", "names", "on", "or",
    "prints", "reads", "says", "shows", "takes", "tells", "that", "then", "to", "tries", "which",
    "with", "writes",
})  # fmt: skip
"""Words that go on with the sentence behind a command."""
SUBJECT = frozenset({
    "and", "cannot", "checks", "chooses", "completely", "does", "ended", "gives", "has",
    "inventory", "is", "itself", "message", "needs", "of", "or", "passes", "reads", "sets",
    "starts", "stopped", "uses",
})  # fmt: skip
"""Words behind `clusterctl` where it is the subject of a sentence."""


def commands(text: str) -> Iterator[tuple[str, ...]]:
    """Yield the words of each command of ours in a text."""
    for found in COMMAND.finditer(text):
        words = []
        at = found.end()
        while match := WORD.match(text, at):
            word, at = match[1], match.end()
            if word in SENTENCE or word.startswith(("(", "&", "|", ">")):
                break
            quoted = word[-1] in "'\""
            words.append(word if quoted else word.rstrip("".join(ENDS)))
            if text[at : at + 1] == "`" or (not quoted and word.endswith(ENDS)):
                break
        words = [word.strip("'\"") for word in words if word]
        if words and words[0] not in SUBJECT:
            yield tuple(words)
