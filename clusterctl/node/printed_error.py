"""Finds the error that ended a program in what it printed last, and tells whether it is an echo.

An echo is what a rank prints because another one exited, or did not come to a collective.
The supervisor gives other ranks time for their own lines after one; `logs` names the first cause.
"""

from __future__ import annotations

import re
from typing import List, NamedTuple, Optional, Sequence, Tuple

_FRAMES = (
    r"frame #\d+: |#\d+ \S.* from \S+:\d+$|C\+\+ CapturedTraceback:|<omitting python frames>"
    r"|Exception raised from .* at \S+:\d+"
)
_PREFIX = r"(?:\[(?:rank|default)\d+\]: ?)?"
FRAME = re.compile(_PREFIX + "(?:%s)" % _FRAMES)
"""A line of a C++ stack."""
NOISE = re.compile(
    _PREFIX
    + r"(?:\[W\d{2,} .*(?:\[c10d\]|\.(?:cpp|hpp):\d+\])|W\d{4} .*torch/distributed/|"
    + _FRAMES
    + ")"
)
"""Warnings of torch's c10d about peers that exited, and C++ frames."""
_TORCH_LOG = re.compile(r"\[[EIF]\d* ?(?:[\d:.]+ )?(?:\d+ )?\w+\.(?:cpp|hpp):\d+\] ")
_NEUTRAL = re.compile(
    r"To avoid data inconsistency|Some NCCL operations have failed|Aborted|Segmentation fault"
    r"|Extension modules: |Current thread 0x|Thread 0x|CUDA kernel errors might be|Search for `cuda"
    r"|For debugging consider|Compile with `TORCH_USE_CUDA_DSA`|Last error:|nccl\w+: |\s"
)
"""What belongs to an error and is not the program's own output."""

_TRACEBACK = re.compile(r"(?:Original )?Traceback \(most recent call last\):$")
_CHAINED = re.compile(
    r"During handling of the above exception|The above exception was the direct cause"
)
_SIDE = re.compile(r"Exception (?:ignored )?in[ :]|Error in atexit|Error in sys\.excepthook")
"""What Python says in front of an exception that ends no program."""
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Failure)(?![\w.])")
_OF_A_CHILD = re.compile(
    r"(?:[\w.]+\.)?(?:CalledProcessError: .* returned non-zero exit status|ChildFailedError\b)"
)
"""What a program raises because one that it started has failed, which said why above."""
_TERMINATE = re.compile(r"terminate called (?:after throwing|without an active|recursively)")
_WITHOUT_WORDS = re.compile("terminate called without an active exception")
_WHAT = re.compile(r"\s*what\(\):\s+")
FATAL = re.compile(r"Fatal Python error: ")
"""What Python says of a crash, in front of the stacks of all threads."""
_ABORTED = re.compile(FATAL.pattern + "Aborted")
_WATCHDOG = re.compile(
    r"Watchdog caught collective operation timeout|watchdog got stuck for"
    r"|Aborting process on rank \d+ due to |CUDA error during (?:start|end) event query: "
)
"""The last two: torch 2.15, whose NCCL backend is another one."""
_NCCL = re.compile(r"\bNCCL error\b", re.IGNORECASE)
_NCCL_NAME = re.compile(r"(nccl[A-Z]\w+): ")
_NCCL_WORDS = "NCCL Last Error: "
"""In front of what NCCL said last, on a line of its own (torch 2.15)."""
_NCCL_NAMES = {
    "remote process exited": "ncclRemoteError", "unhandled system error": "ncclSystemError",
    "unhandled cuda error": "ncclUnhandledCudaError", "invalid usage": "ncclInvalidUsage",
    "internal error": "ncclInternalError",
}  # fmt: skip
"""What torch 2.15 prints of an error → its name."""
_NCCL_LINES = 6
"""After the line of an NCCL error, where its name and its last words are looked for."""

WAITED = re.compile(
    r"\bwatchdog caught collective operation timeout\b|\bdump signal\b"
    r"|\btimed out waiting \d+ms for (?:recv|send)\b|\bapplication timeout caused pair closure\b"
    r"|\btimed out after \d+ seconds waiting for clients\b|\bwait timeout after \d+ ?ms, keys:"
    r"|\bfailed to (?:pass|reach) monitoredbarrier\b|\bcollective operation timeout\b"
    r"|\bgot error: (?:timeout|wait timeout|socket timeout)\b"
    r"|\bnccl operation timed out\b|\baborting process on rank \d+ due to timeout\b",
    re.IGNORECASE,
)
"""What a rank prints that waited in vain for another one."""

