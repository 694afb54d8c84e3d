"""Faults of the hosts themselves: each names its node, and nothing else fails."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.verbs.preflight.test_check import checked, inventory, wrong
from tests.verbs.preflight.test_network_faults import on, replace_file
from tests.waiting import wait_until

if TYPE_CHECKING:
    from tests.conftest import MakeSandbox

pytestmark = pytest.mark.netns
CLOCK = "/sys/devices/system/clocksource/clocksource0/current_clocksource"
LEFT = "RANK=3 WORLD_SIZE=8 setsid sh -c 'sleep 1000 >/dev/null 2>&1 & exit'"


def found(document: dict[str, Any]) -> set[tuple[str, str, str]]:
    """Return status, check and node of what is wrong."""
    return {(f["status"], f["check"], node) for f in wrong(document) for node in f["nodes"]}


def the(document: dict[str, Any], check: str) -> dict[str, Any]:
    (finding,) = [each for each in wrong(document) if each["check"] == check]
    return finding


def test_each_host_is_told_what_is_wrong_with_it(make_sandbox: MakeSandbox) -> None:
    box = make_sandbox()
    vmstat = Path("/proc/vmstat").read_text()
    replace_file(box, "node1", "/proc/vmstat", re.sub(r"oom_kill \d+", "oom_kill 3", vmstat))
    replace_file(box, "node1", "/proc/uptime", "7200.0 1.0\n")
    on(box, "node2", "sh", "-c", LEFT)
    replace_file(box, "node2", "/etc/hosts", "127.0.0.1 localhost\n10.77.0.11 node1 node2\n")
    total = re.sub(r"(MemTotal: +)\d+", r"\g<1>8000000", Path("/proc/meminfo").read_text())
    replace_file(box, "node3", "/proc/meminfo", total)
    replace_file(box, "node3", CLOCK, "acpi_pm\n")
    on(box, "node3", "touch", "/run/reboot-required")

    code, document = checked(box)

    assert found(document) == {
        ("warn", "node.oom", "node1"),
        ("warn", "node.leftovers", "node2"),
        ("warn", "node.hostname", "node2"),
        ("warn", "node.memory", "node3"),
        ("warn", "node.kernel-settings", "node3"),
        ("warn", "node.reboot", "node3"),
    }
    assert code == 0
    pid = on(box, "node2", "pgrep", "-f", "^sleep 1000").strip()
    assert the(document, "node.leftovers")["remedy"] == f"kill {pid} (on the node)"
    on(box, "node2", "kill", pid)
    assert ("warn", "node.leftovers", "node2") not in found(checked(box)[1])


def test_a_shell_that_is_slow_and_sets_limits(make_sandbox: MakeSandbox) -> None:
    box = make_sandbox(shells=("bash",))
    Path(box.folder("node2"), "root", ".bashrc").write_text("sleep 6\n")
    Path(box.folder("node3"), "root", ".bashrc").write_text("ulimit -n 1000; ulimit -u 500\n")
    on(box, "node3", "hostname", "node1")

    _, document = checked(box)

    assert found(document) == {
        ("warn", "ssh.login", "node2"),
        ("warn", "node.open-files", "node3"),
        ("warn", "node.hostname", "node1"),
        ("warn", "node.hostname", "node3"),
    }
    assert "start files" in the(document, "ssh.login")["message"]


def test_a_process_that_waits_for_a_dead_file_server(make_sandbox: MakeSandbox) -> None:
    box = make_sandbox(nodes=2)
    box.fault("node2", "hung-mount", "/workspace")
    box.on("node2", ["sh", "-c", "setsid cat /workspace/x >/dev/null 2>&1 &"])
    wait_until(lambda: wrong(checked(box, "--only", "node.stuck")[1]))
    seen = wrong(checked(box, "--only", "node.stuck")[1])
    (finding,) = seen
    assert finding["nodes"] == ["node2"]
    assert re.search(r"pid \d+, for \d+ s, in \w+: cat$", finding["found"])


def test_a_disk_without_inodes_and_a_model_that_was_cut(
    make_sandbox: MakeSandbox, tmp_path: Path
) -> None:
    box = make_sandbox()
    folder = "/workspace/model"
    job = {"command": ["t.py"], "checkpoints": "/workspace/out", "needs": [folder]}
    hosts = inventory(box, tmp_path / "hosts.yaml", workdir="/workspace", job=job)
    on(box, "node1", "mount", "-t", "tmpfs", "-o", "nr_inodes=600", "tmpfs", "/workspace")
    index = '{"weight_map": {"a": "model-1.safetensors"}}'
    for node in ("node1", "node2", "node3"):
        on(box, node, "mkdir", folder)
        on(box, node, "tee", f"{folder}/model.safetensors.index.json", text=index)
        on(box, node, "tee", f"{folder}/model-1.safetensors", text="\2\0\0\0\0\0\0\0{}")
        on(box, node, "tee", f"{folder}/config.json", text="{}")
    on(box, "node2", "truncate", "-s", "9", f"{folder}/model-1.safetensors")

    code, document = checked(box, "-i", hosts)

    assert found(document) == {
        ("fail", "storage.room", "node1"),
        ("fail", "storage.model", "node2"),
    }
    assert code == 1
    assert "--inodes" in the(document, "storage.room")["remedy"]
    assert "model-1.safetensors" in the(document, "storage.model")["found"]
    left = on(box, "node2", "find", "/workspace", "-name", ".clusterctl*")
    assert left == ""
