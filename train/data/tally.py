"""What is learned of chats and what is not, counted over samples, and said in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from train.data.chat.answers import Answer
from train.errors import counted

UNLEARNED = {
    "thoughts": ("chat", "thoughts that the template leaves out, in {}"),
    "texts": ("answer", "text next to calls that the template leaves out, in {}"),
    "not generated": ("answer", "{} outside of what the template marks as generated"),
    "empty": ("empty answer", "{}"),
    "weight 0": ("answer", "{} of weight 0"),
}
"""What is not learned → the noun that is counted, and the words of the note."""
SHOWN = 5
"""Special tokens that are named one by one."""


@dataclass(slots=True)
class Tally:
    """Counts that can be added up."""

    learned: Counter[str] = field(default_factory=Counter)
    """Answers, those with thoughts, those with the token that ends them, and calls."""
    unlearned: Counter[str] = field(default_factory=Counter)
    """What of chats is not learned → how often."""
    special: Counter[str] = field(default_factory=Counter)
    """A special token → how often the texts of messages have it."""

    @classmethod
    def of(
        cls,
        answers: Iterable[Answer],
        unlearned: Mapping[str, int],
        special: Iterable[str],
        images: Sequence[int] = (),
    ) -> Self:
        """Count a chat: its answers that are learned, and what a line of it says besides.

        `images` has the tokens of each.
        """
        learned = Counter({"images": len(images), "of images": sum(images)})
        for answer in answers:
            learned["answers"] += 1
            learned["ends"] += answer.ends
            learned["thoughts"] += answer.thoughts
            learned["calls"] += answer.calls
            learned["unended"] += answer.unended
        return cls(learned, Counter(unlearned), Counter(special))

    def add(self, other: Tally) -> None:
        """Add what another has counted."""
        self.learned.update(other.learned)
        self.unlearned.update(other.unlearned)
        self.special.update(other.special)

    def as_json(self) -> dict[str, dict[str, int]]:
        """Return it as it is kept in a file."""
        every = {"learned": self.learned, "unlearned": self.unlearned, "special": self.special}
        return {name: {key: n for key, n in some.items() if n} for name, some in every.items()}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """Return what `as_json` has made."""
        return cls(*(Counter(found[name]) for name in ("learned", "unlearned", "special")))

    def notes(self) -> Iterator[str]:
        """Say what is learned, what is not, and what may be read as something else."""
        if self.learned["answers"]:
            yield f"learned: {self._words()}"
        if images := self.learned["images"]:
            each = round(self.learned["of images"] / images)
            yield f"{counted(images, 'image')} of {counted(each, 'token')}, on average"
        if unended := self.learned["unended"]:
            begin = "answer begins" if unended == 1 else "answers begin"
            yield f"{unended} {begin} thoughts that do not end: the model learns to stop in them"
        if missing := unlearned_words(self.unlearned):
            yield f"not learned: {missing}"
        if self.special:
            named = [f"{token} ({count})" for token, count in self.special.most_common(SHOWN)]
            more = f" and {len(self.special) - SHOWN} more" if len(self.special) > SHOWN else ""
            yield (
                f"special tokens within texts of messages: {', '.join(named)}{more}; they are read "
                "as the template's own (split_special_tokens: true keeps them text)"
            )

    def _words(self) -> str:
        count = self.learned
        ends = "each" if count["ends"] == count["answers"] else f"{count['ends']} of them"
        return (
            f"{counted(count['answers'], 'answer')}, {ends} with the token that ends it; "
            f"thoughts in {count['thoughts']}, {counted(count['calls'], 'tool call')}"
        )


def unlearned_words(counts: Mapping[str, int]) -> str:
    """Say what is not learned; nothing if all is."""
    return "; ".join(
        said.format(counted(counts[what], noun))
        for what, (noun, said) in UNLEARNED.items()
        if counts.get(what)
    )
