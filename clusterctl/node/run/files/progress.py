"""How far a job is, read from the last lines that a rank printed."""

from __future__ import annotations

import contextlib
import math
import os
import re

from clusterctl.node.file_io import read_end
from clusterctl.node.run.files.run_paths import NodePaths
from clusterctl.node.time_limit import LINE_CHARACTERS, time_limit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Match, Optional, Sequence, Set, Tuple

    Progress = Dict[str, Optional[float]]
    """`step`, `total`, `loss` and `tokens_per_s`, as far as they were printed."""

START_BYTES = 32 << 10
"""How much of the start of a log is read for the first epoch."""
END_BYTES = (8 << 10, 64 << 10)
"""How much of the end of a log is read: more only where little has no step."""
STEP = re.compile(
    r"(?<![a-z])(?<!val )(?<!valid )(?<!validation )(?<!eval )(?<!evaluation )(?<!test )"
    r"(?<!checkpoint )(?:step(?:/max_steps)?|iteration|iter(?:\(train\))?|updates?(?==))[\"']?"
    r"[ \t]{0,9}[:=#]?[ \t]{0,9}(?:[\"']|\[[ \t]{0,9})?(\d{1,3}(?:,\d{3}){1,3}|\d{1,12})"
    r"(?:[ \t]{0,9}(?:/|of)[ \t]{0,9}(\d{1,3}(?:,\d{3}){1,3}|\d{1,12}))?(?![\w%]|[.,]\d)",
    re.IGNORECASE,
)
"""`Step 12/1,502 | Loss`, `"global_step": 12`, `iteration 12/ 1502`, `'step/max_steps': '1/8'`."""
_TOTAL = re.compile(
    r"(?<![a-z])(?:max|num|total)_(?:train_)?(?:steps|iters|iterations)[\"']?"
    r"[ \t]{0,9}[:=][ \t]{0,9}(\d{1,12})(?![\w.])"
)
"""`"total_steps": 200` next to the step."""
IN_EPOCH = re.compile(
    r"(?<![a-z_])(?<!val )(?<!validation )(?<!eval )(?<!test )(?:epoch|train)(?P<one>\(train\))?"
    r"[ \t]{0,4}:?[ \t]{0,4}\[?[ \t]{0,4}(?P<epoch>\d{1,9})(?:/(?P<epochs>\d{1,9}))?[],:| \t]"
    r"[,:| \t]{0,8}(?P<word>(?:step|iter|iteration|batch)[: \t]{0,4})?\[?[ \t]{0,9}"
    r"(?P<step>\d{1,12})[ \t]{0,4}/[ \t]{0,4}(?P<total>\d{1,12})(?![\w%]|[.,]\d)",
    re.IGNORECASE,
)
"""`Epoch: [0]  [ 20/391]  eta`, `Train: 3 [ 50/5004 (  1%)]`, `Epoch(train) [1][10/196]`,
`| epoch   1 |   200/ 2983 batches`, `Epoch [3/10], Step [100/600]`."""
_BAR = re.compile(r"(?:^|[\r\n])[ \t]{0,9}\d{1,3}%\|[^|\r\n]{0,500}\|[ \t](\d{1,12})/(\d{1,12}) \[")
"""A bar of tqdm without a title, as the Trainer of transformers has one for its steps."""
_NUMBER = r"(\d{1,15}(?:\.\d{1,20})?(?:e[+-]?\d{1,3})?)"
_LOSS = re.compile(
    r"(?<![a-z_/.])(?<!eval )(?<!val )(?<!validation )(?<!valid )(?<!test )(?:train[_/ ])?"
    r"loss(?: train)?[\"']?[ \t]{0,9}[:= ][ \t]{0,9}[\"']?(?:(?:nan|inf)\b|" + _NUMBER + ")"
)
"""`Loss: 2.31`, `'loss': 2.31`, `train_loss=2.31`, `lm loss: 1.2E+01`; not of an evaluation."""
_TOKENS = re.compile(
    r"(?<![\w.,])(\d{1,3}(?:,\d{3}){1,4}(?![\d,])|\d{1,15}(?:\.\d{1,20})?)"
    r" ?(?:tok|tokens)/s(?:ec)?(?!\w)"
    r"|(?<![a-z])(?:tps|tok(?:ens)?/s(?:ec)?|tokens_per_s(?:ec|econd)?(?:_per_gpu)?|tokens/train_per_sec_per_gpu)[\"']?"
    r"[ \t]{0,9}[:=][ \t]{0,9}[\"']?(\d{1,3}(?:,\d{3}){1,4}(?![\d,])"
    r"|\d{1,15}(?:\.\d{1,20})?(?:[km](?!\w))?)"
)
"""`1812 tok/s`, `tps: 1,234`, `'tokens_per_second_per_gpu': 1234.5`, `tokens/s: 5.11k`: of the run
or of a GPU."""
_LARGER = {"": 1, "k": 1_000, "m": 1_000_000}
OWN_SECONDS, OWN_LINES = 0.3, 200
"""How long a pattern of the job may take, and in how many of the last lines it is looked for."""
_LATE: Set[str] = set()
"""Patterns that took longer: this process does not try them again."""


def run_progress(paths: NodePaths, patterns: Sequence[str] = ()) -> Optional[Progress]:
    """Return what the node's first rank printed last of its progress; None: nothing.

    What the `patterns` of `job.progress` find counts first.
    """
    found: Progress = {}
    for log in paths.logs()[1:2]:
        path = os.path.join(paths.folder, log)
        first = first_epoch(_read_start(path).decode("ascii", "replace"))
        for size in END_BYTES:
            end = read_end(path, size)
            found = {**(progress_in(end, first) or {}), **own_progress(patterns, end)}
            if found.get("step") is not None:
                break
    return found or None


