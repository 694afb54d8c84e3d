"""How far a job is, read from a line that it printed.

Known: `Step 12/1502 | ... 2.40s | ... ETA: 1:02:03` (train/), `step 12`, `iteration 12/ 1502`,
tqdm's `12/1502 [00:10<02:00, 2.56s/it]`, and the dictionaries of the Trainer of transformers.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from clusterctl.node.run.files.progress import STEP, numbers_of
from clusterctl.values import dataclass

_LIMIT = 2000
"""Characters of a line that are read: a node may claim that a job printed anything."""
_BAR = re.compile(
    r"(?<![\d.])(\d{1,12})/(\d{1,12}) \[[\d:]{1,20}<([\d:]{1,20}|\?)"
    r"(?:,[ \t]{0,9}(\d{1,9}(?:\.\d{1,9})?)(s/it|it/s))?"
)
_OTHER_BAR = re.compile(
    r"(?:\b(?:shards|files|examples|Map|Filter)\b|\b(?:download|fetch|generat|tokeniz|load|sav|writ"
    r"|evaluat|validat|predict|group|pack)ing\b)[^|]{0,200}\|[^|]{0,500}\|[ \t]{0,9}$",
    re.IGNORECASE,
)
"""What is before the numbers of a bar that is none of the training's steps."""
_EPOCH = re.compile(r"['\"]epoch['\"]: ['\"]?(\d{1,9}(?:\.\d{1,9})?)")
_SECONDS_A_STEP = re.compile(r"\| (\d{1,9}\.\d{1,4})s \|")
_ETA = re.compile(r"\bETA: (\d{1,9}(?::\d\d){1,2})(?!\S)")
_LEAST_SECONDS = 2.0
"""Two lines that are closer tell no rate: the time of a line may be known to half a second only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProgress:
    """How far a job is, as it prints it; None: it does not print that."""

    step: int | None = None
    total: int | None = None
    epoch: float | None = None
    steps_per_s: float | None = None
    """As printed, or by two lines and their times."""
    eta_s: float | None = None
    """Seconds to the last step when the line was printed."""
    loss: float | None = None
    tokens_per_s: float | None = None
    """Of the run or of a GPU, as the job prints it."""


def progress_in(line: str) -> JobProgress | None:
    """Return what a line tells; None: it is no such line."""
    line = line[:_LIMIT]
    bars = [
        found
        for found in _BAR.finditer(line)
        if int(found[2]) and not _OTHER_BAR.search(line[: found.start()])
    ]
    if bars:
        return _of_bar(bars[-1])
    words, epoch = STEP.search(line), _EPOCH.search(line)
    if words is None:
        return JobProgress(epoch=float(epoch[1])) if epoch else None
    step, total = numbers_of(words)
    seconds, left = _SECONDS_A_STEP.search(line), _ETA.search(line)
    found = JobProgress(
        step=step,
        total=total,
        epoch=float(epoch[1]) if epoch else None,
        steps_per_s=1 / float(seconds[1]) if seconds and float(seconds[1]) else None,
        eta_s=_seconds(left[1]) if left else None,
    )
    return _with_eta(found)


def progress_of(
    lines: Iterable[str], earlier: Iterable[str] = (), seconds: float = 0.0
) -> JobProgress | None:
    """Return what the last line of progress tells.

    Args:
        lines: what was printed last, the newest line last.
        earlier: what was the end then.
    """
    now, before = next(_newest(lines), None), next(_newest(earlier), None)
    if now is None or now.steps_per_s is not None or before is None:
        return now
    if now.step is None or before.step is None or seconds < _LEAST_SECONDS:
        return now
    if now.step <= before.step or now.total != before.total:
        return now
    return _with_eta(replace(now, steps_per_s=(now.step - before.step) / seconds))


def _newest(lines: Iterable[str]) -> Iterator[JobProgress]:
    return filter(None, map(progress_in, reversed(list(lines))))


def _of_bar(found: re.Match[str]) -> JobProgress:
    """Read a bar of tqdm; one that has just begun knows neither its rate nor its end."""
    step, total = int(found[1]), int(found[2])
    number = float(found[4]) if found[4] else 0.0
    rate = (number if found[5] == "it/s" else 1 / number) if number else None
    left = _seconds(found[3]) if found[3] != "?" else None
    return _with_eta(JobProgress(step=step, total=total, steps_per_s=rate, eta_s=left))


def _with_eta(found: JobProgress) -> JobProgress:
    if found.eta_s is not None or found.step is None or not (found.total and found.steps_per_s):
        return found
    return replace(found, eta_s=max(0, found.total - found.step) / found.steps_per_s)


def _seconds(clock: str) -> float | None:
    """Return the seconds of `1:02:03` or `02:00`; None if it is something else."""
    total = 0
    for part in clock.split(":"):
        if not part:
            return None
        total = total * 60 + int(part)
    return float(total)
