"""Makes text of others safe to show: logs, servers' words, what a user wrote in a file."""

from __future__ import annotations

import re

WORDS_LIMIT = 500
"""Characters of a server's words that are shown."""
UNCLEAN_LIMIT = 8 * WORDS_LIMIT
"""Characters or bytes that are cleaned for them: cleaning megabytes would take seconds."""

_SEQUENCE = r"""
    (?P<color> \x1b\[[0-9;:]*m )
    | \x1b\[ [0-?]* [ -/]* (?:[@-~]|$)               # any other CSI: cursor, erase, modes
    | \x1b\] [^\x07\x1b\x9c]* (?:\x07|\x1b\\|\x9c|$)  # OSC: titles, links, clipboard
    | \x1b[P^_X] [^\x1b\x9c]* (?:\x1b\\|\x9c|$)       # DCS, PM, APC, SOS
    | \x1b [ -/]* [0-~]?                             # two-character and lone escapes
"""
_SEQUENCES = re.compile(_SEQUENCE, re.VERBOSE)
_CONTROLS = re.compile(
    _SEQUENCE
    + r"""
    | [\x00-\x08\x0a-\x1f\x7f-\x9f]                  # C0 but tab, DEL, C1
    | [\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]
    | [\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e007f]
    # The last two: invisible ones, directions, line ends, tags. ZWNJ and ZWJ stay: some scripts
    # cannot be written without them.
    """,
    re.VERBOSE,
)
_RESETS = re.compile(r"\x1b\[(?:0*)?m")


def keep_colors(text: str) -> str:
    """Strip the control sequences of a line except colors, and reset a color left on."""
    if text.isprintable():
        return text  # as nearly every line is, and quickly seen
    clean = _CONTROLS.sub(lambda found: found["color"] or "", text)
    last = clean.rfind("\x1b[")
    if last >= 0 and not _RESETS.match(clean, last):
        clean += "\x1b[0m"
    return clean


def strip_controls(text: str) -> str:
    """Strip every control sequence of a line, colors too."""
    return text if text.isprintable() else _CONTROLS.sub("", text)


def escape_controls(text: str, limit: int) -> str:
    """Show each character that is not printable as a backslash escape; cut at `limit` characters.

    For short values, in which a stray character may be the mistake.
    """
    # Each character shows as one or more, so no further ones are needed.
    shown = "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[: limit + 1]
    )
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def printable_words(words: str | bytes) -> str:
    """Return a server's words as one short line, without escape sequences."""
    words = words[:UNCLEAN_LIMIT]
    text = words.decode("utf-8", "backslashreplace") if isinstance(words, bytes) else words
    lines = (_SEQUENCES.sub("", line).strip() for line in re.split(r"[\r\n]+", text))
    return escape_controls("; ".join(filter(None, lines)), WORDS_LIMIT)
