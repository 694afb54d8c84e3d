"""Where chaos runs play: three sandbox hosts, their processes, and `clusterctl` beside them."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

import clusterctl.cli.runs.launch
import clusterctl.cli.runs.logs
import clusterctl.cli.runs.resume
import clusterctl.cli.runs.status
import clusterctl.cli.runs.stop  # noqa: F401  (imported once, here, so that a verb starts at once)
from clusterctl.cli.shared.main import main
from clusterctl.errors import ClusterError
from clusterctl.sandbox import processes, sandbox
from clusterctl.sandbox.backend import SandboxSpec
from clusterctl.sandbox.netns import Netns
from clusterctl.sandbox.sandbox import Sandbox
from tests.chaos.lateness import Meter, slack
from tests.chaos.schedule import GRACE, NODES
from tests.cli.runs import checkpoint

POLL = 0.05
VERB_SECONDS = 90.0
JOB = ("job.py", "job.sh")
CODE = "/shared/code"
STATE = "var/tmp/clusterctl-0"
CHECKPOINT = "out/step-000001"

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A process of a host."""

    pid: int
    """As its host numbers it."""
    argv: str
    run: str
    """The run whose mark it has; empty: none's."""

    @property
    def of_host(self) -> bool:
        """Tell whether it is there without any run: the first process, sshd."""
        return self.pid == 1 or self.argv.startswith(("sshd", "/usr/sbin/sshd"))


@dataclass(slots=True, kw_only=True)
class Verb:
    """A `clusterctl` on its own, forked from here: what it prints, and how it ends."""

    name: str
    pid: int
    out: Path
    err: Path
    began: float
    ended: float | None = None
    status: int = 0
    killed: bool = False
    """By a fault: how it ends says nothing."""

    def over(self) -> bool:
        """Tell whether it has ended."""
        if self.ended is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.ended, self.status = time.monotonic(), os.waitstatus_to_exitcode(status)
        return self.ended is not None

    def kill(self) -> bool:
        """Kill -9 it; False: it had ended."""
        if self.over():
            return False
        os.kill(self.pid, signal.SIGKILL)
        self.killed = True
        return True

    def documents(self) -> list[dict[str, Any]]:
        """Return the JSON objects that it has printed, one a line; not one that is cut."""
        lines = self.out.read_bytes().split(b"\n")[:-1]
        return [json.loads(line) for line in lines]

    def first(self, kind: str) -> dict[str, Any] | None:
        """Return the first object of a kind."""
        wanted = b'"kind": "%s"' % kind.encode()
        for line in self.out.read_bytes().split(b"\n")[:-1]:
            if wanted in line:
                found: dict[str, Any] = json.loads(line)
                return found
        return None


