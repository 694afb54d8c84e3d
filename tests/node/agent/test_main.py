"""The agent as a process: what it answers, what its children inherit, how it ends."""

from __future__ import annotations

import ast
import gc
import io
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType

import psutil
import pytest

from clusterctl.facts.parse_facts import read_arguments
from clusterctl.facts.request import FactRequest
from clusterctl.node.agent import loader, main
from clusterctl.node.agent.call_channel import HEARTBEAT_SECONDS, CallChannel, OperationError
from clusterctl.node.agent.operations import OPERATIONS
from clusterctl.transport import agent
from clusterctl.wire import Message, read_message

MARKER = b"the-marker\n"
DONE = 30
"""Seconds that an agent may take to end on a busy machine."""


class Agent:
    """An agent that runs as a child, as over SSH."""

    def __init__(self, request: Message, *, python: str = "", marker: bytes = MARKER) -> None:
        self.process = subprocess.Popen(
            ["/bin/sh", "-c", agent.COMMAND],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.stdin, self.stdout = self.process.stdin, self.process.stdout
        self.stdin.write(b"".join((*agent.opening(marker, python), request.encode())))
        assert self.stdout.read(len(marker)) == marker

    def receive(self) -> Message | None:
        return read_message(io.BufferedReader(self.stdout))  # type: ignore[type-var]

    def send(self, message: Message) -> None:
        self.stdin.write(message.encode())

    def close(self) -> None:
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()
        try:
            self.process.wait(DONE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def echo() -> Iterator[Agent]:
    started = Agent(Message({"op": "echo", "args": {"a": 1}}, b"body"))
    reader = io.BufferedReader(started.stdout)  # type: ignore[type-var]
    started.receive = lambda: read_message(reader)  # type: ignore[method-assign]
    yield started
    started.close()


def test_a_dialogue(echo: Agent) -> None:
    assert echo.receive() == Message({"args": {"a": 1}}, b"body")
    for number in range(3):
        echo.send(Message({"n": number}, b"x" * number))
        assert echo.receive() == Message({"n": number}, b"x" * number)
    echo.send(Message({"last": True}))
    assert echo.receive() == Message({"last": True})
    assert echo.receive() == Message({"count": 4, "end": True})
    assert echo.receive() is None
    assert echo.process.wait(DONE) == 0


def test_a_heartbeat_while_nothing_else_is_said(echo: Agent) -> None:
    echo.receive()
    began = time.monotonic()
    assert echo.receive() == Message({"beat": True})
    assert time.monotonic() - began < 2 * HEARTBEAT_SECONDS


class Rounds:
    """The lock of a heartbeat that goes on for three rounds."""

    left = 3

    def acquire(self, timeout: float) -> bool:
        del timeout
        self.left -= 1
        return self.left < 0


@pytest.mark.parametrize(("sent", "beats"), [(0, 0), (4, 3), (10, 3)], ids=["no", "half", "asked"])
def test_no_heartbeat_until_the_controller_sends(sent: int, beats: int) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as received:
        channel = CallChannel(io.BytesIO(Message({}).encode()), writing)
        channel.send_and_rest(Message({"n": 1}))
        assert len(channel.read(sent) if sent else b"") == sent
        channel._heartbeat_running = Rounds()  # type: ignore[assignment]
        channel._heartbeat()
        os.close(writing)
        assert read_message(received) == Message({"n": 1, "rests": True})
        assert [read_message(received) for _ in range(beats)] == [Message({"beat": True})] * beats
        assert read_message(received) is None


def test_it_ends_when_the_controller_has_gone(echo: Agent) -> None:
    echo.receive()
    echo.stdin.close()
    echo.stdout.close()
    assert echo.process.wait(DONE) is not None


def test_children_inherit_no_descriptor_of_the_channel(echo: Agent) -> None:
    echo.receive()
    folder = Path(f"/proc/{echo.process.pid}")
    assert {str((folder / "fd" / n).readlink()) for n in "012"} == {"/dev/null"}
    for path in (folder / "fdinfo").iterdir():
        flags = int(path.read_text().split("flags:")[1].split()[0], 8)
        assert int(path.name) <= 2 or flags & os.O_CLOEXEC, (folder / "fd" / path.name).readlink()


def test_the_command_leaves_no_shell_behind(echo: Agent) -> None:
    assert Path(f"/proc/{echo.process.pid}/comm").read_text().startswith("python")


def test_the_command_is_plain_for_every_login_shell() -> None:
    assert not set(agent.COMMAND) & set("\\\n!^~{}`")
    assert agent.COMMAND.count("'") == 2
    for python in ("/opt/env/bin/python", "/a b/python", "$(id)", "/x;y", "relative", None):
        opening, _ = agent.opening(MARKER, python)
        line = opening.split(b"\n")[1].decode()
        assert line == (python if python == "/opt/env/bin/python" else "")


WHAT_A_CHECK_ASKS = {**read_arguments(FactRequest(gpus=0)), "clock": 0, "word": "nonce"}
STEPS = (
    {"step": "prepare", "sockets": [{"key": "a", "address": "127.0.0.1", "port": 0}], "tokens": []},
    {"step": "connect", "targets": [], "limit_s": 1, "tokens": [], "token_limit_s": 1},
    {"step": "end"},
)
SURVEY = Message({"op": "collect-facts", "args": WHAT_A_CHECK_ASKS}).encode() + b"".join(
    Message(step).encode() for step in STEPS
)


def survey(
    report: str = "", op: str = "collect-facts", said: bytes = SURVEY
) -> subprocess.CompletedProcess[bytes]:
    """Run all that a check asks a node; the agent runs `report` before its first import."""
    stub, _, rest = b"".join(agent.opening(MARKER, None, op)).split(b"\n", 2)
    code = ast.literal_eval(stub.decode().removeprefix("exec(").removesuffix(")"))
    assert "from clusterctl.node.agent.main" in code
    code = code.replace(
        "from clusterctl.node.agent.main", f"{report}\nfrom clusterctl.node.agent.main"
    )
    return subprocess.run(
        [sys.executable, "-X", "utf8", "-I", "-S", "-c", code, ""],
        input=rest + said,
        capture_output=True,
        check=False,
    )


REPORT_COMPILED = """
compile_module = g["Importer"].compile
g["Importer"].compile = lambda self, name: (
    print(name, file=sys.stderr, flush=True), compile_module(self, name))[1]
"""


def test_a_check_compiles_nothing_where_the_bytecode_is_the_controllers() -> None:
    done = survey(REPORT_COMPILED)
    assert done.stdout.startswith(MARKER)
    assert done.stderr == b""


@pytest.mark.parametrize("op", sorted(OPERATIONS))
def test_what_is_sent_for_an_operation_compiles_nothing(op: str) -> None:
    done = survey(REPORT_COMPILED, op, Message({"op": op, "args": {}}).encode())
    assert b'"end":true' in done.stdout
    assert not re.search(rb'"crash":"(?!KeyError)', done.stdout)  # it was imported
    assert done.stderr == b""


def test_what_an_operation_may_import_is_sent() -> None:
    sent = agent.modules_of("stop")
    # The module itself, two that it imports by name, one in a function, one of every operation.
    run = ("run.operations.stop", "run.processes.processes", "run.files.ray_folder")
    names = (*run, "run_lock", "agent.main")
    assert {"clusterctl.node." + name for name in names} <= sent.keys()
    code = sent["clusterctl.node.run.operations.stop"]
    inner = [one.co_filename for one in code.co_consts if isinstance(one, CodeType)]
    assert {code.co_filename, *inner} == {"<clusterctl>/clusterctl/node/run/operations/stop.py"}


def test_a_node_gets_the_sources_that_its_operation_needs() -> None:
    whole = loader.read_sources()
    assert agent.sources_for("start").keys() == whole.keys()  # a run keeps all of it
    assert len(agent.sources_for("status")) < len(whole) / 4
    checks = agent.sources_for("collect-facts")
    assert len(checks) < len(whole) / 2
    # What is run by the job's Python, and what only rare answers need.
    also = {_PROBE + name for name in ("job_interpreter", "trial.job_ladder", "build_locks")}
    assert {*also, *agent.CHECK_MODULES, "clusterctl.node.run_lock"} <= checks.keys()


_PROBE = "clusterctl.node.probe."


def test_the_code_of_an_operation_is_read_once_for_all_nodes() -> None:
    agent.modules_for.cache_clear()
    openings = [agent.opening(MARKER, None, "sync-compare") for _ in range(20)]
    assert len({id(modules) for _, modules in openings}) == 1
    assert agent.modules_for.cache_info().misses == 1


def test_a_check_of_a_node_with_other_bytecode_compiles_the_sources(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled = agent.compiled_for("collect-facts")
    monkeypatch.setattr(agent, "compiled_for", lambda *_: b"else" + compiled[4:])
    monkeypatch.setattr(agent, "modules_for", agent.modules_for.__wrapped__)
    done = survey(REPORT_COMPILED)
    assert done.stdout.startswith(MARKER)
    assert set(done.stderr.decode().split()) == set(agent.CHECK_MODULES)


def pythons() -> dict[str, tuple[int, int]]:
    """Return every Python 3 that is installed here, with its version."""
    folders = [Path("/usr/bin"), Path("/usr/local/bin")]
    folders += sorted(Path("~/.pyenv/versions").expanduser().glob("3.*/bin"))
    found = {sys.executable: sys.version_info[:2]}
    for folder in folders:
        for path in folder.glob("python3.*"):
            if re.fullmatch(r"python3\.[0-9]+", path.name):
                found[str(path)] = (3, int(path.name.partition(".")[2]))
    return found


PYTHONS = pythons()


@pytest.mark.parametrize("python", [path for path in PYTHONS if PYTHONS[path] >= (3, 9)])
def test_every_interpreter_here_imports_all_of_the_agent(python: str, tmp_path: Path) -> None:
    program = tmp_path / "agent.py"
    # The last lines call a function; here all modules are imported in its place.
    program.write_bytes(loader.program().partition(b"module, _, function")[0])
    with program.open("a") as file:
        file.write("for name in sorted(sources): __import__(name)\nprint(len(sources))\n")
    done = subprocess.run(
        [python, "-X", "utf8", "-I", "-S", str(program)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == f"{len(loader.read_sources())}\n", done.stderr


def test_the_program_calls_a_function_with_words(tmp_path: Path) -> None:
    path = tmp_path / "agent.py"
    path.write_bytes(loader.program())
    command = [
        sys.executable,
        "-X",
        "utf8",
        "-I",
        "-S",
        str(path),
        "clusterctl.node.agent.main:import_operation",
        "hello",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "function hello" in done.stderr  # sys.exit prints what is no number


BEGIN_A_RUN = b"""
importer = type(sys.meta_path[0])
compile_source = importer.compile
def tell(self, name):
    print(name, file=sys.stderr)
    return compile_source(self, name)
importer.compile = tell
import clusterctl.node.supervisor.guard, clusterctl.node.supervisor.main
import clusterctl.node.supervisor.ranks.rank
"""


def test_the_processes_of_a_second_run_compile_nothing(tmp_path: Path) -> None:
    whole = loader.program(kept=str(tmp_path / "state/.compiled"))
    program = tmp_path / "agent.py"
    program.write_bytes(whole.partition(b"module, _, function")[0] + BEGIN_A_RUN)
    python = [sys.executable, "-X", "utf8", "-I", "-S", str(program)]
    first, second = (subprocess.run(python, capture_output=True, check=True) for _ in range(2))
    assert b"clusterctl.node.supervisor.guard" in first.stderr.split()
    assert second.stderr == b""


def test_an_operation_error_is_an_answer() -> None:
    def fails(args: dict[str, object], body: bytes, link: CallChannel) -> Message:
        assert gc.isenabled()  # off while an agent starts
        raise OperationError("busy", "taken", holder={"run": "r"})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(main, "import_operation", lambda _op: fails)
        gc.disable()
        found = main.run_operation(Message({"op": "x"}), channel=None)  # type: ignore[arg-type]
    assert found.head == {"error": {"kind": "busy", "message": "taken", "holder": {"run": "r"}}}


def test_a_crash_is_an_answer_with_its_traceback() -> None:
    found = main.run_operation(Message({"op": "no-such"}), channel=None)  # type: ignore[arg-type]
    assert found.head["crash"] == "KeyError: 'no-such'"
    assert "Traceback" in found.head["traceback"]


@pytest.mark.parametrize("python", [path for path in PYTHONS if PYTHONS[path] < (3, 9)])
def test_an_interpreter_that_is_too_old_hands_over(python: str, tmp_path: Path) -> None:
    (tmp_path / "python3").symlink_to(python)
    # Without /usr/bin/python3 in the list the old one on PATH comes first.
    command = agent.COMMAND.replace("set -- /usr/bin/python3 python3", "set -- python3")
    request = Message({"op": "hello", "args": {}}).encode()
    for last, status in ((sys.executable, 0), (None, agent.NO_PYTHON)):
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            input=b"".join((*agent.opening(MARKER, last), request)),
            capture_output=True,
            check=False,
            env={"PATH": f"{tmp_path}:/nowhere"},
        )
        assert done.returncode == status, done.stderr
        assert done.stdout.startswith(MARKER) == (status == 0)


def test_an_interpreter_that_may_not_be_run_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "python3").write_text("")
    command = agent.COMMAND.replace("/usr/bin/python3 python3 ", f"{tmp_path}/python3 ")
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        input=b"".join(agent.opening(MARKER, None)),
        capture_output=True,
        check=False,
        env={"PATH": "/nowhere"},
    )
    assert (done.returncode, done.stderr) == (agent.NO_PYTHON, b"")


def test_a_killed_agent_leaves_no_process_behind(echo: Agent) -> None:
    echo.receive()
    group = {process.pid for process in psutil.Process(echo.process.pid).children(recursive=True)}
    os.kill(echo.process.pid, signal.SIGTERM)
    assert echo.process.wait(DONE) == -signal.SIGTERM
    assert not any(map(psutil.pid_exists, group))


CHECK = ("agent.main", "probe.read", "probe.peer_probe")


@pytest.mark.parametrize(
    ("modules", "last"),
    [(CHECK, "probe.tokens"), (["supervisor.ranks.rank"], "run_lock")],
    ids=["of every check", "before every rank"],
)
def test_what_often_runs_imports_nothing_slow(
    tmp_path: Path, modules: Sequence[str], last: str
) -> None:
    sources = loader.program().decode("latin-1").partition("module, _, function")[0]
    look = "".join(f"import clusterctl.node.{name}\n" for name in modules)
    program = tmp_path / "program.py"
    code = f"# coding: latin-1\n{sources}\n{look}\nimport sys\nprint(*sys.modules)"
    program.write_text(code, encoding="latin-1")
    python = [sys.executable, "-X", "utf8", "-I", "-S", str(program)]
    imported = subprocess.run(python, capture_output=True, check=True, text=True).stdout.split()

    # Each of them takes as long as a fifth of Python's own start, or several together.
    slow = {"json", "re", "enum", "typing", "socket", "threading", "glob", "signal", "importlib"}
    assert slow & set(imported) == set()
    assert f"clusterctl.node.{last}" in imported
