"""A model family's chat template with its tokens, and the marks that say what of it is learned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Unpack

from typing_extensions import TypedDict

BEGIN, OWN, END = "\ue000", "\ue001", "\ue002"
"""What a marked template writes where an answer begins, its own words begin, and it ends."""
MARKS = {"{#<#}": BEGIN, "{#|#}": OWN, "{#>#}": END}
TAGS = {"{#[#}": "{%- generation -%}", "{#]#}": "{%- endgeneration -%}"}

Ends = Literal["always", "before another message", "never"]


class Tokens(TypedDict, total=False):
    """The fields of `Family` that are not templates."""

    name: str
    marks: tuple[str, ...]
    words: tuple[str, ...]
    bos: str
    eos: str
    end: str
    end_of_call: str
    next_marks: tuple[str, ...]
    writes_end: Ends
    text_arguments: bool
    asks_last: bool
    starts_calls_once: bool
    strips: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A family's template and its marks."""

    template: str
    marked: str = ""
    """The template, which also writes marks around what of an answer is learned."""
    name: str = ""
    """Whose template it is."""
    marks: tuple[str, ...]
    """Tokens between messages."""
    words: tuple[str, ...] = ()
    """Other tokens of its own, which are no marks: thoughts and calls."""
    bos: str = ""
    eos: str
    """The tokenizer's end of a text."""
    end: str
    """What ends an answer at inference."""
    end_of_call: str = ""
    """What ends an answer with calls, if it differs."""
    next_marks: tuple[str, ...] = ()
    """Beginnings of a message that end the answer before it, if no token of its own does."""
    writes_end: Ends = "always"
    """When the template writes a token that ends an answer."""
    text_arguments: bool = False
    """Whether it wants a call's arguments as JSON text."""
    asks_last: bool = False
    """Whether it writes the system message or the tools only while the last question is last."""
    starts_calls_once: bool = False
    """Whether it writes the beginning of an answer before the first answer with calls only."""
    strips: bool = False
    """Whether the tokenizer makes the white space after a mark a part of it."""


def family(source: str, *, tags: bool = False, **tokens: Unpack[Tokens]) -> Family:
    """Return a family whose template is a source without its marks.

    Args:
        source: A template. `{#<#}`, `{#|#}` and `{#>#}` are where an answer begins, where the part
            begins that the model alone can know, and where it ends. `{#[#}` and `{#]#}` are where
            the template's author has tags of generation.
        tags: Whether the template keeps these tags.
        tokens: The other fields.
    """
    marked = template = source
    for tag, text in TAGS.items():
        marked = marked.replace(tag, "")
        template = template.replace(tag, text if tags else "")
    for mark, text in MARKS.items():
        shown = f"{{{{- {text!r} if m.role == 'assistant' -}}}}"
        marked = marked.replace(mark, shown)
        template = template.replace(mark, "")
    return Family(template=template, marked=marked, **tokens)
