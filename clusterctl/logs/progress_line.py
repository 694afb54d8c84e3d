"""How far a job is, read from a line that it printed.

Known: `Step 12/1502 | ... 2.40s | ... ETA: 1:02:03` (train/), `step 12`, `iteration 12/ 1502`,
tqdm's `12/1502 [00:10<02:00, 2.56s/it]`, the dictionaries of the Trainer of transformers, and
steps of an epoch such as `Epoch: [0]  [ 20/391]`, whose end is not the end of the training.
`Epoch 3/10, loss: 0.52` tells the epoch, and counts if no line tells a step.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from clusterctl.node.run.files.progress import IN_EPOCH, STEP, numbers_of, tells, total_in
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
_OF_ALL_EPOCHS = re.compile(
    r"(?<![a-z_])epochs?[: \t]{0,4}\d{1,3}%\|[^|]{0,500}\|[ \t]{0,9}$", re.IGNORECASE
)
"""What is before the numbers of a bar that counts epochs, above one that counts their steps."""
_NEW_BAR = re.compile(
    r"%[ \t][\u2500-\u257f]{1,200}[ \t](\d{1,12})/(\d{1,12})[ \t]"
    r"(\d{1,9}(?:\.\d{1,9})?)(s/it|it/s)"
)
"""The bar of ultralytics: `41% ━━━━╸─────── 12/29 1.2it/s 10.1s<14.2s`."""
_OF_EPOCHS = re.compile(
    r"(?<![a-z_])epoch[: \t]{0,4}\[?(\d{1,9})(?:/\d{1,9})?(?![\w.])"
    r"|^[ \t]{0,20}(\d{1,9})/\d{1,9}[ \t]",
    re.IGNORECASE,
)
"""What is before a bar of an epoch: `Epoch 0: ` of Lightning, ` 0/299  3.87G ` of YOLO."""
_EPOCH = re.compile(r"['\"]epoch['\"]: ['\"]?(\d{1,9}(?:\.\d{1,9})?)")
_EPOCH_ALONE = re.compile(
    r"(?<![a-z_-])(?<!val )(?<!valid )(?<!validation )(?<!eval )(?<!test )epoch(?:[ \t]{0,4}[:=#])?"
    r"[ \t]{0,4}\[?(\d{1,9})(?:[ \t]{0,2}(?:/|of)[ \t]{0,2}(\d{1,9}))?(?![\w.]*\d)",
    re.IGNORECASE,
)
"""`Epoch 3/10, loss: 0.52`, `epoch: 3 - train loss: 0.5`, `Epoch [3/10]`."""
_GLOBAL = re.compile(r"\bglobal[-_ ]?\Z", re.IGNORECASE)
"""What is before the steps of all epochs, in a line that has those of the epoch, too."""
_SECONDS_A_STEP = re.compile(r"\| (\d{1,9}\.\d{1,4})s \|")
_ETA = re.compile(
    r"\b(?:ETA|remaining time): (?:(\d{1,4}) days?, )?"
    r"(?:(\d{1,9}(?::\d\d){1,2})|(\d{1,9}(?:\.\d{1,4})?)m)(?!\S)",
    re.IGNORECASE,
)
_ALL_STEPS = re.compile(
    r"(?:[-.\w]*[-_.])?(?:max|num|total)[-_](?:train[-_])?(?:steps|iters|iterations)"
)
"""A flag or key with the last step of the training: `--max_iters`, `--trainer.max_steps`."""
_SKIPPED = 3.0
"""A bar that prints so many times the rate counts the steps that a resume skipped."""
_LEAST_SECONDS = 2.0
"""Two lines that are closer tell no rate: the time of a line may be known to half a second only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProgress:
    """How far a job is, as it prints it; None: it does not print that."""

    step: int | None = None
    total: int | None = None
    epoch: float | None = None
    epochs: int | None = None
    """How many there are, if a line tells that and no step."""
    of_epoch: bool = False
    """`step` and `total` are those of the epoch: the end of the training is not known."""
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
    if all_epochs := _of_all_epochs(line):
        return all_epochs
    if bars := bars or list(_NEW_BAR.finditer(line)):
        return _of_bar(bars[-1], _OF_EPOCHS.search(line[: bars[-1].start()]))
    if (counted := IN_EPOCH.search(line)) and tells(counted):
        whole = _ETA.search(line) if counted["one"] else None  # elsewhere it is the epoch's
        return JobProgress(
            step=int(counted["step"]),
            total=int(counted["total"]),
            epoch=float(counted["epoch"]),
            of_epoch=True,
            eta_s=_left(whole),
        )
    steps, alone = list(STEP.finditer(line)), _epoch_alone(line)
    found = _EPOCH.search(line)
    epoch = float(found[1]) if found else alone.epoch if alone else None
    if not steps:
        return JobProgress(epoch=epoch) if found else alone
    of_all = (one for one in steps if _GLOBAL.search(line[: one.start()]))
    with_total = next((one for one in steps if one[2]), steps[-1])
    step, total = numbers_of(next(of_all, with_total))
    named = total_in(line) or 0
    total = total or (named if named >= step else None)
    seconds = _SECONDS_A_STEP.search(line)
    progress = JobProgress(
        step=step,
        total=total,
        epoch=epoch,
        steps_per_s=1 / float(seconds[1]) if seconds and float(seconds[1]) else None,
        eta_s=_left(_ETA.search(line)),
    )
    return _with_eta(progress)


