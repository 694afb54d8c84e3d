"""`clusterctl exec` on real hosts: what is printed, what is left, and each way in which it ends."""

from __future__ import annotations

import json
import signal
import time
from typing import Any

import pytest

from clusterctl.cli.shared.main import main
from tests.cli.conftest import MakeProject
from tests.cli.runs import Project, signal_all
from tests.conftest import MakeSandbox
from tests.waiting import wait_until

HOSTS = ("node1", "node2", "node3")
EVIL = "$(touch /shared/evil); `id` 'a\" \\ \n*"


def documents(project: Project, *words: str) -> dict[str, Any]:
    found = json.loads(project.run("exec", "--json", *words).stdout)
    return {node["node"]: node for node in found["nodes"]}


def processes_called(project: Project, words: str) -> list[str]:
    listed = [project.sandbox.on(host, ["pgrep", "-f", words]) for host in HOSTS]
    return [line for one in listed for line in one.stdout.split()]


@pytest.mark.netns
class TestOnHosts:
    """On three healthy hosts."""

    def test_equal_output_is_printed_once_and_another_apart(self, project: Project) -> None:
        done = project.run("exec", "--", "uname", "-s")
        assert (done.returncode, done.stdout) == (0, "node[1-3] (3 nodes)\nLinux\n")
        assert done.stderr == "exit code 0 on 3 of 3 nodes\n"
        script = "hostname | tr -d 13; echo told >&2; test $(hostname) != node2"
        done = project.run("exec", "--", "sh", "-c", script)
        assert done.returncode == 1
        assert done.stdout == ("node[1,3] (2 nodes)\nnode\ntold\nnode2: exit code 1\nnode2\ntold\n")
        assert done.stderr == (
            "exit code 0 on 2 of 3 nodes: node[1,3]\nexit code 1 on 1 of 3 nodes: node2\n"
        )

    def test_words_reach_the_program_as_they_are(self, project: Project) -> None:
        found = documents(project, "--nodes", "node2", "--", "printf", "%s|", EVIL, "", "a  b")
        assert list(found) == ["node2"]
        assert found["node2"]["stdout"] == f"{EVIL}||a  b|"
        assert not (project.sandbox.shared / "evil").exists()

    def test_streams_are_apart_in_json_and_lines_come_with_their_node(
        self, project: Project
    ) -> None:
        script = "printf 'one\\ntwo'; printf '\\033[2Jthree\\n' >&2; exit 3"
        found = documents(project, "--", "sh", "-c", script)
        assert {node["exit_code"] for node in found.values()} == {3}
        assert {node["stdout"] for node in found.values()} == {"one\ntwo"}
        streamed = project.run("exec", "--stream", "--", "sh", "-c", script)
        expected = [f"[{host}] {word}" for host in HOSTS for word in ("one", "two")]
        assert sorted(streamed.stdout.splitlines()) == sorted(expected)
        assert {f"[{host}] three" for host in HOSTS} <= set(streamed.stderr.splitlines())
        assert streamed.returncode == 1

    def test_what_cannot_start_is_named_with_the_way_out(self, project: Project) -> None:
        done = project.run("exec", "--", "nvidia-smi | head")
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == (
            "error: node[1-3]: command not found: nvidia-smi | head\n"
            "hint: the node suggests: for a line of the shell: "
            "clusterctl exec -- sh -c 'nvidia-smi | head'\n"
            "not run on 3 of 3 nodes\n"
        )
        done = project.run("exec", "--", "ps | grep 'x'")
        assert (
            "hint: the node suggests: for a line of the shell: clusterctl exec -- sh -c 'LINE'"
            in done.stderr
        )
        done = project.run("exec", "--cwd", "/none", "--", "true")
        assert done.returncode == 1
        assert "--cwd: expected a folder on the node, found no /none\n" in done.stderr

    def test_where_a_relative_path_was_looked_for_is_told(self, project: Project) -> None:
        hint = "hint: the command ran in the home folder: --cwd DIR names another one\n"
        done = project.run("exec", "--", "ls", "no-such-file")
        assert (done.returncode, hint in done.stderr) == (1, True)
        done = project.run("exec", "--cwd", "/tmp", "--", "ls", "no-such-file")
        assert (done.returncode, hint in done.stderr) == (1, False)

    def test_signals_count_as_in_a_shell_and_input_is_at_its_end(self, project: Project) -> None:
        done = project.run("exec", "--", "sh", "-c", "cat; kill -9 $$")
        assert done.returncode == 1
        assert done.stderr == "exit code 137 on 3 of 3 nodes\n"

    def test_a_time_limit_ends_the_command_and_what_it_started(self, project: Project) -> None:
        script = "trap '' TERM; sleep 4711.25 & sleep 4711.25; sleep 4711.25"
        began = time.monotonic()
        done = project.run("exec", "--timeout", "1", "--", "sh", "-c", script)
        assert done.returncode == 1
        assert done.stderr == "ended after the time limit on 3 of 3 nodes\n"
        assert processes_called(project, "sleep 4711.25") == []
        assert time.monotonic() - began < 60

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
    def test_nothing_stays_when_the_controller_goes(self, project: Project, number: int) -> None:
        words = "sleep 4712.25"
        started = project.start("exec", "--", "sh", "-c", f"{words} & {words}")
        wait_until(lambda: len(processes_called(project, words)) >= len(HOSTS))
        signal_all(started, number)
        wait_until(lambda: not processes_called(project, words), seconds=120)

    def test_a_daemon_that_a_command_starts_holds_nothing_up(self, project: Project) -> None:
        done = project.run("exec", "--", "sh", "-c", "sleep 60 & echo started")
        assert (done.returncode, done.stdout) == (0, "node[1-3] (3 nodes)\nstarted\n")
        project.run("exec", "--", "pkill", "-x", "sleep")

    def test_more_than_is_kept_is_counted_and_streamed(self, project: Project) -> None:
        many = ("head", "-c", "3000000", "/dev/zero")
        found = documents(project, "--nodes", "node1", "--", *many)
        assert len(found["node1"]["stdout"]) == 1 << 20
        assert found["node1"]["truncated_bytes"] == 3000000 - (1 << 20)


@pytest.mark.netns
def test_a_node_that_does_not_answer_is_unknown_and_hides_no_other(
    make_sandbox: MakeSandbox, make_project: MakeProject
) -> None:
    project = make_project(make_sandbox(nodes=2))
    project.sandbox.fault("node2", "sshd-killed")
    done = project.run("exec", "--", "echo", "here")
    assert done.returncode == 3
    assert done.stdout == "node1\nhere\n"
    assert "node2: refused" in done.stderr
    assert "unknown on 1 of 2 nodes: node2" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "no command: expected one after `--`"),
        (["--sudo", "--", "id"], "clusterctl passes no password on"),
        (["--stream", "--json", "--", "id"], "expected either --stream or --json, found both"),
        (["--timeout", "0", "--", "id"], "expected more than 0 seconds"),
    ],
)
def test_what_cannot_be_is_refused_before_any_node_is_asked(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    inventory = tmp_path / "hosts.yaml"
    inventory.write_text("cluster: lab\nnodes: [gpu01]\n")
    assert main(["exec", "-i", str(inventory), *words]) == 2
    assert said in capsys.readouterr().err
