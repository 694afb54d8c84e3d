"""The Python API: its names, and a session with real hosts through cuts, threads and many calls."""

from __future__ import annotations

import ast
import contextlib
import inspect
import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fabric
import psutil
import pytest
import yaml
from fabric.exceptions import GroupException

import clusterctl
from clusterctl import FunctionFailed, LogLine, NotEnded, Run, Session, UsageError
from clusterctl.api.flags import LaunchFlags
from clusterctl.cli.shared.parser import build_parser
from clusterctl.inventory.cluster import Cluster, Node, Ssh
from clusterctl.logs.entry import Piece
from clusterctl.sandbox.sandbox import Sandbox
from clusterctl.verbs.events import Event, NodeEvent, Progress
from clusterctl.verbs.follow import LogLines
from clusterctl.verbs.launch.launch import Checked, Planned
from clusterctl.verbs.launch.run_result import RunResult
from clusterctl.verbs.runs.records import Records, RunRecord
from clusterctl.verbs.runs.run_log import RunLog
from clusterctl.wire import Message
from tests.cli.runs import checkpoint
from tests.conftest import MakeSandbox
from tests.test_function_call import fails, of_the_program, work

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "how-to" / "use-from-python.md"
QUIET: dict[str, Any] = {"hide": True, "in_stream": False}
"""How Fabric runs a command in a test: pytest has no stdin."""

JOB = """
import os, sys, time
print("words", sys.argv[1:], flush=True)
print("x" * int(os.environ.get("NOISE", "0")), flush=True)
for step in range(int(os.environ.get("STEPS", "3"))):
    print("step", step, flush=True)
    time.sleep(0.05)
sys.exit(int(os.environ.get("CODE", "0")) if os.environ["RANK"] == "1" else 0)
"""
LONG = {"STEPS": "100000"}


@pytest.fixture
def hosts(make_sandbox: MakeSandbox) -> Sandbox:
    """Two hosts that this process itself can reach."""
    return make_sandbox(nodes=2, backend="loopback")


