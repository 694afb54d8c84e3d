"""Prints what differs between runs, and what came of it; and what happened in a run."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from rich.console import Console

from clusterctl.checks.wording import counted, size_of
from clusterctl.inventory.ranges import fold_hosts
from clusterctl.report.console import Screen, print_table, safe_text
from clusterctl.report.lines import duration, utc
from clusterctl.verbs.compare.comparison import Comparison, RunOutcome, Speedup
from clusterctl.verbs.compare.differences import BLOCKS
from clusterctl.verbs.compare.timeline import Moment
from clusterctl.verbs.events import Notice

NOT_RECORDED = "not recorded"
_FILES = 5
"""Of a commit that are named."""

Row = tuple[str, tuple[str, ...]]


def show_comparison(screen: Screen, found: Comparison, *, typed: str) -> None:
    """Print first what differs, then what is equal in one line, then what came of it.

    `typed` is the command, for the hint.
    """
    out = screen.out
    labels = labels_of(found.runs)
    heads = tuple(labels.values())
    if found.differences:
        _print_rows(out, ("differs", *heads), difference_rows(found))
    else:
        out.print("nothing that is recorded differs")
    if found.all_same:
        out.print(safe_text(f"same: {found.all_same}"))
    for line in (*commit_lines(found), *gap_lines(found)):
        out.print(safe_text(line))
    out.print()
    rows = result_rows(found)
    if rows[0] == ("name", heads):
        rows[0] = ("id", tuple(one.short for one in found.runs))
    _print_rows(out, ("result", *heads), rows)
    for line in speedup_lines(found.speedups, found.runs):
        out.print(safe_text(line))
    if missing := [labels[one.run] for one in found.runs if not one.metrics]:
        text = f"no metrics of {', '.join(missing)}: no speed and no loss to compare"
        hint = f"name the file: {typed} --metrics PATH"
        screen.say(Notice(text=text, level="warning", hint=hint))


def labels_of(runs: Sequence[RunOutcome]) -> dict[str, str]:
    """Return what to call each run: its name if each has one of its own, else its short id."""
    named = len({one.name for one in runs if one.name}) == len(runs)
    return {one.run: one.name if named else one.short for one in runs}


def difference_rows(found: Comparison) -> list[Row]:
    """Return what differs, a row each; where a block begins, its name stands before."""
    return [
        (f"{one.block}: {one.what}", tuple(NOT_RECORDED if v is None else v for v in one.values))
        for one in found.differences
    ]


def commit_lines(found: Comparison) -> Iterator[str]:
    """Yield which files the commits differ in, and the command that shows how."""
    labels = labels_of(found.runs)
    for one in found.commits:
        between = f"{labels[found.runs[0].run]} and {labels[one.run]}"
        files = ", ".join(one.files[:_FILES])
        more = f" and {len(one.files) - _FILES} more" if len(one.files) > _FILES else ""
        changed = f"{counted(len(one.files), 'file')} changed{files and ': '}{files}{more}"
        yield f"code: between the commits of {between}, {changed}"
        yield f"  to see how: {one.command}"


def gap_lines(found: Comparison) -> Iterator[str]:
    """Yield what could not be compared, and for which runs."""
    labels = labels_of(found.runs)
    for block in BLOCKS:
        if runs := found.not_recorded.get(block):
            yield f"{block}: {NOT_RECORDED} for {', '.join(labels[run] for run in runs)}"


def _number(value: float | None, shape: Callable[[float], str]) -> str:
    return NOT_RECORDED if value is None else shape(value)


def _loss(value: float) -> str:
    return f"{value:.4f}"


def _seconds(value: float) -> str:
    return f"{value:.3f} s" if value < 100 else duration(value)  # noqa: PLR2004


def result_rows(found: Comparison) -> list[Row]:
    """Return what came of the runs, a row each; what no run has is left out."""
    runs = found.runs
    rows: list[Row] = [
        ("name", tuple(one.name for one in runs)),
        ("state", tuple(_state(one) for one in runs)),
        ("ranks", tuple(_number(one.ranks, str) for one in runs)),
        ("took", tuple(_number(one.took_s, duration) for one in runs)),
        ("steps", tuple(_number(one.steps, str) for one in runs)),
        ("tokens/s", tuple(_number(one.tokens_per_s, lambda x: f"{x:,.0f}") for one in runs)),
        ("step, median", tuple(_number(one.step_median_s, _seconds) for one in runs)),
        ("step, p95", tuple(_number(one.step_p95_s, _seconds) for one in runs)),
    ]
    rows += [(f"loss at step {at.step}", tuple(map(_loss, at.losses))) for at in found.losses]
    rows += [
        ("last loss", tuple(_number(one.loss, _loss) for one in runs)),
        ("eval loss", tuple(_number(one.eval_loss, _loss) for one in runs)),
        ("memory", tuple(_number(one.memory_bytes, lambda x: size_of(int(x))) for one in runs)),
        ("GPU use, mean", tuple(_number(one.gpu_percent, "{:.0f} %".format) for one in runs)),
        ("CPU use, mean", tuple(_number(one.cpu_percent, "{:.0f} %".format) for one in runs)),
        ("attempts", tuple(_attempts(one) for one in runs)),
        ("lost", tuple(duration(one.lost_s) if one.lost_s else "" for one in runs)),
    ]
    return [row for row in rows if set(row[1]) - {"", NOT_RECORDED}]


def _attempts(one: RunOutcome) -> str:
    again = f", {one.restarts} restarts by the launcher" if one.restarts else ""
    return f"{one.attempts}{again}" if one.attempts > 1 or again else ""


def _state(one: RunOutcome) -> str:
    by = f" (by {one.ended_by})" if one.ended_by and one.state != "finished" else ""
    return f"{one.state}{by}{f': {one.why}' if one.why else ''}"


def speedup_lines(speedups: Sequence[Speedup], runs: Sequence[RunOutcome]) -> Iterator[str]:
    """Yield how much faster each run is than the first one."""
    labels = labels_of(runs)
    for one in speedups:
        first = labels[runs[0].run]
        line = f"{labels[one.run]} has {one.speedup:.2f} x the {one.measured} of {first}"
        if one.efficiency is not None:
            line += f" with {one.ranks:.3g} x the ranks: scaling efficiency {one.efficiency:.0%}"
        elif one.ranks not in {None, 1.0}:
            line += (
                f" with {one.ranks:.3g} x the ranks; efficiency unknown: tokens are not recorded"
            )
        yield line


def show_moments(screen: Screen, moments: Iterable[Moment]) -> None:
    """Print what happened in a run, a line each."""
    rows = [(f"{utc(one.time)[:19]}Z", where(one), moment_words(one)) for one in moments]
    if rows:
        print_table(screen.out, ("when", "where", "what"), rows)
    else:
        screen.say(Notice(text="nothing that happened is recorded"))


def moment_words(one: Moment) -> str:
    """Return what happened, and by whom."""
    return f"{one.what} by {one.by}" if one.by and one.by not in one.what else one.what


def where(one: Moment) -> str:
    """Return on which nodes something happened."""
    return fold_hosts(one.nodes) if one.nodes else "controller"


def _print_rows(console: Console, heads: Sequence[str], rows: Iterable[Row]) -> None:
    print_table(console, heads, ((title, *cells) for title, cells in rows))
