"""A line of data as stretches of text, before they are tokenized."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from train.data.chat import Chat


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A stretch of text that is tokenized by itself."""

    text: str
    special: bool
    """Whether it is the beginning of a text: the tokenizer's own begin mark comes before it."""
    spans: tuple[tuple[int, int], ...] | Literal["all", "none"]
    """Which characters the loss counts."""
    within: bool = False
    """Whether there is text before it: then it does not begin with a space of the tokenizer's."""
    literal: bool = False
    """Whether a special token in it is text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A line as pieces of text, in order."""

    pieces: tuple[Piece, ...]
    ends: bool
    """Whether the end-of-text token is appended (and counts); a chat's template has its own."""
    splits: bool
    """Whether what is too long goes on in a further sample, or is cut."""
    chat: Chat | None = None
    """The chat that it is."""
    literals: tuple[tuple[int, int], ...] = ()
    """Where its only piece has special tokens that are text."""