_CLOSED = re.compile(
    r"\bconnection (?:reset|closed|refused|aborted) by (?:remote )?peer\b"
    r"|\bbrokenpipeerror\b|\bbroken pipe\b|\bsocket closed\b|\bremote process exited\b"
    r"|\bnccl(?:remote|system)error: (?:a call failed|system call)|\bunhandled system error\b"
    r"|\bnccl communicator was aborted\b"
    r"|\bnccl\w+error: .*(?:\bconnection refused\b|\bproxy call to rank\b|\bsocket recv failed\b"
    r"|\bgot completion from peer\b|\bcaused connection abort\b)"
    r"|\bdistnetworkerror\b(?!.*\bfailed to listen\b)(?!.*\blocalhost\b)(?!.*\b127\.0\.0\.)"
    r"|\brendezvous(?:connection|closed|timeout)error\b"
    r"|\bfailed to recv, got 0 bytes\b"
    # Not device.cc: an interface without an address is a cause of its own.
    r"|\bgloo/transport/tcp/(?!device\b)\w+\.cc\b",
    re.IGNORECASE,
)
_OF_RANKS = re.compile(r"\bgloo\b|\bnccl\w*error\b|\bdist(?:network|backend)error\b", re.IGNORECASE)
_OF_HTTP = re.compile(
    r"HTTPS?Connection|requests\.exceptions|urllib3|httpx|huggingface|'Connection aborted"
    r"|botocore|aiohttp|wandb"
)
"""A server outside of the run closed that connection."""


CLOSED_GRACE = 5.0
"""Seconds for the lines of others: the process that disconnected may still print why."""
TIMEOUT_GRACE = 10.0
"""Seconds after a timeout: the others began to wait later, and print later where."""


class PrintedError(NamedTuple):
    """An error that a program printed."""

    line: str
    """The one line to show."""
    at: int
    """The index of its line."""
    begins: int
    """The index of the first line that belongs to it."""
    side: bool = False
    """Python went on: in a thread, at exit, in a destructor."""
    chained: bool = False
    """It was raised while the one before it was handled."""
    echo: bool = False
    """It followed from the end or the absence of another rank."""
    final: bool = False
    """Nothing of the program's own output follows."""


def echoes(line: str) -> bool:
    """Tell whether a line is what a rank prints because of another rank."""
    if WAITED.search(line):
        return True
    return bool(_CLOSED.search(line)) and not _OF_HTTP.search(line)


def last_error(lines: Sequence[str]) -> PrintedError:
    """Return the error that ended the program; its line is empty if none was printed.

    What fails later, at exit or in a thread, does not hide the error that came first.
    """
    errors, ordinary = _errors(lines)
    main = [error for error in errors if not error.side] or errors[-1:]
    main = [error for error in main if not _OF_A_CHILD.match(plain(error.line))] or main
    if not main:
        return PrintedError("", len(lines), len(lines))
    found = last = main[-1]
    for earlier in reversed(main[:-1]):
        adjacent = not any(earlier.at < index < last.begins for index in ordinary)
        if not (last.chained or adjacent):
            break
        if _WITHOUT_WORDS.match(found.line):  # it aborted while that exception ended it
            found = earlier
        elif earlier.echo and not found.echo:
            wraps = last.chained and _OF_RANKS.search(earlier.line)
            found = found._replace(echo=bool(wraps) and not _OF_HTTP.search(found.line))
        elif not earlier.echo and (found.echo or _native(found)):
            found = earlier
        last = earlier
    # What names a side error is no output of the program either.
    return found._replace(final=not any(index > found.at for index in ordinary))


def lines_grace(lines: Sequence[str]) -> Optional[float]:
    """Return how long other ranks may print, before they are ended because of these last lines.

    None: these say by themselves why the rank failed.
    """
    kept = [line for line in lines if not NOISE.match(line)]
    error = last_error(kept)
    said = error.line or next((line for line in reversed(kept) if line.strip()), "")
    if not (error.echo if error.line else echoes(said)):
        return None
    return TIMEOUT_GRACE if WAITED.search(said) else CLOSED_GRACE


