"""`check` over healthy hosts that are unusual: nothing is wrong, and nothing is unknown.

Bridges, two networks, /32 addresses and IPv6 are in `test_network_faults`; VLANs are in fixtures.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from clusterctl.sandbox.gpus import Gpus
from tests.verbs.preflight.test_check import checked, wrong
from tests.verbs.preflight.test_host_faults import CLOCK
from tests.verbs.preflight.test_network_faults import on, replace_file
from tests.waiting import wait_until

if TYPE_CHECKING:
    from clusterctl.sandbox.sandbox import Sandbox
    from tests.conftest import MakeSandbox

pytestmark = pytest.mark.netns

PROXY = "export http_proxy=http://proxy:3128 https_proxy=http://proxy:3128 no_proxy=localhost\n"


def a_banner_and_one_session(box: Sandbox) -> None:
    """As on hardened machines: a legal notice, and no second session in a connection."""
    for host in box.hosts:
        own = Path(box.folder(host.name))
        (own / "notice").write_text("Authorized use only!\n" * 20)
        with (own / "sshd_config").open("a") as file:
            file.write("Banner /sandbox/notice\nMaxSessions 1\n")
        on(box, host.name, "sh", "-c", "kill -HUP $(cat /sandbox/sshd.pid)")
    wait_until(lambda: "Authorized" in box.run(["ssh", "ada@node3", "true"]).stderr)


def a_proxy(box: Sandbox) -> None:
    for host in box.hosts:
        rc = Path(box.folder(host.name)) / "home" / "ada" / ".bashrc"
        rc.write_text(rc.read_text() + PROXY)


def a_name_that_is_loopback(box: Sandbox) -> None:
    """As Debian's and Ubuntu's installers write it."""
    for host in box.hosts:
        text = f"127.0.0.1 localhost\n127.0.1.1 {host.name}\n"
        on(box, host.name, "tee", "/etc/hosts", text=text)


def packages_in_loop_mounts(box: Sandbox) -> None:
    """As snap mounts them: full, read-only and noexec or not."""
    for host in box.hosts:
        for name in ("core22", "lxd"):
            on(box, host.name, "mkdir", "-p", f"/run/snap/{name}")
            options = ["-t", "tmpfs", "-o", "ro,nodev,size=4k", "tmpfs"]
            on(box, host.name, "mount", *options, f"/run/snap/{name}")


def clocks_of_hypervisors(box: Sandbox) -> None:
    """As on KVM, Hyper-V (Azure, WSL 2) and ARM: each is as fast as the TSC."""
    clocks = ("kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter")
    for host, clock in zip(box.hosts, clocks, strict=True):
        replace_file(box, host.name, CLOCK, f"{clock}\n")


def kernels_without_swap(box: Sandbox) -> None:
    memory = re.sub(r"(Swap\w+: +)\d+", r"\g<1>0", Path("/proc/meminfo").read_text())
    kernels = ("6.8.0-1021-aws", "6.8.0-1021-azure", "5.15.167.4-microsoft-standard-WSL2")
    for host, kernel in zip(box.hosts, kernels, strict=True):
        replace_file(box, host.name, "/proc/meminfo", memory)
        replace_file(box, host.name, "/proc/sys/kernel/osrelease", f"{kernel}\n")


def no_room_to_ask_the_kernel(box: Sandbox) -> None:
    """As in containers: no kernel log, no cgroups, no list of modules."""
    for host in box.hosts:
        for path in ("/sys/fs/cgroup", "/sys/module"):
            on(box, host.name, "mount", "-t", "tmpfs", "-o", "ro", "tmpfs", path)


UNUSUAL: tuple[Callable[[Sandbox], None], ...] = (
    a_banner_and_one_session,
    a_proxy,
    a_name_that_is_loopback,
    packages_in_loop_mounts,
    clocks_of_hypervisors,
    kernels_without_swap,
    no_room_to_ask_the_kernel,
)


@pytest.mark.parametrize(
    "changes",
    [UNUSUAL, *(pytest.param((one,), marks=pytest.mark.soak) for one in UNUSUAL)],
    ids=lambda changes: "-".join(one.__name__ for one in changes),
)
def test_an_ordinary_user_on_cloud_images_whose_shells_print(
    make_sandbox: MakeSandbox, changes: tuple[Callable[[Sandbox], None], ...]
) -> None:
    box = make_sandbox(users=("ada",), shells=("bash+noise",))
    for change in changes:
        change(box)

    code, document = checked(box)

    assert (code, wrong(document)) == (0, [])
    if a_proxy in changes:
        seen = {f["check"]: f["status"] for f in document["findings"]}
        assert seen["network.proxy"] == "pass"


def test_gpus_that_an_ordinary_user_sees_without_the_kernel_log(make_sandbox: MakeSandbox) -> None:
    box = make_sandbox(nodes=2, users=("ada",), gpus=Gpus(model="H100", count=8))
    for host in box.hosts:
        log = box.backend.layout.host(host.name) / "bin" / "nvidia-smi.xml"
        mode = "<persistence_mode>{}<".format
        log.write_text(log.read_text().replace(mode("Enabled"), mode("Disabled")))

    code, document = checked(box, "--only", "accelerator,node")

    assert (code, wrong(document)) == (0, [])
    seen = {f["check"]: f["status"] for f in document["findings"]}
    assert seen["accelerator.xid"] == "skip"
