"""Types the commands of pages in a sandbox and writes down what they print.

`python docs/make_outputs.py [PAGE…]` does it for some pages, or for all.

A page is played if it has a comment `<!-- sandbox --nodes 3 -->`, with the options of `sandbox up`.
Its `console` blocks are typed in order, in one shell on the controller's side; so are commands in
comments, which prepare something that the reader has: `<!-- typed`.
`<!-- answer yes -->` before a block is what its last command is answered.
`<!-- picture NAME -->` after a block draws its last command as docs/pictures/NAME.svg.
`<!-- screen NAME COMMAND | TEXT -->` draws a command that fills the terminal, once it shows a text.
`<!-- file NAME -->` before a block of another language saves that block as a file; `>> NAME` adds
it to the end of one.

A line `...` of a block stands for any lines. What differs from run to run, such as times and the
ids of runs, may differ; a block that still holds is left as it is.
"""
# ruff: noqa: INP001  (a script, not a module of a package)

from __future__ import annotations

import base64
import fcntl
import io
import itertools
import os
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pyte
from pyte.screens import Char
from rich.console import Console
from rich.text import Text

DOCS = Path(__file__).resolve().parent
PICTURES = DOCS / "pictures"
WIDTH = 96
ROWS = 1000
SCREEN = (100, 18)
"""Columns and rows for a command that fills the terminal."""
LONGEST = 5000
"""Columns of a line that a program does not break; a page does not either."""
LIMIT_S = 300.0
"""For one command, also on a machine that is busy or slow."""
SHOWN_FOLDER = "/var/tmp/clusterctl-sandbox-0"  # noqa: S108  (text of a page)
SHOWN_PREFIX = "/home/ada/venv"

