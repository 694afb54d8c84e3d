"""Shortens the noise of torch and torchrun.

The traceback of an agent that got SIGTERM, or whose rank failed, becomes one line. So does the
report about that rank, unless it has a traceback that the rank recorded. The page about the exit
barrier is left out if the run succeeded: one agent may exit before another one leaves the
barrier. It is held back until the end of the run is known, and shown in full after a failure.
The line about a failed rank loses its `of binary: PATH`: that is clusterctl's starter, not Python.

Ranks, too, warn of each connection from an address without a name: one line a log explains it.
"""

import re
from dataclasses import dataclass, field

from clusterctl.logs.entry import Entry, Source

TERMED = b"torchrun received SIG%s (its traceback: logs --raw)"
CLOSED = b"torchrun found its rendezvous closed: others had ended (its traceback: logs --raw)"
REPORTED = b"torchrun reported how its ranks ended (its report: logs --raw)"

NAMELESS = b"torch: peers have no name in reverse DNS, which does no harm (its lines: logs --raw)"

BARRIER_SECONDS = 30.0
"""How long the page about the exit barrier is held back."""
TRACEBACK_SECONDS = 2.0
"""How long a traceback or a report is held back for its last line."""
MOST_LINES = 400
_FIRST_LINES = 2
"""Of a report: its exception, and the upper edge of its box."""

_BARRIER = re.compile(
    rb"(?P<prefix>[EWI]\d{4} [^\]]*\] )?.*\bError waiting on exit barrier\. Elapsed"
)
_STORE = re.compile(rb"\[W\d{4} \S+ TCPStore\.cpp:\d+\] \[c10d\] \w+ failed on SocketImpl")
"""A lost store, as torch 2.13 prints it before the page about the barrier, with its own frames."""
_NAMELESS = re.compile(
    rb"(?:\[rank\d+\]:)?\[W[^\]]* socket\.cpp:\d+\] \[c10d\] "
    rb"The hostname of the client socket cannot be retrieved\. err=-?\d+\s*$"
)
_TRACEBACK = b"Traceback (most recent call last):"
_TERMED = re.compile(rb"[\w.]*\bSignalException: Process \d+ got signal: (\d+)$")
_BINARY = re.compile(rb"failed \(exitcode: -?\d+\) local_rank: \d+ \(pid: \d+\)(?= of binary: )")
_CLOSED = b"torch.distributed.elastic.rendezvous.api.RendezvousClosedError"
_CHILD_FAILED = b"torch.distributed.elastic.multiprocessing.errors.ChildFailedError"
_REPORT_EDGE = b"=" * 20
_REPORT = re.compile(
    rb"={20,}$|-{20,}$|.+ FAILED$|Failures:$|  <NO_OTHER_FAILURES>$|Root Cause \(first observed"
    rb"|\[\d+\]:$|  (?:time|host|rank|exitcode|error_file) *: "
    rb"|  traceback *: (?:To enable traceback see|Signal \d+)"
)
"""A line of the report on ranks that failed; one with a rank's own traceback does not fit."""
_GOES_ON = re.compile(
    rb"\s|$|Traceback \(|During handling of|The above exception|Exception raised from|frame #"
    rb"|<omitting python frames>|[A-Za-z_][\w.]*(?:Error|Exception)\b"
)
"""A traceback line without a prefix, as torch before 2.3 prints it."""
_NAMES = {b"15": b"TERM", b"2": b"INT", b"1": b"HUP", b"3": b"QUIT"}


@dataclass(slots=True)
class _Held:
    """Lines of one launcher that are held back."""

    until: float
    barrier: bool = False
    report: bool = False
    prefix: bytes = b""
    page: list[Entry] = field(default_factory=list)
    rest: list[Entry] = field(default_factory=list)
    """Lines after the page, held back to keep the order."""

    def belongs(self, data: bytes) -> bool:
        """Tell whether a line belongs to the page about the exit barrier."""
        if self.rest:
            return False
        if found := _BARRIER.match(data):  # after the page about the lost store
            self.prefix = found["prefix"] or b""
            return True
        return data.startswith(self.prefix) if self.prefix else bool(_GOES_ON.match(data))


