"""A sandbox comes up as real hosts, refuses a second start, and leaves nothing behind."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from clusterctl.errors import UsageError
from clusterctl.sandbox import cgroup, processes, sandbox
from clusterctl.sandbox.backend import SandboxSpec
from clusterctl.sandbox.layout import BackendName, Layout
from clusterctl.sandbox.sandbox import Sandbox
from tests.conftest import MakeSandbox


@pytest.mark.parametrize("backend", ["netns", "loopback"])
def test_ssh_reads_its_own_settings_and_none_of_this_account(
    make_sandbox: MakeSandbox, backend: BackendName
) -> None:
    box = make_sandbox(nodes=1, backend=backend)
    done = box.run(["ssh", "-G", "node1"])
    assert f"userknownhostsfile {box.layout.ssh / 'known_hosts'}\n" in done.stdout
    assert f"identityfile {box.layout.key}\n" in done.stdout
    assert box.run(["ssh", "-o", "StrictHostKeyChecking=yes", "node1", "true"]).returncode == 0


def test_every_host_answers_ssh_under_its_own_name(sandbox3: Sandbox) -> None:
    said = [sandbox3.run(["ssh", host.name, "hostname"]).stdout for host in sandbox3.hosts]
    assert said == ["node1\n", "node2\n", "node3\n"]


def test_interface_names_differ(sandbox3: Sandbox) -> None:
    for host in sandbox3.hosts:
        shown = sandbox3.on(host.name, ["ip", "-br", "address", "show", "dev", host.interface])
        assert f"{host.address}/24" in shown.stdout
    assert len({host.interface for host in sandbox3.hosts}) == 3


def test_a_name_is_taken_once(make_sandbox: MakeSandbox) -> None:
    box = make_sandbox(nodes=1)
    with pytest.raises(UsageError, match="already exists") as refused:
        sandbox.up(box.name, SandboxSpec())
    assert refused.value.hint == f"clusterctl sandbox down --name {box.name}"


@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_a_folder_that_others_may_write_to_holds_no_sandbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    monkeypatch.setenv("CLUSTERCTL_SANDBOXES", str(tmp_path / "open"))
    (tmp_path / "open" / "lab").mkdir(parents=True)
    (tmp_path / "open" / "lab" / "sandbox.json").write_text("{}")
    (tmp_path / "open").chmod(mode)
    for use in (partial(sandbox.up, spec=SandboxSpec()), sandbox.find, sandbox.remove):
        with pytest.raises(UsageError, match=f"mode {mode:o}") as refused:
            use("lab")
        assert refused.value.hint == f"chmod 700 {tmp_path}/open"


def test_a_sandbox_ends_its_own_control_groups_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroup, "MOUNT", tmp_path)
    lab, other = (tmp_path / cgroup._name(Layout.of(name), "node1") for name in ("lab", "lab-2"))
    lab.mkdir()
    other.mkdir()
    cgroup.remove(Layout.of("lab"))
    assert list(tmp_path.iterdir()) == [other]


def test_down_leaves_nothing(make_sandbox: MakeSandbox) -> None:
    box = make_sandbox(nodes=2)
    box.run(["sh", "-c", "sleep 1000 >/dev/null 2>&1 &"])
    assert processes.stamped(box.layout.root)
    box.down()
    assert not processes.stamped(box.layout.root)
    assert not box.layout.root.exists()
    box.down()


def test_several_may_take_down_the_same_sandbox_at_once() -> None:
    name = f"t{os.getpid()}-at-once"
    root = Layout.of(name).root
    for number in range(300):
        (root / str(number % 10) / str(number)).mkdir(parents=True)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(sandbox.remove, [name] * 4))
    assert not root.exists()