PART = re.compile(
    r"^<!-- (?P<kind>sandbox|typed|answer|picture|screen)(?P<words>.*?)-->$"
    r"|^<!-- file (?P<file>.*?) -->\n+```\w+\n(?P<content>.*?)^```$"
    r"|^```console\n(?P<block>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
MARK = re.compile(rb"\x1b]777;(\d+)\x07")
SHELL = r"""
printf '\033]777;%d\007' 0
while IFS= read -r typed; do
    eval "$(printf %s "$typed" | base64 -d)"
    printf '\033]777;%d\007' $?
done
"""
"""Reads commands, each in base64 on a line, and marks the end of each one."""
ENTER = "clusterctl sandbox exec -- bash"
"""The reader's shell on the controller's side; here, one that takes commands as the first does."""

VOLATILE = (
    (r"SHA256:[\w+/]{43}", "SHA256:…"),
    (r"\b\d{8}t\d{6}-\w{4}\b", "RUN"),
    (
        r"(?m)^\w{4} +(running|finished|failed|stopped) +[A-Z][a-z]{2} \d\d [\d:]{5}  \S+ +[\d/]+",
        r"RUN \1 TIME",
    ),
    (r"\(\d+ values?\)", "(VALUES)"),
    (r"(?m)^(differs|result) +\w{4} +\w{4}\b", r"\1 RUNS"),
    (r"(?m)^\w{4} has ([\d.]+ x the \S+ of) \w{4}\b", r"RUN has \1 RUN"),
    (r"\b[A-Z][a-z]{2} \d\d \d\d:\d\d\b", "TIME"),
    (r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?Z?", "TIME"),
    (r"\bcommit [0-9a-f]{12}\b", "commit"),
    (r"\b\d+(\.\d+)? (ms|s|min|h|days?)\b( \d+ s\b)?", "DURATION"),
    (r"\bstopped by \S+( on \S+)?", "STOPPED"),
    (r"\b\d+(\.\d+)? ([KMGT]i?B|Gb/s|Mbit/s)(/s)?", "SIZE"),
    (r"\b(\d+) checks", "CHECKS"),
    (r"\b\d+ (skipped|passed)", "COUNTED"),
    (r"(?s)held by .*?\bpid\s+\d+", "HOLDER"),
    (r"\b(pid|process) \d+", "PROCESS"),
    (r"\bloss \d+\.\d+", "LOSS"),
    (r"\bport [3-6]\d{4}\b", "PORT"),
    (r"\b[Ss]tep ?\d+", "STEP"),
    (r"(\bprogress .*\n *)?\bprinted .*", "PRINTED"),
    (r"\b\d+ %( to \d+ %)?", "PERCENT"),
    (r"-{3,}|={3,}", "---"),
    (r"[ \n]+", " "),
)
"""What differs from run to run, or with the width of a column."""


class PlayError(Exception):
    """A page cannot be played."""


@dataclass(frozen=True, slots=True)
class Typed:
    """A command that a block shows, and what is written below it."""

    command: str
    output: str

    def __str__(self) -> str:
        """Return both as a block shows them."""
        return f"$ {self.command}\n{self.output}"


def commands_of(block: str) -> list[Typed]:
    """Return the commands of a block; each is one line."""
    found: list[Typed] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append(Typed(line[2:], ""))
        elif not found:
            raise PlayError(f"expected a block to begin with `$ `, found {line!r}")
        else:
            found[-1] = replace(found[-1], output=f"{found[-1].output}{line}\n")
    return found


def comparable(output: str) -> str:
    """Return an output without what differs from run to run."""
    for pattern, word in VOLATILE:
        output = re.sub(pattern, word, output)
    return output.strip()


def holds(written: str, printed: str) -> bool:
    """Whether a page shows what was printed."""
    parts = re.split(r"^(?:\.\.\.|…)\n", written, flags=re.MULTILINE)
    pattern = ".*".join(re.escape(comparable(part)) for part in parts)
    return re.fullmatch(rf"\s*{pattern}\s*", comparable(printed), re.DOTALL) is not None


class Shell:
    """A shell on a terminal of its own: types a command and returns what the screen shows."""

    def __init__(self, environment: dict[str, str], folder: Path) -> None:
        """Start it in a folder."""
        self._master, slave = os.openpty()
        self._set_size(WIDTH, 50)
        self._echo(on=False)
        self._process = subprocess.Popen(
            ["bash", "-c", SHELL],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=folder,
            env={**environment, "PLAYED": SHELL},
            start_new_session=True,
        )
        os.close(slave)
        self._folder = folder
        self.screen = pyte.Screen(LONGEST, ROWS)
        self.exit_code = 0
        self.transcript = ""
        self._read("bash")

    def type(self, command: str, answer: str = "") -> str:
        """Type a command, wait for its end, and return what it printed, as a person sees it.

        `answer` is typed when the command asks `[y/N]`.
        """
        real = command.replace(ENTER, f'{ENTER} -c "$PLAYED"')
        line = base64.b64encode(real.encode()) + b"\n"
        os.write(self._master, line)
        printed = self._read(command, answer)
        for path, shown in {str(self._folder): SHOWN_FOLDER, sys.prefix: SHOWN_PREFIX}.items():
            printed = printed.replace(path, shown)
        self.transcript += f"$ {command}\n{printed}"
        return printed

    def watch(self, command: str, text: str) -> str:
        """Type a command that fills the terminal and ends with q; draw it once it shows a text."""
        screen = pyte.Screen(*SCREEN)
        stream = pyte.ByteStream(screen)
        self._set_size(*SCREEN)
        os.write(self._master, base64.b64encode(f"env -u COLUMNS {command}".encode()) + b"\n")
        until = time.monotonic() + LIMIT_S
        while text not in " ".join(" ".join(screen.display).split()):
            left = max(0, until - time.monotonic())
            if not left or not select.select([self._master], [], [], left)[0]:
                raise PlayError(f"{command}: no {text!r}:\n" + "\n".join(screen.display))
            stream.feed(os.read(self._master, 65536))
        os.write(self._master, b"q")
        self._read(command)
        self._set_size(WIDTH, 50)
        return picture(command, screen)

    def close(self) -> None:
        """End the shell, whatever it does."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        os.close(self._master)
        self._process.wait()

    def _set_size(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def _echo(self, *, on: bool) -> None:
        settings = termios.tcgetattr(self._master)
        settings[3] = settings[3] | termios.ECHO if on else settings[3] & ~termios.ECHO
        termios.tcsetattr(self._master, termios.TCSANOW, settings)

    def _read(self, command: str, answer: str = "") -> str:
        """Return the text of the screen when the next mark has come."""
        self.screen.reset()
        self.screen.set_mode(pyte.modes.LNM)
        stream, printed = pyte.ByteStream(self.screen), b""
        until = time.monotonic() + LIMIT_S
        while (mark := MARK.search(printed)) is None:
            ready, _, _ = select.select([self._master], [], [], max(0, until - time.monotonic()))
            if not ready:
                end = printed[-2000:].decode(errors="replace")
                raise PlayError(f"{command}: not over after {LIMIT_S:g} s; it printed\n{end}")
            printed += os.read(self._master, 65536)
            if answer and printed.endswith(b"[y/N] "):
                self._echo(on=True)
                os.write(self._master, f"{answer}\n".encode())
                answer = ""
        self._echo(on=False)
        self.exit_code = int(mark[1])
        stream.feed(printed[: mark.start()])
        lines = [_text(line).rstrip() for line in lines_of(self.screen)]
        return "\n".join(lines).rstrip() + "\n" if any(lines) else ""


def lines_of(screen: pyte.Screen) -> list[list[Char]]:
    """Return the cells of the lines down to the last one with text."""
    found = []
    for row in range(1 + max(screen.buffer, default=-1)):
        cells = screen.buffer[row]
        found.append([cells[column] for column in range(1 + max(cells, default=-1))])
    while found and not _text(found[-1]).strip():
        found.pop()
    return found


def _text(cells: Sequence[Char]) -> str:
    return "".join(cell.data for cell in cells)


def picture(command: str, screen: pyte.Screen) -> str:
    """Return a command and the screen that it left as an SVG, which loads nothing."""
    text = Text.assemble(("$ ", "green"), (command, "bold"), "\n")
    for cells in lines_of(screen):
        line = Text()
        for (fg, bold), alike in itertools.groupby(cells, key=lambda cell: (cell.fg, cell.bold)):
            color = {"default": "", "brown": "yellow"}.get(fg, fg)
            line.append(_text(list(alike)), f"{'bold ' if bold else ''}{color}")
        line.rstrip()
        text.append_text(line).append("\n")
    width = max(WIDTH, screen.columns % LONGEST)
    console = Console(record=True, width=width, file=io.StringIO())
    console.print(text, end="")
    svg = console.export_svg(title="", unique_id="terminal")
    # Nothing is loaded from other sites.
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)


@contextmanager
def sandbox(words: Sequence[str]) -> Iterator[Shell]:
    """Start a sandbox, enter it, and end it afterwards."""
    with tempfile.TemporaryDirectory(prefix="clusterctl-docs-") as folder:
        environment = _environment(Path(folder))
        shell = Shell(environment, Path(folder))
        try:
            if words != ["none"]:
                _do(shell, " ".join(["clusterctl sandbox up", *words]))
                _do(shell, ENTER)
            yield shell
        except PlayError as error:
            raise PlayError(f"{shell.transcript}{error}") from None
        finally:
            shell.close()
            down = [sys.executable, "-m", "clusterctl", "sandbox", "down"]
            subprocess.run(down, env=environment, check=True)


def _environment(folder: Path) -> dict[str, str]:
    kept = {key: os.environ[key] for key in ("LANG", "SSL_CERT_FILE") if key in os.environ}
    programs = Path(sys.executable).parent
    return {
        **kept,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "HOME": str(folder),
        "CLUSTERCTL_SANDBOXES": str(folder),
        "COLUMNS": str(WIDTH),
        "TERM": "xterm-256color",
        "EXAMPLES": str(DOCS.parent / "examples"),
    }


def _do(shell: Shell, command: str) -> None:
    printed = shell.type(command)
    if shell.exit_code:
        raise PlayError(f"{command}: exit code {shell.exit_code}: {printed}")


@dataclass(frozen=True, slots=True)
class Played:
    """A page with the output of now, and what it had of it."""

    text: str
    pictures: dict[str, str]
    changed: tuple[tuple[Typed, str], ...]
    """The commands whose output a page shows otherwise, each with the output of now."""


def is_played(text: str) -> bool:
    """Whether a page wants to be played."""
    return any(part["kind"] == "sandbox" for part in PART.finditer(text))


def play(text: str) -> Played:
    """Type all commands of a page and return it with their output.

    Raises:
        PlayError: A command does not end, or one that prepares something fails.
    """
    parts = list(PART.finditer(text))
    (options,) = (part["words"].split() for part in parts if part["kind"] == "sandbox")
    changed: list[tuple[Typed, str]] = []
    pictures = {}
    written: list[str] = []
    end, last, answer = 0, "", ""
    with sandbox(options) as shell:
        for part in parts:
            written.append(text[end : part.start()])
            end = part.end()
            if part["kind"] == "typed":
                _do(shell, "set -e\n" + part["words"].strip() + "\nset +e")
            elif part["kind"] == "answer":
                answer = part["words"].strip()
            elif part["kind"] == "picture":
                pictures[part["words"].strip()] = picture(last, shell.screen)
            elif part["kind"] == "screen":
                name, typed = part["words"].strip().split(maxsplit=1)
                pictures[name] = shell.watch(*map(str.strip, typed.split("|")))
            elif part["file"] is not None:
                name = part["file"] if part["file"].startswith(">") else f"> {part['file']}"
                _do(shell, f"cat {name} <<'END-OF-FILE'\n{part['content']}END-OF-FILE")
            elif part["block"] is not None:
                block = []
                for typed in (shown := commands_of(part["block"])):
                    printed = shell.type(typed.command, answer if typed is shown[-1] else "")
                    last = typed.command
                    if not holds(typed.output, printed):
                        changed.append((typed, printed))
                        typed = Typed(typed.command, printed)  # noqa: PLW2901
                    block.append(str(typed))
                written.append(f"```console\n{''.join(block)}```")
                answer = ""
                continue
            written.append(part.group())
    return Played("".join([*written, text[end:]]), pictures, tuple(changed))


def main(names: Sequence[str]) -> None:
    """Play pages, by default all, and write what changed."""
    pages = [Path(name) for name in names] or sorted(DOCS.rglob("*.md"))
    for page in pages:
        if not is_played(text := page.read_text("utf-8")):
            continue
        played = play(text)
        page.write_text(played.text, "utf-8")
        PICTURES.mkdir(exist_ok=True)
        for name, svg in played.pictures.items():
            (PICTURES / f"{name}.svg").write_text(svg, "utf-8")
        print(f"{page}: {len(played.changed)} outputs changed", file=sys.stderr)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
