"""Prints the stacks of a run's ranks, and why the run stands still."""

import itertools
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from clusterctl.checks.wording import counted
from clusterctl.hang.doing import (
    Doing,
    all_doing,
    at_work,
    is_own,
    spot,
    stopped,
    waits_for,
    waits_for_batch,
)
from clusterctl.hang.verdict import verdict
from clusterctl.inventory.ranges import fold_hosts
from clusterctl.logs.entry import Folded, Source
from clusterctl.logs.lines import Line
from clusterctl.model.dump import Frame, NodeDump, ProcessDump, RankDump, ThreadStack
from clusterctl.report.console import Screen, listed, safe_text
from clusterctl.report.lines import age
from clusterctl.safe_text import strip_controls
from clusterctl.verbs.dump.dump import DumpResult
from clusterctl.verbs.events import Notice
from clusterctl.verbs.runs.run_state import LIVE


def show_verdict(console: Console, dumps: Sequence[NodeDump], missing: Sequence[str] = ()) -> None:
    """Print the stacks of all ranks, equal ones once, then the verdict and what to type."""
    found = verdict(dumps, missing)
    for line in fold(dumps):
        console.print(safe_text(f"[{line.label}] {line.line.text}"), soft_wrap=True)
    console.print(safe_text(found.text, "bold yellow"), soft_wrap=True)
    if found.remedy:
        console.print(safe_text(f"hint: {found.remedy}"), soft_wrap=True)


_STATES = {"D": "waits in the kernel, uninterruptibly", "T": "is stopped", "t": "is traced"}
_SHOWN_FRAMES = 12
_SHOWN_LABELS = 4
_PLACE_LIMIT = 200
"""Characters of a function, and of a file's name: a function of C++ has its templates in it."""
_LIBRARY = re.compile(r"^/.*/(?:lib/python3\.\d+|site-packages|dist-packages)/")
"""Where an interpreter keeps what is not the user's own code."""
_MOST_WARNINGS, _WORDS_LIMIT = 16, 500
"""Of what nodes say that they could not see, and characters of each."""


def show_dump(
    screen: Screen, result: DumpResult, *, every_thread: bool, folder: Path | None
) -> None:
    """Print the stacks on stdout, and on stderr what is missing."""
    _show_age(screen.out, result)
    for dump in result.dumps:
        if folder is not None:
            screen.out.print(safe_text(folder / f"{dump.node}.json"), soft_wrap=True)
            continue
        for words in dump.throttled:
            screen.out.print(safe_text(f"{dump.node}: {words}", "yellow"))
        if not result.whole:
            _show_ranks(screen.out, dump, every_thread=every_thread)
    if result.whole and result.dumps and folder is None:
        show_verdict(screen.out, result.judged, result.untold)
        _say_unseen(screen, result)
    show_missing(screen, result)


def show_missing(screen: Screen, result: DumpResult) -> None:
    """Warn of what could not be had."""
    told = {dump.node for dump in result.dumps}
    words = [
        (f"the run is {state} here, and kept no stacks", node)
        for node, state in result.states.items()
        if node not in told
    ]
    words += [(note, node) for node, note in result.notes.items()]
    for text in dict.fromkeys(text for text, _ in words):
        nodes = fold_hosts([node for each, node in words if each == text])
        screen.say(Notice(node=nodes, text=text, level="warning"))
    screen.show_errors(result.silent)


def _say_unseen(screen: Screen, result: DumpResult) -> None:
    """Warn of what the stacks lack, once for all ranks that lack the same."""
    lacking: dict[str, dict[str, None]] = {}
    for dump in result.dumps:
        for rank in dump.ranks:
            for process in rank.processes:
                if process.missing:
                    label = f"{dump.node}:{rank.rank}"
                    lacking.setdefault(process.missing, {})[label] = None
        for words in dump.unheard[:_MOST_WARNINGS]:
            lacking.setdefault(words, {})[dump.node] = None
    for words, labels in itertools.islice(lacking.items(), _MOST_WARNINGS):
        text = f"[{listed(list(labels), _SHOWN_LABELS)}] not seen: {words[:_WORDS_LIMIT]}"
        screen.say(Notice(text=text, level="warning"))


def _show_age(console: Console, result: DumpResult) -> None:
    """Print how old the stacks are that nodes had kept."""
    kept = [one for one in result.dumps if result.states.get(one.node) not in LIVE]
    if kept:
        times = [one.time for one in kept]
        ages = (age(time.time() - moment) for moment in (max(times), min(times)))
        spread = " to ".join(dict.fromkeys(ages))
        text = f"as it was {spread} ago: {listed([one.node for one in kept], _SHOWN_LABELS)}"
        console.print(safe_text(text, "yellow"), soft_wrap=True)


