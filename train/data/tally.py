"""What the user should know of data: what of it is learned, left out or cut, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from train.config.config import Config
from train.data.chat.answers import Answer
from train.data.files import contents
from train.errors import ConfigError, counted

UNLEARNED = {
    "thoughts": ("chat", "thoughts that the template leaves out, in {}"),
    "texts": ("answer", "text next to calls that the template leaves out, in {}"),
    "not generated": ("answer", "{} outside of what the template marks as generated"),
    "empty": ("empty answer", "{}"),
    "weight 0": ("answer", "{} of weight 0"),
}
"""What is not learned → the noun that is counted, and the words of the note."""
_NAMED = 5
"""Special tokens that are named one by one."""
SHOWN = 10
"""Unusable lines that are named one by one."""


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
            named = [f"{token} ({count})" for token, count in self.special.most_common(_NAMED)]
            more = f" and {len(self.special) - _NAMED} more" if len(self.special) > _NAMED else ""
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


def notes_of(
    label: str, config: Config, shards: list[dict[str, Any]], before: int | None = None
) -> list[str]:
    """Say what the user should know of shards; refuse too many unusable lines.

    Of a later part of a stream, `before` is how many there were in earlier ones.
    """
    bad = sorted(item for about in shards for item in about["bad"])
    notes = [f"{where}: {reason}" for _, where, reason in bad[:SHOWN]]
    if len(bad) > SHOWN:
        notes.append(f"... and {counted(len(bad) - SHOWN, 'more line')} that cannot be used")
    way_out = next(filter(None, (contents.of_line(where, why) for _, where, why in bad)), None)
    usable = any(about["samples"] or about["overlong"] for about in shards)
    if bad and not usable and before is None:
        raise ConfigError(*_reasons_of(bad), hint=way_out)
    if (count := (before or 0) + len(bad)) > config.max_bad_lines:
        limit = f"{label}: expected at most {config.max_bad_lines} unusable lines (max_bad_lines), "
        hint = way_out or f"fix them, or --set max_bad_lines={count} leaves them out"
        raise ConfigError(*notes, f"{limit}found {count}", hint=hint)
    tally = Tally()
    for about in shards:
        tally.add(Tally.from_json(about["chats"]))
    notes += [f"{label}: {note}" for note in tally.notes()]
    notes += _overlong(label, config, [about["overlong"] for about in shards])
    return notes


def _overlong(label: str, config: Config, shards: list[dict[str, int]]) -> Iterator[str]:
    """Say how many samples are longer than seq_len, and which seq_len is enough for how many."""
    lengths: Counter[int] = Counter()
    for shard in shards:
        lengths.update({int(length): count for length, count in shard.items()})
    if not lengths:
        return
    count, twice = lengths.total(), 2 * config.seq_len
    said = "1 sample is" if count == 1 else f"{count} samples are"
    fate = f"{'was' if count == 1 else 'were'} {'dropped' if config.overlong == 'drop' else 'cut'}"
    fitting = sum(number for length, number in lengths.items() if length <= twice)
    some = f"seq_len {twice} holds {fitting} of them, " if 0 < fitting < count else ""
    yield (
        f"{label}: {said} longer than seq_len {config.seq_len} and {fate}; "
        f"{some}seq_len {max(lengths)} holds all"
    )


def _reasons_of(bad: list[tuple[int, str, str]]) -> Iterator[str]:
    """Say why no line at all can be used: each reason once."""
    times = Counter(reason for *_, reason in bad)
    first = {reason: where for _, where, reason in reversed(bad)}
    for reason, count in times.most_common(SHOWN):
        more = f" ({count} lines, which is all)" if count == len(bad) > 1 else f" ({count} lines)"
        yield f"{first[reason]}: {reason}{more if count > 1 else ''}"
