"""What the name of a checkpoint tells: a step, an epoch, a date, or that it is not one to take."""

from __future__ import annotations

import re
import time
from typing import NamedTuple, Optional, Tuple

_NUMBER = r"(\d+)(?!\d|\.\d)([km](?![a-z0-9]))?"
"""A whole number: what stands before a point and more digits is a loss or a version."""
_STEP = re.compile(
    r"(?<![a-z])(?:global[-_ ]?)?(?:steps?|iters?|iterations?)[-_= ]*" + _NUMBER, re.IGNORECASE
)
_CHECKPOINT = re.compile(
    r"(?<![a-z])(?:checkpoints?|ckpts?|chkpts?)[-_= ]*" + _NUMBER, re.IGNORECASE
)
_EPOCH = re.compile(r"(?<![a-z])(?:epochs?|ep)[-_= ]*" + _NUMBER, re.IGNORECASE)
_PADDED = re.compile(r"(?<!of)[_-](0\d{3,})(?!-of-)(?=[_.-]|$)")
"""`model_000100.pt`, `optim_000100_rank0.pt`: zeros in front make it a count, but of shards."""
_RANK = re.compile(r"(?<![a-z])rank[-_]?(\d{1,6})(?!\d)", re.IGNORECASE)
_IN_GROUP = re.compile(r"(?<![a-z])[a-z]p[-_]rank", re.IGNORECASE)
"""`mp_rank_00`: the place among the ranks that share a model, not among all."""
_BESIDE_MODEL = re.compile(
    r"(?<![a-z])(?:optim(?:izer)?s?|opt|(?:lr[-_]?)?sched(?:uler)?s?|scaler|rng|ema|sampler"
    r"|dataloader)(?![a-z])",
    re.IGNORECASE,
)
"""Of a name of what a program saves next to the model: `step30_optim.pt`."""
_BARE = re.compile(r"(\d+)(?:\.[a-z]\w*)?", re.IGNORECASE)
_DATE = re.compile(
    r"(?<!\d)((?:19|20)\d\d)[-_.]?([01]\d)[-_.]?([0-3]\d)"
    r"(?:[T_ .-]?([0-2]\d)[:_.h-]?([0-5]\d)(?:[:_.m-]?([0-5]\d))?)?(?!\d)",
    re.IGNORECASE,
)
_SECONDS = re.compile(r"(1[5-9]\d{8})(?:\d{3})?")
"""A bare number that is a Unix time since 2017, in seconds or milliseconds."""
_UNFINISHED = re.compile(r"(?:^tmp[-_.].*|.*\.tmp(?:[-_.].*)?)", re.IGNORECASE)
_SET_ASIDE = re.compile(
    r".*(?:\.aside(?:[-_.].*)?|[._-](?:bak|backup|old|orig)\d*(?:[-_.~].*)?|~)", re.IGNORECASE
)
_LARGER = {"": 1, "k": 1_000, "m": 1_000_000}
_MONTHS, _DAYS, _HOURS = 12, 31, 23


class NameParts(NamedTuple):
    """What a name tells."""

    step: Optional[int] = None
    epoch: Optional[int] = None
    date: Optional[int] = None
    """The digits from year to second, so that order of numbers is order of time."""

    @property
    def any(self) -> bool:
        """It tells something by which checkpoints are ordered."""
        return self != NameParts()


def read_name(name: str) -> NameParts:
    """Return what a checkpoint's name marks as a step, an epoch or a date."""
    name = name.rsplit(".tmp", 1)[0]
    date, rest = _date_in(name)
    # A word for a step decides at once; `checkpoint-20241231` is rather a date.
    step = _number(_STEP.search(name))
    if step is None:
        step = _number(_CHECKPOINT.search(rest))
    epoch = _number(_EPOCH.search(name))
    if step is None and epoch is None and (padded := _PADDED.search(rest)):
        step = int(padded[1])
    bare = _BARE.fullmatch(rest) if step is None else None
    if bare and (seconds := _SECONDS.fullmatch(bare[1])):
        date = int(time.strftime("%Y%m%d%H%M%S", time.gmtime(int(seconds[1]))))
    elif bare:
        step = int(bare[1])
    return NameParts(step=step, epoch=epoch, date=date)


def is_only_dated(name: str) -> bool:
    """Tell whether a name has a date, and no step or epoch: it may be that of a run."""
    parts = read_name(name)
    return parts.date is not None and parts.step is None and parts.epoch is None


def is_of_rank(name: str) -> bool:
    """Tell whether a name says that it has the part of a rank: `optim_000100_rank0.pt`."""
    return _RANK.search(name) is not None


def rank_of(name: str) -> Optional[int]:
    """Return the rank among all whose part a name says that it has; None: it says none."""
    found = None if _IN_GROUP.search(name) else _RANK.search(name)
    return int(found[1]) if found else None


def is_beside_model(name: str) -> bool:
    """Tell whether a name says that it has no model, or an average of it: `step30_optim.pt`."""
    return _BESIDE_MODEL.search(name) is not None


def of_any_step(name: str) -> str:
    """Return the name without the number of its step."""
    step = read_name(name).step
    return name if step is None else re.sub(r"(?<!\d)0*%d(?!\d)" % step, "*", name, count=1)


def is_unfinished(name: str) -> bool:
    """Tell whether a name says that its writer is at work, or died: `step-5.tmp-a1b2`."""
    return bool(_UNFINISHED.fullmatch(name))


def is_retired(name: str) -> bool:
    """Tell whether a name says that it was put out of use: `step-5.aside-a1b2`, `step-5.bak`.

    So does that of a note of clusterctl's own, which names a run.
    """
    return bool(_SET_ASIDE.fullmatch(name)) or name.endswith(".clusterctl")


def _number(found: Optional[re.Match[str]]) -> Optional[int]:
    return int(found[1]) * _LARGER[(found[2] or "").lower()] if found else None


def _date_in(name: str) -> Tuple[Optional[int], str]:
    """Return the first date in a name, and the name without it."""
    for found in _DATE.finditer(name):
        _, month, day, hour, *_ = (int(part or 0) for part in found.groups())
        if 1 <= month <= _MONTHS and 1 <= day <= _DAYS and hour <= _HOURS:
            date = "".join(part or "00" for part in found.groups())
            return int(date), name[: found.start()] + name[found.end() :]
    return None, name
