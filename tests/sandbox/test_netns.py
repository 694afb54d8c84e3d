"""A netns host is a machine of its own, and this machine stays as it was."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterctl.errors import ClusterError, UsageError
from clusterctl.inventory.load import load
from clusterctl.sandbox import hostfiles, netns, processes, sandbox
from clusterctl.sandbox.backend import SandboxSpec
from clusterctl.sandbox.layout import Layout
from clusterctl.sandbox.sandbox import Sandbox
from tests.conftest import MakeSandbox, need_netns
from tests.required import REQUIRED


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


def test_each_user_has_a_home_a_key_and_an_inventory(make_sandbox: MakeSandbox) -> None:
    box = make_sandbox(nodes=1, users=("ada", "bob"))
    for user, uid in (("ada", 2000), ("bob", 2001)):
        said = shell(box, "node1", "id -u; id -un; pwd; stat -c %U:%G $HOME/.ssh", user)
        assert said == f"{uid}\n{user}\n/home/{user}\n{user}:{user}\n"
    assert shell(box, "node1", "ls /home/ada; echo", "bob") == "\n"
    key = ["-o", "IdentitiesOnly=yes", "-F", "none", "-o", "BatchMode=yes"]
    key += ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"]
    key += ["-i", str(box.layout.key_of("ada"))]
    assert box.run(["ssh", *key, "ada@node1", "true"]).returncode == 0
    assert "Permission denied" in box.run(["ssh", *key, "bob@node1", "true"]).stderr
    found = {
        load(path).nodes[0].ssh.user for path in (box.inventory, box.layout.inventory_of("bob"))
    }
    assert found == {"ada", "bob"}


@pytest.mark.parametrize("user", ["", "sshd", "Ada", "a/b", "-a"])
def test_a_user_that_cannot_be_is_refused(user: str) -> None:
    with pytest.raises(UsageError, match="--users: expected"):
        hostfiles.check_user(user)


def test_hosts_behind_jump_hosts_are_reached_through_them_only(make_sandbox: MakeSandbox) -> None:
    box = make_sandbox(nodes=1, jumps=2, ip="both")
    assert shell(box, "node1", "hostname") == "node1\n"
    node, second = box.hosts[0], box.jumps[1]
    for address in (*node.addresses, *second.addresses):
        tried = box.run(["ssh", "-F", "none", "-o", "ConnectTimeout=5", address, "true"])
        assert "unreachable" in tried.stderr
    assert box.on("gate1", ["ping", "-c1", "-W1", node.address]).returncode != 0


def test_hosts_of_ipv6_have_no_other_address(make_sandbox: MakeSandbox) -> None:
    box = make_sandbox(nodes=2, ip="6")
    assert box.on("node1", ["ip", "-4", "route"]).stdout == ""
    assert shell(box, "node1", "getent ahosts node2 | cut -d' ' -f1 | uniq") == "fd77::12\n"
    assert box.on("node1", ["ping", "-c1", "-W5", "node2"]).returncode == 0


REPLACED = """
mount --bind "$1" /etc && "$2" -c '
import os, sys
from pathlib import Path
from clusterctl.sandbox import sandbox
from clusterctl.sandbox.backend import SandboxSpec

box = sandbox.up(sys.argv[1], SandboxSpec(nodes=1), backend="netns")
try:
    accounts = Path("/etc/passwd").read_text() + "newcomer:x:4242:4242::/:/bin/false\\n"
    Path("/etc/passwd+").write_text(accounts)
    os.replace("/etc/passwd+", "/etc/passwd")
    print(box.run(["ssh", "ada@node1", "id -un; tail -c 6 /etc/hostname"]))
finally:
    box.down()
' "$3"
"""


def test_an_account_added_to_this_machine_changes_no_host(
    make_sandbox: MakeSandbox, tmp_path: Path
) -> None:
    """As `useradd` does it: another file takes the place of /etc/passwd."""
    make_sandbox(nodes=1).down()  # skips where there are no namespaces
    etc = tmp_path / "etc"
    shutil.copytree("/etc", etc, symlinks=True)
    words = ["unshare", "--mount", "sh", "-c", REPLACED, "sh", str(etc), sys.executable]
    done = subprocess.run(
        [*words, f"etc-{os.getpid()}"],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert "stdout='ada\\nnode1\\n'" in done.stdout, done.stdout
    assert "newcomer" in (etc / "passwd").read_text()


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

    monkeypatch.setattr(netns.Netns, "wait_for_links", cut_off)
    with monkeypatch.context() as patch:
        patch.setattr(sandbox, "remove", lambda _: None)
        with pytest.raises(KeyboardInterrupt):
            sandbox.up(layout.name, SandboxSpec(nodes=2), backend="netns")
    assert processes.stamped(layout.root)
    with pytest.raises(ClusterError, match="did not start fully"):
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
    init_pid = netns.Netns(box.layout).init_pid
    pids = [init_pid(host.name) for host in box.hosts]
    gone = {processes.namespace(pid, kind) for pid in pids for kind in ("net", "pid")}
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


@pytest.mark.parametrize("required", ["", "netns", "gpu,netns"])
def test_what_is_demanded_is_not_skipped(monkeypatch: pytest.MonkeyPatch, required: str) -> None:
    monkeypatch.setattr(netns, "missing", lambda: "none here")
    monkeypatch.setenv(REQUIRED, required)
    outcome = pytest.fail.Exception if required else pytest.skip.Exception
    with pytest.raises(outcome, match="no network namespaces here: none here"):
        need_netns()


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


def test_hosts_have_the_packages_that_a_pth_file_adds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    added = tmp_path / "site-packages"
    added.mkdir()
    monkeypatch.syspath_prepend(str(added))
    assert added in netns.python_folders()