def _read_start(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(START_BYTES)
    except OSError:
        return b""


def progress_in(printed: bytes, first: Optional[int] = None) -> Optional[Progress]:
    """Return what some lines tell last; None: nothing.

    Args:
        printed: the lines.
        first: the first epoch, as `first_epoch` has it of more lines.
    """
    text = printed.decode("ascii", "replace")
    shown = first_epoch(text)
    first = shown if shown is not None else first
    by_end = {found.end(): numbers_of(found) for found in STEP.finditer(text)}
    by_end.update(
        (found.end(), _of_all_epochs(found, first))
        for found in IN_EPOCH.finditer(text)
        if tells(found)
    )
    words = [by_end[end] for end in sorted(by_end)]
    # The steps' bar is the longest one: an evaluation has a bar of its own.
    bars = [(int(step), int(total)) for step, total in _BAR.findall(text) if int(total)]
    longest = max((total for _, total in bars), default=0)
    bars = [bar for bar in bars if bar[1] == longest]
    steps = words or bars
    found: Progress = {}
    if steps:
        step, total = steps[-1]
        if words and not total:
            end = max(by_end)
            total = total_in(text[text.rfind("\n", 0, end) + 1 : end + LINE_CHARACTERS])
        if not total and words:  # `saved step8.pt`, after `step 8/60`
            total = next((known for one, known in words[::-1] if one == step and known), None)
        if not total and bars:
            total = bars[-1][1]
        found = {"step": step, "total": total if total and total >= step else None}
    lowered = text.lower().splitlines()[::-1]
    for name, pattern, signs in (
        ("loss", _LOSS, ("loss",)),
        ("tokens_per_s", _TOKENS, ("tok", "tps")),
    ):
        likely = (
            line[-LINE_CHARACTERS:] for line in lowered if any(sign in line for sign in signs)
        )
        printed_last = next(filter(None, map(pattern.findall, likely)), None)
        number = _number("".join(printed_last[-1])) if printed_last else None
        if number is not None:
            found[name] = number
    return found or None


def own_progress(patterns: Sequence[str], printed: bytes) -> Progress:
    """Return what patterns with the names of the values find in the last lines."""
    found: Progress = {}
    if not patterns:
        return found
    lines = printed.decode("utf-8", "replace").splitlines()[: -OWN_LINES - 1 : -1]
    for pattern in patterns:
        if pattern in _LATE:
            continue
        try:
            with time_limit(OWN_SECONDS):
                compiled = re.compile(pattern)
                matches = (compiled.search(line[:LINE_CHARACTERS]) for line in lines)
                groups = next((match.groupdict() for match in matches if match), {})
        except TimeoutError:
            _LATE.add(pattern)
            continue
        except (re.error, RecursionError, OverflowError):
            continue  # this Python may read it differently
        for name in ("step", "total", "loss", "tokens_per_s"):
            number = _number(groups.get(name) or "")
            if number is not None:
                found.setdefault(name, number if name in ("loss", "tokens_per_s") else int(number))
    return found


def _number(text: str) -> Optional[float]:
    """Return the number that was printed; None: it is none, or none that JSON carries."""
    with contextlib.suppress(ValueError):
        digits = text.rstrip("kmKM")
        number = float(digits.replace(",", "")) * _LARGER.get(text[len(digits) :].lower(), math.nan)
        if math.isfinite(number) and 0 <= number < 1 << 53:
            return number
    return None


def tells(found: Match[str]) -> bool:
    """Tell whether IN_EPOCH found steps of an epoch: `epoch 2, step 30/90` may count all steps."""
    return bool(found["epochs"] or not found["word"]) and int(found["step"]) <= int(found["total"])


def first_epoch(text: str) -> Optional[int]:
    """Return 0 or 1, by which a program counts epochs as its lines show; None: they do not."""
    found = [one for one in IN_EPOCH.finditer(text) if tells(one)]
    if any(int(one["epoch"]) == 0 for one in found):
        return 0
    last = any(one["epochs"] and int(one["epoch"]) >= int(one["epochs"]) for one in found)
    return 1 if last else None


def _of_all_epochs(found: Match[str], first: Optional[int]) -> Tuple[int, Optional[int]]:
    """Return the step and the total as a count that no new epoch begins again.

    Where the lines do not show from where epochs are counted, it is as the programs with such
    lines do: mmengine, pytorch/examples' MNIST and word_language_model, and who prints `Epoch 1/3`
    from 1; torchvision (`Epoch: [0]`), timm and Swin (`Train: `) from 0.
    """
    if first is None:
        epoch_word = found[0][:1] in "Ee"
        bare = not found["epochs"] and "[" in found[0][: found.start("epoch") - found.start()]
        first = int(bool(found["one"]) or (epoch_word and not bare))
    of_epoch = int(found["total"])
    before = max(0, int(found["epoch"]) - first)
    total = int(found["epochs"] or 0) * of_epoch
    step = before * of_epoch + int(found["step"])
    return step, total if total >= step and total else None


def numbers_of(found: Match[str]) -> Tuple[int, Optional[int]]:
    """Return the step that STEP found, and the total; None: it is not printed, or no total."""
    step, total = (int(number.replace(",", "")) for number in (found[1], found[2] or "0"))
    return step, total if total and total >= step else None


def total_in(text: str) -> Optional[int]:
    """Return the last step as a line names it, such as `"total_steps": 200`; None: it does not."""
    found = _TOTAL.search(text.partition("\n")[0][:LINE_CHARACTERS])
    return int(found[1]) if found else None