@dataclass(slots=True)
class Stage:
    """Three hosts, used for one schedule after another."""

    box: Sandbox
    folder: Path
    """For what verbs print."""
    inventory: Path
    _verbs: list[Verb] = field(default_factory=list)
    _later: list[tuple[float, Callable[[], object]]] = field(default_factory=list)
    meter: Meter = field(default_factory=Meter)
    """How late the machine has been since the faults began."""

    @classmethod
    @contextmanager
    def up(cls, name: str, folder: Path) -> Iterator[Stage]:
        """Start hosts under this name, and leave nothing of them."""
        sandbox.remove(name)
        folder.mkdir(parents=True, exist_ok=True)
        box = sandbox.up(name, SandboxSpec(nodes=NODES), backend="netns")
        try:
            code = box.shared / "code"
            for source in JOB:
                shutil.copy(Path(__file__).parent / source, code)
            checkpoint(code / "out", 1, "")
            job = {
                "checkpoints": "out",
                "resume_args": ["{checkpoint}"],
                "stop": {"grace": GRACE, "leftovers": 1},
            }
            document = yaml.safe_load(box.inventory.read_text()) | {"job": job}
            inventory = folder / "hosts.yaml"
            inventory.write_text(yaml.safe_dump(document, sort_keys=False))
            yield cls(box, folder, inventory)
        finally:
            sandbox.remove(name)

    @property
    def nodes(self) -> list[str]:
        """The hosts' names, the master first."""
        return [host.name for host in self.box.hosts]

    # Time.

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        """Do something later, while somebody waits."""
        self._later.append((time.monotonic() + seconds, action))

    def wait(self, until: Callable[[], bool], seconds: float, *, strictly: bool = True) -> bool:
        """Wait for something to become true, and do meanwhile what is due; False: it did not.

        Args:
            until: what is to become true.
            seconds: how long to wait.
            strictly: else what the machine was late since the faults began excuses more.
        """
        limit = time.monotonic() + seconds
        while True:
            self._do_what_is_due()
            self.meter.skip()
            if until():
                return True
            if time.monotonic() > limit + (0.0 if strictly else slack(self.meter.late)):
                return False
            time.sleep(POLL)
            self.meter.lap(POLL)

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        until = time.monotonic() + seconds
        self.wait(lambda: time.monotonic() >= until, seconds)

    def finish_what_is_due(self) -> None:
        """Wait until everything that was put off has been done."""
        self.wait(lambda: not self._later, 60)

    def _do_what_is_due(self) -> None:
        now = time.monotonic()
        due = [one for one in self._later if one[0] <= now]
        self._later = [one for one in self._later if one[0] > now]
        for _, action in due:
            action()

    # Verbs.

    def start(self, name: str, *words: str) -> Verb:
        """Start a verb: a process of its own on the controller's side."""
        number = len(self._verbs)
        out, err = (self.folder / f"{number:02d}-{name}.{kind}" for kind in ("out", "err"))
        out.touch()
        began = time.monotonic()
        pid = os.fork()
        if pid == 0:
            self._become(out, err, words)
        verb = Verb(name=name, pid=pid, out=out, err=err, began=began)
        self._verbs.append(verb)
        return verb

    def call(self, name: str, *words: str) -> Verb:
        """Run a verb to its end."""
        verb = self.start(name, *words)
        self.end(verb)
        return verb

    def end(self, verb: Verb) -> None:
        """Wait for a verb's end. Kill one that does not end; its exit code shows that."""
        if not self.wait(verb.over, VERB_SECONDS):
            os.kill(verb.pid, signal.SIGABRT)
            self.wait(verb.over, 10)

    def _become(self, out: Path, err: Path, words: tuple[str, ...]) -> None:
        """Be `clusterctl` in the controller's namespaces, and never return."""
        code = 70
        try:
            controller = processes.recorded(self.box.layout.controller_pid)
            for kind in ("net", "uts", "mnt"):
                handle = os.open(f"/proc/{controller}/ns/{kind}", os.O_RDONLY)
                if _libc.setns(handle, 0):
                    raise OSError(ctypes.get_errno(), "setns")
                os.close(handle)
            for number, path in enumerate((Path(os.devnull), out, err)):
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND if number else os.O_RDONLY
                os.dup2(os.open(path, flags, 0o600), number)
            os.chdir(self.folder)
            settings = {"STATE": str(self.folder / "state"), "INVENTORY": str(self.inventory)}
            environment = self.box.environment()
            os.environ.clear()
            os.environ.update(environment)
            os.environ.update({f"CLUSTERCTL_{name}": value for name, value in settings.items()})
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            code = main(words)
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)

    @property
    def verbs(self) -> list[Verb]:
        """All verbs since the stage was cleared."""
        return self._verbs

    # Hosts.

    def first(self, node: str) -> int | None:
        """Return the first process of a host; None: it is off."""
        try:
            return Netns(self.box.layout).init_pid(node)
        except ClusterError:
            return None

    def processes(self, node: str) -> list[Seen]:
        """Return the living processes of a host."""
        root = Path(f"/proc/{self.first(node)}/root/proc")
        try:
            pids = [int(name) for name in os.listdir(root) if name.isdigit()]  # noqa: PTH208
        except OSError:  # it is off
            return []
        return [seen for pid in sorted(pids) if (seen := _seen(root, pid)) is not None]

    def of_run(self, node: str, run: str) -> list[Seen]:
        """Return what lives of a run on a host: what has its mark, and its supervisor and guard."""
        return [seen for seen in self.processes(node) if seen.run == run]

    def signal(self, node: str, seen: Seen, number: signal.Signals) -> bool:
        """Send a signal to a process of a host; False: it has gone, or the host is off."""
        for pid in self.box.backend.processes(self.box.host(node)):
            with contextlib.suppress(OSError):
                status = Path(f"/proc/{pid}/status").read_text()
                if status.partition("NSpid:")[2].split("\n")[0].split()[-1] == str(seen.pid):
                    os.kill(pid, number)
                    return True
        return False

    def part(self, node: str, run: str) -> Path:
        """Return the folder of a run's part, as this machine reaches it."""
        first = self.first(node)
        cluster = f"{self.box.name}/{run}/{node}"
        if first is None:
            return self.box.folder(node) / "var-tmp" / "clusterctl-0" / cluster
        return Path(f"/proc/{first}/root/{STATE}/{cluster}")

    def account(self, node: str, run: str) -> dict[str, Any]:
        """Return the supervisor's own account; empty: there is none."""
        try:
            document: dict[str, Any] = json.loads(
                (self.part(node, run) / "supervisor.json").read_text()
            )
        except (OSError, ValueError):
            return {}
        return document

    def witnesses(self, run: str) -> dict[int, int]:
        """Return how many lines each rank of a run knows to have written."""
        found = {}
        for node in self.nodes:
            folder = self.box.folder(node) / "workspace" / "witness" / run
            for path in folder.glob("*"):
                found[int(path.name)] = int(path.read_text() or "0")
        return found

    def clear(self) -> None:
        """Forget what was played: its verbs, and its files on the hosts."""
        for verb in self._verbs:
            if verb.kill():
                self.wait(verb.over, 10)
        self._verbs.clear()
        self._later.clear()
        shutil.rmtree(self.folder / "state", ignore_errors=True)
        for path in self.folder.glob("*-*.*"):
            path.unlink()
        for node in self.nodes:
            for below in ("var-tmp/clusterctl-0", "workspace/witness"):
                shutil.rmtree(self.box.folder(node) / below, ignore_errors=True)


def _seen(root: Path, pid: int) -> Seen | None:
    """Look at a process; None: it is gone, or a zombie."""
    try:
        argv = (root / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        environment = (root / str(pid) / "environ").read_bytes()
        if not argv:  # a zombie, or it is just being born
            stat = (root / str(pid) / "stat").read_text()
            if stat.rpartition(")")[2].split()[0] in "ZX":
                return None
    except OSError:
        return None
    _, marked, rest = environment.partition(b"CLUSTERCTL_RUN_ID=")
    run = rest.split(b"\0")[0].decode() if marked else ""
    if not run and "clusterctl.node.supervisor.guard" in argv:
        run = argv.partition("clusterctl-0/")[2].split("/")[1]
    return Seen(pid=pid, argv=argv, run=run)
