"""Ids of runs, `<cluster>-<UTC second>-<four random>`, which sort by time."""

import datetime as dt
import re
import secrets
from collections.abc import Collection, Mapping

from clusterctl.errors import SeveralRuns

_ALPHABET = "abcdefghjkmnpqrstuvwxyz23456789"
_WORD = re.compile(r"[a-z0-9][a-z0-9-]*")
_PATTERN = re.compile(r"(?P<cluster>[a-z0-9-]{1,24})-[0-9]{8}t[0-9]{6}-[a-z0-9]{4}")


def make_run_id(cluster: str, now: dt.datetime | None = None) -> str:
    """Return the id of a new run."""
    moment = (now or dt.datetime.now(dt.UTC)).astimezone(dt.UTC)
    random = "".join(secrets.choice(_ALPHABET) for _ in range(4))
    return f"{cluster}-{moment:%Y%m%dt%H%M%S}-{random}"


def cluster_of(run: str) -> str | None:
    """Return the cluster in a run's id; None if the text is not an id."""
    found = _PATTERN.fullmatch(run)
    return found["cluster"] if found else None


def is_word(run: str) -> bool:
    """Tell whether a run's id needs no quotes in a command."""
    return _WORD.fullmatch(run) is not None


def pick_run(word: str, known: Mapping[str, str], *, part: bool = True) -> str | None:
    """Return the run that a word means; None if it means none.

    Args:
        word: an id, else a name (of the newest run that has it), else a part of an id or name.
        known: the user's name of each run, empty if it has none; the newest run first.
        part: of parts, more than the end of an id counts.
    """
    if word in known:
        return word
    whole = [run for run, name in known.items() if name == word]
    if whole:
        return whole[0]
    found = _with_part(word, known)
    if not part:
        found = {run: name for run, name in found.items() if run.endswith(f"-{word}")}
    names = {name for name in found.values() if word in name}
    if part and len(names) == 1 and all(word in name for name in found.values()):
        return next(iter(found))  # a run and its resumes have one name: the newest is meant
    if len(found) > 1:
        raise SeveralRuns(word, found)
    return next(iter(found), None)


def refuse_part(word: str, known: Mapping[str, str]) -> None:
    """Refuse a word that means no run, but is a part of a run's id or name."""
    found = _with_part(word, known)
    if found and pick_run(word, known, part=False) is None:
        raise SeveralRuns(word, found, "a whole id or name, or the end of an id")


def _with_part(word: str, known: Mapping[str, str]) -> dict[str, str]:
    return {run: name for run, name in known.items() if word in run or word in name}


def short_ids(runs: Collection[str], others: Collection[str] = ()) -> dict[str, str]:
    """Return for each run the shortest end of its id, by words, that is a part of no other text."""
    everything = "\n".join({*runs, *others})
    found = {}
    for run in runs:
        words = run.split("-")
        ends = ("-".join(words[-count:]) for count in range(1, len(words)))
        alone = (end for end in ends if everything.count(end) == run.count(end) and end)
        found[run] = next(alone, run)
    return found
