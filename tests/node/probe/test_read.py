"""The operation `read`: raw answers to everything that is asked, each with its own end."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from clusterctl.facts.answers import Answers
from clusterctl.facts.parse_facts import parse_facts, read_arguments
from clusterctl.facts.request import FactRequest, PathQuestion
from clusterctl.node.probe import path_probe
from clusterctl.node.probe import read as read_module
from clusterctl.node.probe.folders import matching
from clusterctl.node.probe.path_probe import probe_path
from clusterctl.node.probe.read import has_module, read
from clusterctl.wire import Message
from tests.installed import LOCATION

ECHO = {"key": "echo", "argv": ["echo", "hi"], "limit_s": 5}


class Controller:
    """The other end of the link: asks the clock so many times."""

    disconnected = False

    def __init__(self) -> None:
        self.sent: list[Message] = []

    def receive(self) -> Message | None:
        return Message({})

    def send(self, message: Message) -> None:
        self.sent.append(message)


def answers(args: dict[str, Any], controller: Controller | None = None) -> Answers:
    return Answers.of(read(args, b"", controller or Controller()))  # type: ignore[arg-type]


def test_files_globs_and_links(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("1\n")
    (tmp_path / "two").write_text("2\n")
    (tmp_path / "link").symlink_to("one")
    found = answers(
        {
            "files": ["/proc/sys/kernel/ostype", str(tmp_path / "none")],
            "globs": [f"{tmp_path}/t*"],
            "links": [str(tmp_path / "link")],
        }
    )

    assert found.word("/proc/sys/kernel/ostype") == "Linux"
    assert found.file(str(tmp_path / "none")).state == "absent"
    assert found.number(str(tmp_path / "two")) == 2
    assert found.by_key[f"link:{tmp_path}/link"].data == b"one"


def test_the_small_files_of_a_folder_are_one_answer(tmp_path: Path) -> None:
    for name, text in {
        "a/speed": "100\n",
        "a/mtu": "1500",
        "b/speed": "5 Gb/s\nx",
        "b/c/d": "",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    question = {"path": f"{tmp_path}/*", "files": ["speed", "none", "c"]}

    message = read({"folders": [question]}, b"", Controller())  # type: ignore[arg-type]
    found = Answers.of(message)

    keys = [row[0] for row in message.head["answers"] if row[0].startswith("folder:")]
    assert keys == [f"folder:{tmp_path}/a", f"folder:{tmp_path}/b"]
    assert found.number(f"{tmp_path}/a/speed") == 100
    assert found.word(f"{tmp_path}/b/speed") == "5 Gb/s x"
    assert [path for path in found.by_key if path.startswith(f"file:{tmp_path}")] == [
        f"file:{tmp_path}/a/speed", f"file:{tmp_path}/b/speed",
    ]  # fmt: skip


def test_devices_that_hang_cost_only_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_module, "RDMA", str(tmp_path))
    monkeypatch.setattr(read_module, "FILES_SECONDS", 1.0)
    (tmp_path / "mlx5_0").mkdir()
    os.mkfifo(tmp_path / "mlx5_0" / "state")  # to open it waits for a writer
    args = {
        "files": ["/proc/sys/kernel/ostype"],
        "rdma": [{"path": f"{tmp_path}/*", "files": ["state"]}],
    }

    found = answers(args)

    assert found.word("/proc/sys/kernel/ostype") == "Linux"
    assert "names" in found.by_key
    assert found.by_key["rdma"].state == "timeout"


def test_a_star_stands_for_a_part_of_one_name(tmp_path: Path) -> None:
    for name in ("a/x.conf", "a/.y.conf", "b/x.conf", "b/x.conf.old", "b/deep/x.conf"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()

    # Only that hidden names need a dot in the pattern is otherwise than in pathlib.
    for pattern in ("*/x.conf", "b/x.*", "a/none", "none/*", "*/deep/*"):
        wanted = sorted(map(str, tmp_path.glob(pattern)))
        assert matching(f"{tmp_path}/{pattern}") == wanted, pattern
    assert matching(f"{tmp_path}/a/*.conf") == [f"{tmp_path}/a/x.conf"]


def test_programs_and_modules_of_ours() -> None:
    interpreter = {"source": "clusterctl.node.probe.job_interpreter", "source_at": 2, "cwd": "/"}
    found = answers(
        {
            "commands": [
                ECHO,
                {"key": "python", "argv": ["python3", "-c"], "limit_s": 20, **interpreter},
                {"key": "unasked", "argv": ["true"], "limit_s": 5, "only_if": ["/no/such"]},
            ]
        }
    )

    assert found.command("echo").data == b"hi\n"
    assert found.command("python").text.split("\0")[1].startswith("3.")
    assert found.command("unasked").state == "not-asked"


def test_a_program_in_the_jobs_environment(tmp_path: Path) -> None:
    job = {
        "env": [["GREETING", "$HOME; ü", "asked"]],
        "env_init": "export FROM_INIT='set by init'",
        "workdir": str(tmp_path),
    }
    argv = ["sh", "-c", 'printf "%s|%s|%s" "$GREETING" "$FROM_INIT" "$PWD"']
    command = {"key": "x", "argv": argv, "limit_s": 10, "cwd": str(tmp_path), "job": job}

    assert answers({"commands": [command]}).command("x").text == f"$HOME; ü|set by init|{tmp_path}"


def test_paths(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "a").write_bytes(b"x" * 300_000)
    (tmp_path / "same").mkdir()
    (tmp_path / "same" / "a").write_bytes(b"x" * 300_000)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a").write_bytes(b"x" * 299_999 + b"y")
    names = ("model", "same", "other")
    places = tuple(PathQuestion(path=str(tmp_path / name), digest=True) for name in names)
    missing = PathQuestion(path=str(tmp_path / "not" / "yet"), write=True)
    wanted = FactRequest(places=(*places, missing))

    facts = parse_facts("a", answers({**read_arguments(wanted), "clock": 0}), wanted, clock=None)
    model, same, other, absent = facts.paths

    assert (model.size, model.entries, model.folder) == (300_000, 1, True)
    assert model.digest == same.digest != other.digest
    assert (absent.exists, absent.writable) == (False, True)
    assert list(tmp_path.glob(".clusterctl*")) == []


def test_a_folder_with_links_that_lead_nowhere_and_a_pipe_has_a_digest(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    whole = probe_path({"path": str(tmp_path), "digest": True})
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "round").symlink_to("round")
    os.mkfifo(tmp_path / "pipe")
    told = probe_path({"path": str(tmp_path), "digest": True})

    assert (told["size"], told["entries"]) == (5, 4)
    assert told["digest"] not in ("", whole["digest"])


def test_a_folder_that_cannot_be_read_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(_path: str) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/a/weight")

    monkeypatch.setattr(path_probe, "_digest", denied)  # root may read all
    told = probe_path({"path": str(tmp_path), "digest": True})

    assert told["problem"] == "/a/weight: Permission denied"
    assert told["exists"]


def test_a_path_that_hangs_costs_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clusterctl.node.probe.read.FILES_SECONDS", 0.5)
    monkeypatch.setattr(
        "clusterctl.node.probe.read._program",
        lambda _name: threading.Event().wait(60),
        raising=True,
    )
    began = time.monotonic()
    found = answers({"programs": ["rsync"], "commands": [{**ECHO, "limit_s": 20}]})

    assert found.by_key["self"].state == "timeout"
    assert found.command("echo").data == b"hi\n"
    assert time.monotonic() - began < 30


def test_a_file_that_hangs_costs_nothing_of_the_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clusterctl.node.probe.read.FILES_SECONDS", 1.0)
    os.mkfifo(tmp_path / "hangs")
    found = answers({"files": ["/proc/uptime"], "globs": [f"{tmp_path}/hangs"]})

    assert found.file("/proc/uptime").good
    assert found.by_key["files"].state == "timeout"  # and nobody takes the rest for unreadable
    assert {"machine", "names"} <= set(found.by_key)
    assert found.json("self")["uid"] == os.getuid()


def test_a_path_that_hangs_costs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def probe(question: dict[str, Any]) -> dict[str, Any]:
        return threading.Event().wait(60) if question["path"] == "/dead" else {"exists": True}  # type: ignore[return-value]

    monkeypatch.setattr("clusterctl.node.probe.read.FILES_SECONDS", 1.0)
    monkeypatch.setattr("clusterctl.node.probe.read.probe_path", probe)
    found = answers({"paths": [{"path": "/one"}, {"path": "/dead"}, {"path": "/two"}]})

    assert found.by_key["path:/dead"].state == "timeout"
    assert found.json("path:/one") == found.json("path:/two") == {"exists": True}
    assert found.json("names")["hostname"]


def test_the_clock_is_served_beside_a_slow_program() -> None:
    controller = Controller()
    slow = {"key": "slow", "argv": ["sleep", "0.5"], "limit_s": 5}
    answers({"commands": [slow], "clock": 3}, controller)

    assert [set(m.head) for m in controller.sent] == [{"clock"}, {"time"}, {"time"}, {"time"}]


def test_the_clock_is_served_until_it_is_known_well_enough() -> None:
    controller = Controller()
    messages = iter([Message({}), Message({"enough": True})])
    controller.receive = lambda: next(messages)  # type: ignore[method-assign]
    answers({"clock": 5}, controller)

    assert [set(m.head) for m in controller.sent] == [{"clock"}, {"time"}]


def test_the_holder_of_the_lock_is_asked() -> None:
    name = f"clusterctl-test-{uuid.uuid4()}"
    assert answers({"lock": name}).json("lock") == {"holder": None}

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind("\0" + name)
        listening.listen()

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b'{"run": "r1", "user": "ada"}\n')

        thread = threading.Thread(target=serve)
        thread.start()
        holder = answers({"lock": name}).json("lock")["holder"]
        thread.join()

    assert (holder["run"], holder["user"]) == ("r1", "ada")


def test_this_machine_becomes_facts() -> None:
    wanted = FactRequest(gpus=0)
    args = json.loads(json.dumps(read_arguments(wanted)))
    facts = parse_facts("here", answers(args), wanted, clock=None)

    assert facts.boot_id
    assert facts.hostname == socket.gethostname()
    assert any(i.loopback for i in facts.interfaces or ())
    assert facts.shm_bytes is not None
    assert facts.limits is not None
    assert facts.python is not None
    assert facts.python.problem == ""


def test_modules_that_this_python_lacks_are_found_without_their_import() -> None:
    told = answers({}).json("self")
    assert isinstance(told, dict)
    assert told["agent"] == {"executable": sys.executable, "lacks": []}
    assert has_module("_ctypes")
    assert not has_module("_no_such_module")
    code = f"import sys; sys.path.insert(0, {str(LOCATION)!r});"
    code += "from clusterctl.node.probe.read import has_module; has_module('_ssl');"
    code += "print(*{'_ssl', '_ctypes', 'importlib.util'} & set(sys.modules))"
    argv = [sys.executable, "-I", "-S", "-c", code]
    assert subprocess.run(argv, check=True, capture_output=True, text=True).stdout == "\n"
