"""Makes text of others safe to show."""

from __future__ import annotations

import re

WORDS_LIMIT = 500


def printable_words(words: str | bytes) -> str:
    """Make a server's words printable: one line, no control sequence, of bounded length."""
    text = words.decode("utf-8", "backslashreplace") if isinstance(words, bytes) else words
    text = re.sub(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|.)", "", text)
    lines = [line.strip() for line in re.split(r"[\r\n]+", text) if line.strip()]
    joined = "; ".join(lines)
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in joined)
    return shown if len(shown) <= WORDS_LIMIT else shown[: WORDS_LIMIT - 1] + "…"
