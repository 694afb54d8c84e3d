"""A pytest plugin: under `make test`, a session that leaves anything on the machine fails.

By hand, where a person may have cut a test short, it only names what was left.

A session has a folder of its own, which every process that it starts sees as TMPDIR. What names
that folder, a `tmp_path` or a pid of the session is the session's; others are not blamed.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

PREFIX = "clusterctl-tests-"
STRICT = "CLUSTERCTL_TESTED"
"""Set by `make test`."""
SHARED = tuple(map(Path, ("/tmp", "/var/tmp", "/run", "/dev/shm")))
CGROUPS = Path("/sys/fs/cgroup")
SANDBOXES = Path(f"/var/tmp/clusterctl-sandbox-{os.getuid()}")
ENDING_SECONDS = 20.0
"""How long a process that was killed may take to end."""

OF_OTHERS = re.compile(r"(torchelastic_|torchinductor_|pymp-).*")
"""In TMPDIR: torch always leaves these, multiprocessing until its process exits."""
UNTIL_WE_EXIT = ("multiprocessing.forkserver", "multiprocessing.resource_tracker")

_SESSION = pytest.StashKey["Session"]()


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One run of pytest with its workers."""

    folder: Path
    """Its TMPDIR."""
    basetemp: Path
    """Where pytest makes each `tmp_path`."""

    @property
    def workers(self) -> Path:
        """A folder with a file per process that ran tests, named after its pid."""
        return self.folder / "workers"

    def owns_name(self, name: str) -> bool:
        """Tell whether a name holds the pid of one of our processes, as a sandbox's does."""
        return any((self.workers / number).exists() for number in re.findall(r"\d+", name))

    def owns_text(self, text: str) -> bool:
        """Tell whether a command line, an environment or a mount names something of ours."""
        if str(self.folder) in text or f"{self.basetemp}/" in text:
            return True
        return any(map(self.owns_name, re.findall(rf"{SANDBOXES}/([^/\s]+)", text)))

    def left(self) -> list[str]:
        """Return what we left, a line each."""
        return [
            *(f"process {process}" for process in self.processes()),
            *(f"file {path}" for path in self.files()),
            *(f"mount {line}" for line in self.mounts()),
        ]

    def files(self) -> list[Path]:
        """Return our files and folders in TMPDIR and in shared folders; control groups too."""
        shared = [
            *(path for folder in SHARED for path in folder.glob("*clusterctl-[a-z]*")),
            *(path for folder in SHARED for path in folder.glob("cctl-*")),
            *(path for depth in ("", "*/") for path in CGROUPS.glob(f"{depth}clusterctl-*")),
            *SANDBOXES.glob("*"),
        ]
        private = [p for p in self.folder.iterdir() if not OF_OTHERS.fullmatch(p.name)]
        own = {path for path in shared if self.owns_name(path.name)} | set(private)
        return sorted(own - {self.folder, self.workers})

    def processes(self) -> list[str]:
        """Return our processes that do not end; a network namespace ends with its last one."""
        until = time.monotonic() + ENDING_SECONDS
        while (found := list(self._living())) and time.monotonic() < until:
            time.sleep(0.1)
        return found

    def _living(self) -> Iterator[str]:
        for process in psutil.process_iter():
            try:
                argv, environment = " ".join(process.cmdline()), process.environ()
            except psutil.Error:  # it has ended or is another user's
                continue
            if process.pid == os.getpid() or any(word in argv for word in UNTIL_WE_EXIT):
                continue
            if any(map(self.owns_text, [argv, *environment.values()])):
                yield f"{process.pid}: {argv[:200]}"

    def mounts(self) -> list[str]:
        """Return our mounts; one would hold a network namespace too."""
        table = Path("/proc/self/mounts")
        lines = table.read_text().splitlines() if table.exists() else []
        return [line for line in lines if self.owns_text(line)]


def is_worker(config: pytest.Config) -> bool:
    """Tell whether this process is one of xdist's."""
    return hasattr(config, "workerinput")


def is_of_ended(name: str) -> bool:
    """Tell whether a folder's name is that of a session that ended, perhaps with our pid."""
    found = re.fullmatch(rf"{PREFIX}([1-9]\d{{0,8}})", name)
    if found is None:
        return False
    pid = int(found[1])
    return pid == os.getpid() or not psutil.pid_exists(pid)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Give the session its folder; remove those of sessions that ended."""
    if is_worker(session.config):
        workers = Path(tempfile.gettempdir(), "workers")
    else:
        for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
            if is_of_ended(folder.name):
                shutil.rmtree(folder, ignore_errors=True)
        # pytest's own stays where people look for it.
        basetemp = session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        folder = Path(tempfile.gettempdir(), f"{PREFIX}{os.getpid()}")
        folder.mkdir()
        os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
        session.config.stash[_SESSION] = Session(folder=folder, basetemp=basetemp)
        workers = folder / "workers"
        workers.mkdir()
    (workers / str(os.getpid())).touch()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """Look for what is left once the workers are gone, and fail if there is any."""
    yield
    if _SESSION not in session.config.stash:
        return
    own = session.config.stash[_SESSION]
    if left := own.left():
        if STRICT in os.environ:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        writer = session.config.get_terminal_writer()
        writer.line()
        for line in ["The tests left behind:", *left]:
            writer.line(line, red=True)
    else:
        shutil.rmtree(own.folder)
