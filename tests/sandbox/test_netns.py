"""A netns host is a machine of its own, and this machine stays as it was."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterctl.errors import ClusterError
from clusterctl.sandbox import netns, processes, sandbox
from clusterctl.sandbox.layout import Layout
from clusterctl.sandbox.sandbox import Sandbox
from tests.conftest import MakeSandbox


def shell(box: Sandbox, node: str, script: str, user: str = "root") -> str:
    return box.run(["ssh", f"{user}@{node}", script]).stdout


def test_hosts_differ_in_what_tells_machines_apart(sandbox3: Sandbox) -> None:
    asked = "hostname; cat /etc/machine-id /proc/sys/kernel/random/boot_id"
    said = [line for h in sandbox3.hosts for line in shell(sandbox3, h.name, asked).split("\n")]
    assert len({line for line in said if line}) == 9


@pytest.mark.parametrize("folder", ["/root", "/tmp", "/var/tmp", "/dev/shm", "/workspace", "/run"])
def test_a_file_of_one_host_is_not_on_another(sandbox3: Sandbox, folder: str) -> None:
    shell(sandbox3, "node1", f"touch {folder}/of-node1")
    assert shell(sandbox3, "node1", f"ls {folder}/of-node1")
    assert not shell(sandbox3, "node2", f"ls {folder}/of-node1")
    assert not Path(folder, "of-node1").exists()


def test_the_shared_folder_is_one(sandbox3: Sandbox) -> None:
    shell(sandbox3, "node1", "echo hello > /shared/greeting")
    assert shell(sandbox3, "node3", "cat /shared/greeting") == "hello\n"
    assert (sandbox3.shared / "greeting").read_text() == "hello\n"


def test_the_programs_of_this_machine_cannot_be_changed(sandbox3: Sandbox) -> None:
    for folder in ("/usr", "/etc", "/opt", sys.prefix):
        refused = sandbox3.run(["ssh", "node1", f"touch {folder}/x 2>&1"])
        assert "Read-only" in refused.stdout


def test_a_host_runs_the_same_python(sandbox3: Sandbox) -> None:
    asked = f"{sys.executable} -c 'import sys, yaml; print(sys.prefix)'"
    assert shell(sandbox3, "node2", asked) == f"{sys.prefix}\n"


def test_processes_are_seen_on_their_own_host_only(sandbox3: Sandbox) -> None:
    shell(sandbox3, "node1", "sleep 4242 >/dev/null 2>&1 &")
    assert "sleep 4242" in shell(sandbox3, "node1", "ps ax")
    assert "sleep 4242" not in shell(sandbox3, "node2", "ps ax")


def test_somebody_who_is_not_root_can_log_in(sandbox3: Sandbox) -> None:
    said = shell(sandbox3, "node1", "id -un; pwd; touch x /tmp/ada /shared/ada && echo ok", "ada")
    assert said == "ada\n/home/ada\nok\n"


def test_a_strict_umask_changes_nothing(make_sandbox: MakeSandbox) -> None:
    before = os.umask(0o077)
    try:
        box = make_sandbox(nodes=1)
    finally:
        os.umask(before)
    assert shell(box, "node1", "getent hosts node1 && ls /sandbox/bin && id -un", "ada")


def test_orphans_are_collected(sandbox3: Sandbox) -> None:
    shell(sandbox3, "node1", "(sh -c 'exit 7' &) ; sleep 0.1")
    assert "defunct" not in shell(sandbox3, "node1", "ps ax")


def test_hosts_reach_each_other_and_nothing_else(sandbox3: Sandbox) -> None:
    assert sandbox3.on("node1", ["ping", "-c1", "-W1", "node2"]).returncode == 0
    assert sandbox3.on("node1", ["ip", "route", "show", "default"]).stdout == ""


def test_the_network_of_this_machine_is_untouched(make_sandbox: MakeSandbox) -> None:
    def look() -> list[str]:
        words = ("ip -o link", "ip route", "ip netns", "nft list ruleset")
        commands = (word.split() for word in words)
        return [
            subprocess.run(c, capture_output=True, text=True, check=False).stdout for c in commands
        ]

    before, mounts = look(), Path("/proc/self/mountinfo").read_text()
    box = make_sandbox(nodes=2)
    box.fault("node1", "port-dropped")
    assert look() == before
    assert Path("/proc/self/mountinfo").read_text() == mounts


def test_a_start_that_was_cut_off_is_cleaned_up(
    make_sandbox: MakeSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_sandbox(nodes=1).down()  # skips where there are no namespaces
    layout = Layout.of(f"cut-{os.getpid()}")

    def cut_off(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(netns.Netns, "await_link", cut_off)
    with monkeypatch.context() as patch:
        patch.setattr(sandbox, "remove", lambda _: None)
        with pytest.raises(KeyboardInterrupt):
            sandbox.up(layout.name, nodes=2, backend="netns")
    assert processes.stamped(layout.root)
    with pytest.raises(ClusterError, match="not started to the end"):
        sandbox.find(layout.name)
    sandbox.remove(layout.name)
    assert not processes.stamped(layout.root)
    assert not layout.root.exists()


def test_a_host_that_does_not_start_says_why(
    make_sandbox: MakeSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_sandbox(nodes=1)
    monkeypatch.setattr(netns, "INTERFACES", ("a-name-that-is-too-long",))
    with pytest.raises(ClusterError, match="too-long"):
        make_sandbox(nodes=1)


def test_what_comes_while_a_sandbox_goes_down_is_not_taken_for_its_own(
    make_sandbox: MakeSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel gives a namespace's number to the next one, perhaps to another sandbox's."""
    box = make_sandbox(nodes=3)
    first = netns.Netns(box.layout).first
    gone = {processes.namespace(first(host), kind) for host in box.hosts for kind in ("net", "pid")}
    end = processes.end
    reused: list[int | None] = []

    def slowly(find: Callable[[], set[int]]) -> set[int]:
        left = end(find)
        argv = ["unshare", "-n", "-p", "-f", "stat", "-L", "-c", "%i"]
        for _ in range(50):
            argv_of_one = [*argv, "/proc/self/ns/net", "/proc/self/ns/pid_for_children"]
            said = subprocess.run(argv_of_one, capture_output=True, text=True, check=True).stdout
            reused.extend(gone & set(map(int, said.split())))
        return left

    monkeypatch.setattr(processes, "end", slowly)
    assert netns.Netns(box.layout).end() == set()
    assert reused == []


NESTED = """
import ctypes, os, sys
from pathlib import Path
from clusterctl.sandbox.host import bind, mount
outer, shown = Path(sys.argv[1], "outer"), Path(sys.argv[1], "shown")
shown.mkdir(); (outer / "inner").mkdir(parents=True)
mount("tmpfs", outer / "inner", "tmpfs")
bind(outer, shown, read_only=True)
for folder in (shown, shown / "inner"):
    try:
        (folder / "file").touch()
    except OSError as error:
        print(error.errno)
(outer / "inner" / "file").touch()
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount")
def test_what_is_shown_read_only_is_so_on_the_mounts_below_it(tmp_path: Path) -> None:
    done = subprocess.run(
        ["unshare", "--mount", sys.executable, "-c", NESTED, str(tmp_path)],
        stdout=subprocess.PIPE,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.stdout.split() == [str(errno.EROFS).encode()] * 2