@pytest.fixture
def session(hosts: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """A session with the hosts, in a folder with a job; its runs are stopped."""
    monkeypatch.setenv("CLUSTERCTL_STATE", str(tmp_path / "state"))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "train.py").write_text(JOB)
    document = yaml.safe_load(hosts.inventory.read_text())
    document["workdir"] = str(tmp_path / "code")
    document["shared"] = [str(tmp_path)]
    document["job"] = {
        "launcher": "direct",
        "command": ["train.py"],
        "checkpoints": "out",
        "resume_args": ["--from", "{checkpoint}"],
    }
    (folder / "hosts.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    with Session("hosts.yaml", accept_new=True) as opened:
        yield opened
    with Session("hosts.yaml") as last:
        for run in last.live_runs()[0]:
            run.stop(grace=0)


def first(session: Session) -> str:
    return session.cluster.nodes[0].name


def cut(hosts: Sandbox) -> None:
    """End every login on the hosts; their servers live on."""
    config = str(hosts.layout.root)
    for process in psutil.process_iter(["cmdline", "name"]):
        if process.info["name"] == "sshd" and config in " ".join(process.info["cmdline"] or ()):
            for child in process.children(recursive=True):
                if child.name() == "sshd":
                    child.kill()


def test_the_public_names_are_those_of_the_api_and_what_type_checkers_read() -> None:
    assert sorted(clusterctl.__all__) == clusterctl.__all__ == dir(clusterctl)
    for name in clusterctl.__all__:
        assert getattr(clusterctl, name) is not None
    tree = ast.parse(Path(clusterctl.__file__).read_text())
    imported = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
    homes = {a.name: one.module for one in imported for a in one.names}
    named = {name: homes[name] for name in clusterctl.__all__ if name != "__version__"}
    defined = {name: getattr(clusterctl, name).__module__ for name in named}
    assert named == defined
    assert not hasattr(clusterctl, "subprocess")


def test_a_program_imports_what_it_uses() -> None:
    code = """
import sys
import clusterctl
print("clusterctl.errors" in sys.modules)
clusterctl.Session
print({"rich", "paramiko", "fabric", "clusterctl.verbs.launch.launch"} & sys.modules.keys())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "set()"]


@pytest.mark.parametrize("method", [Session.launch, Session.resume, Session.plan])
def test_the_flags_of_a_launch_are_those_of_the_command(method: Any) -> None:
    listed = set(inspect.signature(method).parameters)
    assert set(LaunchFlags.__annotations__) <= listed
    parser = build_parser(["launch"])
    given = vars(parser.parse_args(["launch"]))
    # What is not about the launch: the session's own, how it is shown, and what comes after.
    others = {
        "inventory",
        "accept_new",
        "fanout",
        "json",
        "detach",
        "dry_run",
        "verb",
        "verbose",
        "quiet",
    }
    others |= {"print_completion", "env_file"}  # its variables are in `env_from`
    assert set(LaunchFlags.__annotations__) - {"origins", "env_from"} == set(given) - others


def test_the_options_of_the_other_methods_are_the_commands_flags() -> None:
    pairs: dict[str, Callable[..., object]] = {
        "check": Session.check,
        "sync": Session.sync,
        "logs": Run.logs,
        "stop": Run.stop,
    }
    others = {"self", "on_event", "reason"}
    for verb, method in pairs.items():
        parser = build_parser([verb])
        flags = set(vars(parser.parse_args([verb])))
        assert set(inspect.signature(method).parameters) - others <= flags, verb


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        ({"gpus": -1}, "gpus: expected 0 or more, found -1"),
        ({"master_port": 70000}, "master_port: expected 1 to 65535, found 70000"),
        ({"lost_after": float("nan")}, "lost_after: expected"),
        ({"workdir": "here"}, "workdir: expected an absolute path"),
        ({"name": "a b"}, "--name: expected letters"),
        ({"nodes": 9}, "--nodes: expected 1 to 2, found 9"),
    ],
)
def test_a_value_that_cannot_be_is_refused_before_a_node_is_asked(
    tmp_path: Path, flags: dict[str, Any], wanted: str
) -> None:
    (tmp_path / "hosts.yaml").write_text("cluster: lab\nnodes: [a, b]\n")
    session = Session(tmp_path / "hosts.yaml")
    with pytest.raises(UsageError, match=wanted):
        session.launch(["train.py"], **flags)
    with pytest.raises(UsageError, match="expected a list of words"):
        session.launch("train.py --lr 1")
    with pytest.raises(TypeError, match="no flag 'gpu'"):
        session.launch(["train.py"], gpu=1)  # type: ignore[call-arg]
    with pytest.raises(clusterctl.InventoryError):
        Session(tmp_path / "none.yaml")


def test_a_closed_session_says_so(tmp_path: Path) -> None:
    (tmp_path / "hosts.yaml").write_text("cluster: lab\nnodes: [localhost]\n")
    with Session(tmp_path / "hosts.yaml") as session:
        assert repr(session) == "<Session lab: 1 nodes>"
    with pytest.raises(UsageError, match="closed"):
        session.check()


def test_a_check_prints_as_a_table_and_as_json(session: Session) -> None:
    heard: list[clusterctl.Event] = []
    report = session.check(skip="storage", on_event=heard.append)
    assert report.ok, report
    assert {type(event) for event in heard} == {Progress}
    document = json.loads(json.dumps(report.document()))
    assert [node["name"] for node in document["nodes"]] == [n.name for n in session.cluster.nodes]
    page = report._repr_html_()
    assert all(f"<td>{node.name}" in page for node in session.cluster.nodes)
    assert "body" not in page  # a notebook's own style is left alone
    assert str(report).startswith(f"{session.cluster.name}: 2 nodes")
    assert repr(report).startswith(f"<CheckReport {session.cluster.name}: ")
    one = session.check(nodes=1, only="ssh,node.python", exclude=first(session))
    assert [node.name for node in one.nodes] == [session.cluster.nodes[1].name]
    with pytest.raises(UsageError, match="expected checks or areas, found 'nework'"):
        session.check(only="nework")


def test_every_rank_returns_its_value_and_the_first_failure_is_raised(session: Session) -> None:
    lines: list[str] = []
    flags: dict[str, Any] = {"no_check": True, "on_line": lambda line: lines.append(str(line))}
    values = session.run(of_the_program(work), 5, **flags)
    assert values == [{"rank": 0, "value": 17}, {"rank": 1, "value": 17}]
    nodes = [node.name for node in session.cluster.nodes]
    assert sorted(lines) == sorted(f"[{n}:{r}] at work in {r}" for r, n in enumerate(nodes))
    with pytest.raises(FunctionFailed, match="ValueError: this rank cannot") as error:
        session.run(of_the_program(fails), **flags)
    assert (error.value.node, error.value.rank) == (nodes[1], 1)
    first, *_, last = error.value.traceback.splitlines()
    assert (first, last) == ("Traceback (most recent call last):", "ValueError: this rank cannot")
    assert 'raise ValueError("this rank cannot")' in error.value.traceback
    assert not list(Path.cwd().glob("clusterctl_call_*"))


def test_a_run_is_launched_read_and_stopped(session: Session) -> None:
    heard: list[clusterctl.Event] = []

    def hear(event: clusterctl.Event) -> None:
        heard.append(event)
        # Its name is known from here on: whoever dies now leaves a run that can be found.
        if isinstance(event, Planned):
            assert session.run(event.plan.run).id == event.plan.run

    run = session.launch(["train.py", "two words"], env=LONG, name="mine", on_event=hear)
    assert {Checked, Planned} <= {type(event) for event in heard}
    record = Records().find(run.id)
    assert record is not None
    kept = record.cluster.job
    assert (kept.launcher, kept.command, kept.env) == (
        "direct", ("train.py", "two words"), tuple(LONG.items()),
    )  # fmt: skip
    lines = run.logs(follow=True, rank=1)
    words = next(line for line in lines if line.text.startswith("words"))
    assert words == LogLine(words.time, session.cluster.nodes[1].name, 1, "words ['two words']")
    assert str(words) == f"[{words.node}:1] words ['two words']"
    lines.close()  # type: ignore[attr-defined]
    assert run.status().state == "running"
    assert [one.id for one in (session.run(), session.run("mine"), session.run(run.id))] == (
        [run.id] * 3
    )
    with pytest.raises(NotEnded) as caught:
        run.wait(timeout=0.2)
    assert isinstance(caught.value, TimeoutError)
    assert run.stop(grace=1).exit_code == 0
    ended = run.wait()
    assert (ended.exit_code, ended.ended_by) == (125, "stop")
    assert [(one.run, one.state) for one in session.runs()] == [(run.id, "stopped")]
    assert {line.rank for line in run.logs(tail=2, node=first(session))} == {0}


def test_waiting_and_events_transfer_no_more_of_the_logs_than_names_the_cause(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    take = RunLog.take

    def counted(log: RunLog, node: str, message: Message, *, now: float) -> Iterator[Event | Piece]:
        sizes.append(len(message.body))
        return take(log, node, message, now=now)

    monkeypatch.setattr(RunLog, "take", counted)
    noisy = {"NOISE": "1000000"}
    run = session.launch(env=noisy)
    heard: list[Event] = []
    assert run.wait(on_event=heard.append).exit_code == 0
    assert {event.event["kind"] for event in heard if isinstance(event, NodeEvent)} >= {
        "rank-started",
        "rank-ended",
    }
    assert sum(sizes) == 0

    run = session.launch(env={**noisy, "CODE": "7"})
    *happened, ended = run.events()
    assert happened
    assert not [event for event in happened if isinstance(event, LogLines)]
    assert isinstance(ended, RunResult)
    assert (ended.exit_code, ended.ended_by) == (7, "job")
    assert ended.view.first_cause is not None
    assert ended.view.first_cause.rank == 1
    assert "step 2" in ended.view.first_cause.message
    assert 0 < sum(sizes) < 100_000
    assert run.wait().exit_code == 7
    # A session of another day knows it too.
    assert session.run().status().state == "failed"


def test_a_pull_finds_the_folder_of_the_newest_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLUSTERCTL_STATE", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    code = tmp_path / "code"
    here = Node(name="a", host="localhost", ssh=Ssh(), local=True, workdir=str(code))
    cluster = Cluster(name="lab", nodes=(here,))
    Records().write(RunRecord(run="lab-1", began=1.0, cluster=cluster, options={"name": "try"}))
    out = code / "out" / "lab-1"
    out.mkdir(parents=True)
    (out / "try.txt").write_text("x")
    with Session(cluster) as session:
        session.pull("out/{run}/{name}.txt")
    assert (tmp_path / "pulled" / "out" / "lab-1" / "try.txt").read_text() == "x"


def test_a_run_is_resumed_from_its_newest_checkpoint(
    session: Session, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = session.launch()
    assert before.wait().exit_code == 0
    assert before.checkpoints() == ()
    for step in (10, 20):
        checkpoint(tmp_path / "code" / "out", step, before.id)
    (tmp_path / "code" / "out" / "step-000020" / "COMPLETE").unlink()
    assert [(one.step, one.complete) for one in before.checkpoints()] == [(20, False), (10, True)]
    (node, _) = session.plan(checkpoint="latest").nodes
    assert node.command_line[-1].endswith("step-000010")
    again = session.resume(checkpoint="latest", env={"STEPS": "1"})
    assert "skipped: step-000020" in caplog.text  # nobody asked for events
    path = tmp_path / "code" / "out" / "step-000010"
    assert any(line.text == f"words ['--from', '{path}']" for line in again.logs(follow=True))


def test_a_connection_outlives_a_cut_and_closes_nothing_that_is_shared(
    session: Session, hosts: Sandbox
) -> None:
    assert session.check(only="node.python").ok
    with session.connection(first(session)) as connection:
        assert isinstance(connection, fabric.Connection)
        assert connection.run("echo 23", **QUIET).stdout == "23\n"
    assert session.check(only="node.python").ok
    cut(hosts)
    while connection.is_connected:
        pass
    assert connection.run("echo 24", **QUIET).stdout == "24\n"
    assert session.check(only="node.python").ok
    with pytest.raises(UsageError, match="connection: expected nodes of"):
        session.connection("gpu99")
    with pytest.raises(UsageError, match="expected one node"):
        session.connection("127.0.0.1")


def test_a_node_that_was_away_is_asked_again(session: Session, hosts: Sandbox) -> None:
    hosts.fault("node2", "killed")
    away, name = session.check(only="ssh"), session.cluster.nodes[1].name
    assert [f.nodes for f in away.findings if f.status == "fail"] == [(name,)]
    group = session.group()
    with pytest.raises(GroupException) as caught:
        group.run("echo 23", **QUIET)
    assert [r.stdout for r in caught.value.result.succeeded.values()] == ["23\n"]
    (failure,) = caught.value.result.failed.values()
    assert isinstance(failure, clusterctl.CouldNotTell)
    hosts.heal()
    again = session.check(only="ssh")
    assert again.ok, str(again)
    assert {r.stdout for r in group.run("echo 24", **QUIET).values()} == {"24\n"}


def test_a_group_is_fabrics_own(session: Session) -> None:
    group = session.group()
    assert isinstance(group, fabric.Group)
    results = group.run("echo $HOME", **QUIET)
    assert len({result.stdout for result in results.values()}) == 2
    with pytest.raises(GroupException) as caught:
        group.run("cd $HOME; mkdir -p made; ls made/it", **QUIET)
    assert len(caught.value.result.failed) == 2
    group.close()
    assert session.check(only="node.python").ok
    assert len(session.group(exclude=first(session))) == 1


def test_this_machine_is_in_a_group_too(tmp_path: Path) -> None:
    (tmp_path / "hosts.yaml").write_text("cluster: here\nnodes: [localhost]\n")
    with Session(tmp_path / "hosts.yaml") as session:
        (result,) = session.group().run("echo 23", **QUIET).values()
        assert result.stdout == "23\n"
        with pytest.raises(UsageError, match="no files are copied"):
            session.connection("localhost").put("x")


def test_threads_share_a_session(session: Session) -> None:
    run = session.launch(env=LONG)
    next(line for line in run.logs(follow=True, rank=1) if line.text == "step 1")

    def use(number: int) -> None:
        assert run.status().state == "running"
        assert session.connection(first(session)).run(f"echo {number}", **QUIET).stdout == (
            f"{number}\n"
        )
        report = session.check(only="node.python")
        assert report.ok, report
        assert next(run.logs(follow=True, rank=number % 2)).rank == number % 2

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(use, range(3)))
    assert run.stop(grace=0).exit_code == 0


def test_nothing_grows_however_often_a_session_is_used_and_cut(
    session: Session, hosts: Sandbox
) -> None:
    def use() -> tuple[int, int]:
        assert session.check(only="node.python").ok
        session.group().run("true", **QUIET)
        session.runs()
        return psutil.Process().num_fds(), threading.active_count()

    def settled() -> tuple[int, int]:
        found = [use() for _ in range(3)]
        return min(fd for fd, _ in found), min(count for _, count in found)

    use()
    before = settled()
    for _ in range(5):
        cut(hosts)
        with contextlib.suppress(AssertionError, GroupException):
            use()  # what is on its way while it is cut may be lost
    after = settled()
    assert after[0] <= before[0] + 2
    assert after[1] <= before[1] + 2


def test_the_examples_of_the_page_run(
    session: Session, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They run one after the other, as in a notebook; a comment says what the job has done."""
    found = re.findall(
        r"(<!-- made\(run\) -->\n)?^```python\n(.*?)^```",
        PAGE.read_text(),
        re.DOTALL | re.MULTILINE,
    )
    assert len(found) >= 5
    with Session() as same:
        assert same.cluster == session.cluster
    session.check(only="ssh")  # its hosts' keys are known from here on
    steps = '"3" if "--from" in sys.argv else "100000"'
    Path("train.py").write_text(JOB.replace('"3"', steps))
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, (made, example) in enumerate(found):
        if made:
            checkpoint(tmp_path / "code" / "out", 10, names["run"].id)
        text = example.replace("gpu01", first(session))
        text = text.replace("hide=True", "hide=True, in_stream=False")
        cell = tmp_path / f"cell_{number}.py"  # a function is sent by its source
        cell.write_text(text)
        exec(compile(text, str(cell), "exec"), names)
    out = capsys.readouterr().out
    for line in (
        "running",
        "10 True",
        "[{'rank': 0, 'free': ",
        "RunResult",
        "command: expected the script missing.py",
    ):
        assert line in out