def all_errors(lines: Sequence[str]) -> List[PrintedError]:
    """Return all errors that were printed, also those after which the program went on."""
    return _errors(lines)[0]


def _native(error: PrintedError) -> bool:
    return not _EXCEPTION.match(plain(error.line))


def plain(line: str) -> str:
    """Return a line without the prefixes of torch."""
    return _TORCH_LOG.sub("", re.sub("^" + _PREFIX, "", line), count=1)


def _errors(lines: Sequence[str]) -> Tuple[List[PrintedError], List[int]]:
    """Return the errors, and the indices of the lines that are the program's own output."""
    texts = [plain(line) for line in lines]
    errors: List[PrintedError] = []
    ordinary: List[int] = []
    before = ""
    index = 0
    while index < len(lines):
        text, begins = texts[index], index
        if _TRACEBACK.match(text.strip()):
            side, chained = bool(_SIDE.match(before)), bool(_CHAINED.match(before))
            # A rank that was killed did not finish its traceback.
            index = _after_frames(texts, index + 1)
            if index < len(lines):
                shown, index = _shown(lines[index], texts, index)
                errors.append(PrintedError(shown, index, begins, side, chained, echo=echoes(shown)))
        elif _TERMINATE.match(text):
            shown, index = _terminate(texts, index)
            errors.append(PrintedError(shown, index, begins, echo=echoes(shown)))
        elif _ABORTED.match(text) and errors and not (ordinary and ordinary[-1] > errors[-1].at):
            pass  # the error above it called abort()
        elif FATAL.match(text) or _WATCHDOG.search(text):
            errors.append(PrintedError(text.strip(), index, begins, echo=echoes(text)))
        elif _EXCEPTION.match(text.strip()) and not text.startswith("  "):
            shown, index = _shown(lines[index], texts, index)
            side = bool(_SIDE.match(before))
            errors.append(PrintedError(shown, index, begins, side, echo=echoes(shown)))
        elif text.strip() and not _neutral(lines[index], text):
            ordinary.append(index)
        if index < len(lines) and texts[index].strip() and not NOISE.match(lines[index]):
            before = texts[index]
        index += 1
    return errors, ordinary


def _neutral(line: str, text: str) -> bool:
    known = _NEUTRAL.match(text) or _SIDE.match(text) or _CHAINED.match(text)
    return bool(known or NOISE.match(line) or _TORCH_LOG.search(line))


def _after_frames(texts: Sequence[str], index: int) -> int:
    """Return the index of the line of the exception: the first that is not indented."""
    while index < len(texts) and (not texts[index].strip() or texts[index][:1] == " "):
        index += 1
    return index


def _shown(line: str, texts: Sequence[str], index: int) -> Tuple[str, int]:
    """Return what to show for an exception whose line is at `index`, and where it ends.

    Of an error of NCCL that is what NCCL said last, which torch prints below it.
    """
    shown = line.strip()
    following = texts[index + 1].strip() if index + 1 < len(texts) else ""
    if following.startswith(_NCCL_WORDS):
        name = next((one for said, one in _NCCL_NAMES.items() if said in shown), "NCCL error")
        return "%s: %s" % (name, following[len(_NCCL_WORDS) :]), index + 1
    if not _NCCL.search(shown):
        return shown, index
    name, words, last = "", "", index
    for at in range(index + 1, min(index + 1 + _NCCL_LINES, len(texts))):
        text = texts[at].strip()
        found = _NCCL_NAME.match(text)
        if found:
            name, last = found[1], at
        elif text == "Last error:":
            rest = texts[at + 1].strip() if at + 1 < len(texts) else ""
            words = "" if FRAME.match(rest) or _TRACEBACK.match(rest) else rest
            last = at + bool(words)
            break
    return ("%s: %s" % (name or "NCCL error", words) if words else shown), last


def _terminate(texts: Sequence[str], index: int) -> Tuple[str, int]:
    """Return what a C++ exception said, and the index of that line."""
    for at in range(index + 1, min(index + 4, len(texts))):
        what = _WHAT.match(texts[at])
        if what:
            return _shown(texts[at][len(what[0]) :], texts, at)
    return texts[index].strip(), index