def _show_ranks(console: Console, dump: NodeDump, *, every_thread: bool) -> None:
    """Print the stacks of a node's ranks in full."""
    for rank in dump.ranks:
        console.print(safe_text(f"[{dump.node}:{rank.rank}] {_about(rank)}", "bold"))
        for process in rank.processes:
            for line in _process(process, rank, every_thread=every_thread):
                console.print(safe_text(f"  {line}"), soft_wrap=True)
        for stuck in rank.connections:
            text = (
                f"{counted(stuck.unacknowledged_bytes, 'byte')} to {stuck.peer}:{stuck.port}"
                f" not acknowledged, sent again {counted(stuck.retransmits, 'time')}"
            )
            console.print(safe_text(f"  {text}", "yellow"), soft_wrap=True)


def _about(rank: RankDump) -> str:
    """Return what a rank does, in one line."""
    if not rank.processes:
        return "has ended" if rank.ended else "no process"
    parts = [f"pid {rank.processes[0].pid}"]
    if rank.cpu_percent is not None:
        parts.append(f"CPU {rank.cpu_percent} %")
    if rank.printed_s is not None:
        parts.append(f"printed {age(rank.printed_s)} ago")
    if rank.quiet_s is not None:
        parts.append(f"no sign of life for {age(rank.quiet_s)}")
    return ", ".join(parts)


def _process(process: ProcessDump, rank: RankDump, *, every_thread: bool) -> Iterator[str]:
    """Yield the lines of a process: of a rank's own always, of a child if it tells something."""
    own = process is rank.processes[0]
    threads = process.threads if every_thread else process.threads[:1]
    threads = tuple(one for one in threads if one.frames or one.wait or one.state in _STATES)
    if not own:
        yield f"pid {process.pid} {process.command}"
    if process.swap_bytes:
        yield f"{counted(process.swap_bytes, 'byte')} of it are swapped out"
    for thread in threads:
        yield f"thread {thread.name or thread.id}{_state(thread)}"
        frames = thread.frames if every_thread else thread.frames[:_SHOWN_FRAMES]
        for frame in frames:
            yield f"  {_place(frame)}"
            yield from (f"    {value}" for value in frame.locals)
        left = len(thread.frames) - len(frames)
        if left:
            yield f"  … {counted(left, 'more frame')}: --rank {rank.rank} shows them"
    if process.missing:
        yield f"not seen: {process.missing}"


def _state(thread: ThreadStack) -> str:
    """Return what the kernel says of a thread."""
    if words := _STATES.get(thread.state):
        where = f" in {thread.wait}" if thread.wait and thread.state == "D" else ""
        return f" {words}{where}"
    if thread.wait:
        return f" waits in {thread.wait}"
    return " runs" if thread.state == "R" else ""


def _place(frame: Frame) -> str:
    file = _LIBRARY.sub("", frame.file)
    where = f"{file}:{frame.line}" if frame.line else file
    return f"{frame.function[:_PLACE_LIMIT]}  {where[-_PLACE_LIMIT:]}".rstrip()


MOST_CALLERS = 3
"""Lines of the user's own code that are shown of a stack, innermost first."""


def fold(dumps: Sequence[NodeDump]) -> list[Folded]:
    """Return a line for each place that ranks are at, the one with most ranks first."""
    places: dict[str, list[Source]] = {}
    for one in all_doing(dumps):
        for line in _lines(one):
            places.setdefault(line, []).append(Source(one.node, one.rank))
    ordered = sorted(places.items(), key=lambda item: -len(item[1]))
    return [
        Folded(tuple(dict.fromkeys(sources)), Line(0, len(data), data, "\n"), 0.0)
        for data, sources in ((line.encode(errors="replace"), sources) for line, sources in ordered)
    ]


def _lines(one: Doing) -> list[str]:
    """Return what a rank's main thread does, and a line for each worker that loads a batch."""
    if one.own is None:
        return ["has ended" if one.dump.ended else "no process is seen"]
    lines = [_line(one.main, one.operation, "stopped" if stopped(one.own) else "")]
    loading = ((worker, at_work(worker)) for worker in one.workers)
    lines += [
        f"its worker: {_line(thread, note='stopped' if stopped(worker) else '')}"
        for worker, thread in loading
        if thread
    ]
    return list(dict.fromkeys(lines))


def _line(thread: ThreadStack, operation: str = "", note: str = "") -> str:
    """Return `all_reduce (torch) ← train.py:88 train_step ← train.py:120 main`."""
    own = [spot(frame) for frame in thread.frames if is_own(frame)][:MOST_CALLERS]
    batch = "DataLoader" if waits_for_batch(thread) else ""
    first = operation or batch
    if not (own or first):
        first = spot(next(iter(thread.frames), None)) or thread.wait
    elif first:
        first += " (torch)"
    stack = " ← ".join(filter(None, (first, *own))) or "unknown"
    note = note or ("" if operation or batch else waits_for(thread))
    return strip_controls(f"{stack} ({note})" if note else stack)