class TorchrunNoise:
    """Passes launcher lines through, without the noise."""

    def __init__(self) -> None:
        """Hold nothing yet."""
        self._held: dict[Source, _Held] = {}
        self._launchers: set[Source] = set()
        """Logs in which a torchrun reported a failed rank; a script that starts one is a rank."""
        self._nameless: set[Source] = set()
        """Logs that have shown the line about peers without a name."""

    def take(self, entry: Entry, *, now: float) -> list[Entry]:
        """Add the next line; return the lines to show now."""
        data = entry.line.data
        if b"hostname of the client socket" in data and _NAMELESS.match(data):
            told = entry.source in self._nameless
            self._nameless.add(entry.source)
            return [] if told else [_short([entry], NAMELESS)]
        if _BINARY.search(data):
            self._launchers.add(entry.source)
        if entry.source.rank is not None and entry.source not in self._launchers:
            return [entry]
        return self._of_launcher(entry, now=now)

    def _of_launcher(self, entry: Entry, *, now: float) -> list[Entry]:
        data = entry.line.data
        held = self._held.get(entry.source)
        if held is None:
            found = _BARRIER.match(data)
            barrier = found is not None or _STORE.match(data) is not None
            if not barrier and data != _TRACEBACK:
                failed = _BINARY.search(data)
                return [entry if failed is None else _short([entry], data[: failed.end()])]
            seconds = BARRIER_SECONDS if barrier else TRACEBACK_SECONDS
            prefix = (found["prefix"] or b"") if found else b""
            held = _Held(now + seconds, barrier=barrier, prefix=prefix, page=[entry])
            self._held[entry.source] = held
            return []
        if held.barrier:
            (held.page if held.belongs(data) else held.rest).append(entry)
            return self._release(entry.source) if len(held.rest) > MOST_LINES else []
        held.page.append(entry)
        if held.report:
            return self._of_report(entry.source, held)
        ongoing = data[:1].isspace() and len(held.page) < MOST_LINES
        return [] if ongoing else self._end_of_traceback(entry.source, entry, now=now)

    def _of_report(self, source: Source, held: _Held) -> list[Entry]:
        """Return one line for a whole report, all lines if it is another one, else none yet."""
        data = held.page[-1].line.data
        if not _REPORT.match(data) or len(held.page) > MOST_LINES:
            return self._release(source)
        if not data.startswith(_REPORT_EDGE) or len(held.page) <= _FIRST_LINES:
            return []
        return [_short(self._release(source), REPORTED)]

    def _end_of_traceback(self, source: Source, last: Entry, *, now: float) -> list[Entry]:
        """Return a whole traceback; one line if it is torchrun's own, none yet before a report."""
        page = self._release(source)
        termed = _TERMED.match(last.line.data)
        if termed is not None:
            return [_short(page, TERMED % _NAMES.get(termed[1], termed[1]))]
        if last.line.data == _CLOSED:
            return [_short(page, CLOSED)]
        if not last.line.data.startswith(_CHILD_FAILED):
            return page
        # The frames are torchrun's; a report on the rank follows.
        self._held[source] = _Held(now + TRACEBACK_SECONDS, report=True, page=[last])
        return []

    def overdue(self, *, now: float) -> list[Entry]:
        """Return the lines that were held back long enough."""
        if not self._held:
            return []
        late = [source for source, held in self._held.items() if held.until <= now]
        return [entry for source in late for entry in self._release(source)]

    def flush(self, *, finished: bool) -> list[Entry]:
        """Return all lines held back; `finished`: the run succeeded on every node."""
        out: list[Entry] = []
        for held in self._held.values():
            out += held.rest if held.barrier and finished else held.page + held.rest
        self._held = {}
        return out

    def _release(self, source: Source) -> list[Entry]:
        held = self._held.pop(source)
        return held.page + held.rest


def _short(page: list[Entry], text: bytes) -> Entry:
    """Return one line instead of a page."""
    first = page[0]
    line = first.line._replace(end=page[-1].line.end, data=text, ending="\n")
    return first._replace(line=line)
