"""Make a line of somebody's log safe to print: colours stay, every other control goes."""

from __future__ import annotations

import re

_CONTROL = re.compile(
    r"""
    (?P<colour> \x1b\[[0-9;:]*m )
    | \x1b\[ [0-?]* [ -/]* (?:[@-~]|$)               # any other CSI: cursor, erase, modes
    | \x1b\] [^\x07\x1b\x9c]* (?:\x07|\x1b\\|\x9c|$)  # OSC: titles, links, clipboard
    | \x1b[P^_X] [^\x1b\x9c]* (?:\x1b\\|\x9c|$)       # DCS, PM, APC, SOS
    | \x1b [ -/]* [0-~]?                             # two-character and lone escapes
    | [\x00-\x08\x0a-\x1f\x7f-\x9f]                  # C0 but tab, DEL, C1
    | [\u200e\u200f\u202a-\u202e\u2066-\u2069]       # direction overrides
    """,
    re.VERBOSE,
)
_RESETS = re.compile(r"\x1b\[(?:0*)?m")


def printable(text: str) -> str:
    """Strip control sequences other than colours, and close a colour left open."""
    if text.isprintable():
        return text  # as nearly every line is, and quickly seen
    clean = _CONTROL.sub(lambda found: found["colour"] or "", text)
    last = clean.rfind("\x1b[")
    if last >= 0 and not _RESETS.match(clean, last):
        clean += "\x1b[0m"
    return clean


def uncoloured(text: str) -> str:
    """Strip colours too."""
    if text.isprintable():
        return text
    return _CONTROL.sub("", text)