def progress_of(
    lines: Iterable[str], earlier: Iterable[str] = (), seconds: float = 0.0
) -> JobProgress | None:
    """Return what the last line of progress tells.

    Args:
        lines: what was printed last, the newest line last.
        earlier: what was the end then.
    """
    now, before = _newest(lines), _newest(earlier)
    return now if now is None or before is None else with_rate(now, before, seconds)


def with_rate(now: JobProgress, before: JobProgress, seconds: float) -> JobProgress:
    """Return the progress with its rate, by what it was so many seconds before."""
    if now.step is None or before.step is None or seconds < _LEAST_SECONDS:
        return now
    if now.step <= before.step or now.total != before.total or now.epoch != before.epoch:
        return now
    rate, printed = (now.step - before.step) / seconds, now.steps_per_s
    if printed is not None and printed < _SKIPPED * rate:
        return now
    return _with_eta(replace(now, steps_per_s=rate, eta_s=None if printed else now.eta_s))


def with_total_of(command: Sequence[str], found: JobProgress) -> JobProgress:
    """Return the progress with the last step that the command names, if nothing else tells it."""
    if found.total is not None or found.step is None:
        return found
    words = [part for word in command for part in word.split("=", 1)]
    for flag, value in pairwise(words):
        if _ALL_STEPS.fullmatch(flag) and re.fullmatch(r"\d{1,12}", value, re.ASCII):
            total = int(value)
            return _with_eta(replace(found, total=total)) if total >= found.step else found
    return found


def _newest(lines: Iterable[str]) -> JobProgress | None:
    """Return what the last line tells that has a step; without any, the last epoch."""
    newest = list(lines)[::-1]
    found = list(filter(None, map(progress_in, newest)))
    last = next((one for one in found if one.step is not None), found[0] if found else None)
    if last is not None and last.step is not None and last.total is None:
        # `saved step8.pt`, after `step 8/60`
        last = next((one for one in found if one.step == last.step and one.total), last)
    if last is None or last.step is None or last.epoch is not None or last.total is None:
        return last
    above = next(filter(None, map(_of_all_epochs, newest)), None)
    return replace(last, epoch=above.epoch, of_epoch=True, eta_s=None) if above else last


def _of_all_epochs(line: str) -> JobProgress | None:
    """Return what a bar of epochs tells, which counts those that are over; None: it is none."""
    bars = list(_BAR.finditer(line[:_LIMIT]))
    if not bars or not _OF_ALL_EPOCHS.search(line[: bars[-1].start()]):
        return None
    return JobProgress(epoch=float(bars[-1][1]), epochs=int(bars[-1][2]))


def _epoch_alone(line: str) -> JobProgress | None:
    found = _EPOCH_ALONE.search(line)
    if found is None:
        return None
    epochs = int(found[2] or 0)
    fits = epochs >= int(found[1])
    return JobProgress(epoch=float(found[1]), epochs=epochs if epochs and fits else None)


def _of_bar(found: re.Match[str], epochs: re.Match[str] | None) -> JobProgress:
    """Read a bar; one that has just begun knows neither its rate nor its end."""
    step, total = int(found[1]), int(found[2])
    of_tqdm = found.re is _BAR
    number, unit = (found[4], found[5]) if of_tqdm else (found[3], found[4])
    number = float(number) if number else 0.0
    rate = (number if unit == "it/s" else 1 / number) if number else None
    if epochs:
        epoch = float(epochs[1] or epochs[2])
        return JobProgress(step=step, total=total, epoch=epoch, of_epoch=True, steps_per_s=rate)
    left = _seconds(found[3]) if of_tqdm and found[3] != "?" else None
    return _with_eta(JobProgress(step=step, total=total, steps_per_s=rate, eta_s=left))


def _with_eta(found: JobProgress) -> JobProgress:
    step, total, rate = found.step, found.total, found.steps_per_s
    if found.eta_s is not None or found.of_epoch or step is None or not (total and rate):
        return found
    return replace(found, eta_s=max(0, total - step) / rate)


def _left(found: re.Match[str] | None) -> float | None:
    """Return the seconds of `ETA: 1:02:03`, `eta: 1 day, 0:05:11` or `eta: 12.3m`."""
    if found is None:
        return None
    days, clock, minutes = found.groups()
    seconds = _seconds(clock) if clock else float(minutes) * 60
    return None if seconds is None else seconds + int(days or 0) * 86400


def _seconds(clock: str) -> float | None:
    """Return the seconds of `1:02:03` or `02:00`; None if it is something else."""
    total = 0
    for part in clock.split(":"):
        if not part:
            return None
        total = total * 60 + int(part)
    return float(total)
