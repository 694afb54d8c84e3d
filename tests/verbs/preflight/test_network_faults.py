"""Faults of links and paths between real hosts: each names its node, and nothing else fails."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.verbs.preflight import test_check
from tests.verbs.preflight.test_check import checked, inventory

if TYPE_CHECKING:
    from clusterctl.sandbox.sandbox import Sandbox
    from tests.conftest import MakeSandbox

pytestmark = pytest.mark.netns
STATISTICS = "/sys/class/net/{}/statistics/{}"


def wrong(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the findings on the network: a busy machine may be late with an answer to ping."""
    return [one for one in test_check.wrong(document) if one["check"].startswith("network.")]


def on(box: Sandbox, node: str, *argv: str, text: str = "") -> str:
    done = box.on(node, list(argv), input=text)
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def replace_file(box: Sandbox, node: str, path: str, text: str) -> Path:
    """Put a file of ours over one of the kernel's, and return it."""
    own = Path(box.folder(node)) / path.replace("/", "_")
    own.write_text(text)
    on(box, node, "mount", "--bind", box.backend.seen(box.host(node), own.name), path)
    return own


@contextmanager
def growing(path: Path) -> Iterator[None]:
    """Count in a file, as a link does that has errors."""
    over = threading.Event()

    def count() -> None:
        descriptor = os.open(path, os.O_WRONLY)
        for number in itertools.count(1):
            os.pwrite(descriptor, f"{number:012}\n".encode(), 0)
            if over.wait(0.01):
                break
        os.close(descriptor)

    thread = threading.Thread(target=count)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


LARGE = """
table inet switch {{
 chain i {{ type filter hook input priority 0; {family} saddr @nodes meta length > 1400 drop; }}
 chain o {{ type filter hook output priority 0; {family} daddr @nodes meta length > 1400 drop; }}
 set nodes {{ type {kind}; elements = {{ {nodes} }}; }}
}}
"""


def drop_large_packets(box: Sandbox, node: str) -> None:
    """Drop what is large between this host and others, as a switch port with a small MTU does."""
    others = [host.address for host in box.hosts if host.name != node]
    family, kind = ("ip6", "ipv6_addr") if ":" in others[0] else ("ip", "ipv4_addr")
    rules = LARGE.format(family=family, kind=kind, nodes=", ".join(others))
    on(box, node, "nft", "-f", "-", text=rules)


def test_each_node_is_told_what_is_wrong_with_its_link(make_sandbox: MakeSandbox) -> None:
    box = make_sandbox(nodes=7)
    flapping = box.host("node3")
    for _ in range(12):
        box.backend.run_ip(f"link set {flapping.name} down", f"link set {flapping.name} up")  # type: ignore[attr-defined]
    box.backend.wait_for_links([flapping])  # type: ignore[attr-defined]
    duplex = f"/sys/class/net/{box.host('node4').interface}/duplex"
    replace_file(box, "node4", duplex, "half\n")
    replace_file(box, "node5", "/proc/sys/net/netfilter/nf_conntrack_count", "262000\n")
    replace_file(box, "node5", "/proc/sys/net/netfilter/nf_conntrack_max", "262144\n")
    on(box, "node6", "sysctl", "-qw", "net.ipv4.ip_local_port_range=50000 51000")
    drop_large_packets(box, "node7")
    counter = STATISTICS.format(box.host("node2").interface, "rx_crc_errors")
    with growing(replace_file(box, "node2", counter, "000000000000\n")):
        code, document = checked(box)

    found = {f["check"]: f for f in wrong(document)}
    assert code == 1
    assert {check: (f["status"], f["nodes"]) for check, f in found.items()} == {
        "network.errors": ("warn", ["node2"]),
        "network.flaps": ("warn", ["node3"]),
        "network.link": ("warn", ["node4"]),
        "network.conntrack": ("fail", ["node5"]),
        "network.ephemeral-ports": ("warn", ["node6"]),
        "network.full-size": ("fail", ["node7"]),
    }
    assert len(wrong(document)) == len(found)
    assert found["network.errors"]["message"] == "enp3s0 counts errors during this check"
    assert found["network.errors"]["found"].startswith("rx_crc_errors +")
    assert int(found["network.flaps"]["found"].split()[0]) >= 24
    assert found["network.link"]["found"] == "half duplex on eno1np0"
    assert found["network.full-size"]["message"].startswith(
        "packets of 1500 bytes between it and node1, "
    )


def test_a_switch_port_that_drops_large_packets_is_named(make_sandbox: MakeSandbox) -> None:
    box = make_sandbox(ip="6")
    drop_large_packets(box, "node2")

    code, document = checked(box)

    (finding,) = wrong(document)
    assert (code, finding["check"], finding["nodes"]) == (1, "network.full-size", ["node2"])
    assert finding["message"] == (
        "packets of 1500 bytes between it and node1, node3 are lost; small ones arrive"
    )


@pytest.mark.soak  # above, one port; tests/checks/network.full-size
def test_a_switch_that_drops_large_packets_is_no_fault_of_one_node(
    make_sandbox: MakeSandbox,
) -> None:
    box = make_sandbox()
    for host in box.hosts:
        on(box, host.name, "ip", "link", "set", host.interface, "mtu", "9000")
        box.backend.run_ip(f"link set {host.name} mtu 9000")  # type: ignore[attr-defined]
    assert wrong(checked(box)[1]) == []
    for host in box.hosts:
        drop_large_packets(box, host.name)

    code, document = checked(box)

    (finding,) = wrong(document)
    assert (code, finding["check"]) == (1, "network.full-size")
    assert finding["nodes"] == ["node1", "node2", "node3"]
    assert "9000 bytes between the nodes" in finding["message"]
    assert "mtu 1500" in finding["remedy"]


def test_a_policy_rule_that_sends_packets_elsewhere_is_named(make_sandbox: MakeSandbox) -> None:
    box = make_sandbox()
    box.fault("node3", "second-interface")
    on(box, "node3", "ip", "route", "add", "10.77.0.12", "dev", "ens9", "table", "100")
    on(box, "node3", "ip", "rule", "add", "to", "10.77.0.12", "lookup", "100")

    code, document = checked(box)

    (finding,) = wrong(document)
    assert (code, finding["check"], finding["nodes"]) == (1, "network.route", ["node3"])
    assert finding["message"] == "packets to 10.77.0.12 leave through ens9"
    assert finding["found"] == "a policy rule sends them through ens9"


def test_a_bridge_whose_subnet_holds_other_nodes_is_named(make_sandbox: MakeSandbox) -> None:
    box = make_sandbox()
    bridge(box, "node1", "docker0", "10.77.0.14/30")  # node2 and node3, not the controller

    code, document = checked(box)

    (finding,) = wrong(document)
    assert (code, finding["check"], finding["nodes"]) == (1, "network.route", ["node1"])
    assert "leave through docker0, whose own subnet" in finding["message"]


def bridge(box: Sandbox, node: str, name: str, address: str) -> None:
    on(box, node, "ip", "link", "add", name, "type", "bridge")
    on(box, node, "ip", "addr", "add", address, "dev", name)
    on(box, node, "ip", "link", "set", name, "up")


def test_a_second_network_and_bridges_of_container_engines_raise_no_alarm(
    make_sandbox: MakeSandbox,
) -> None:
    box = make_sandbox()
    for host in box.hosts:
        box.fault(host.name, "second-interface")
        on(box, host.name, "sysctl", "-qw", "net.ipv4.conf.all.rp_filter=1")
        bridge(box, host.name, "docker0", "172.17.0.1/16")
        bridge(box, host.name, "br-7d1f", "172.18.0.1/16")
    bridge(box, "node2", "cni0", "10.42.1.1/24")

    _, document = checked(box)

    assert wrong(document) == []


@pytest.mark.soak  # tests/checks/network.subnet/an-address-alone.json
def test_single_addresses_of_a_cloud_raise_no_alarm(make_sandbox: MakeSandbox) -> None:
    box = make_sandbox()
    for host in box.hosts:
        on(box, host.name, "ip", "addr", "flush", "dev", host.interface)
        on(box, host.name, "ip", "addr", "add", f"{host.address}/32", "dev", host.interface)
        on(box, host.name, "ip", "route", "add", "10.77.0.0/24", "dev", host.interface)

    _, document = checked(box)

    assert wrong(document) == []


@pytest.mark.soak  # tests/cli/test_other_hosts.py launches on such hosts
def test_hosts_with_ipv6_alone_raise_no_alarm(make_sandbox: MakeSandbox) -> None:
    _, document = checked(make_sandbox(ip="6"))

    assert wrong(document) == []
    assert all(row["address"].startswith("fd77:") for row in document["nodes"])
    done = {f["check"] for f in document["findings"] if f["status"] == "pass"}
    assert done >= {"network.full-size", "network.route", "network.master-reach"}


def test_two_interfaces_in_one_subnet_that_are_kept_apart(make_sandbox: MakeSandbox) -> None:
    box = make_sandbox()
    box.fault("node2", "second-interface", "ens9=10.77.0.99/24")
    (finding,) = wrong(checked(box)[1])
    assert finding["check"] == "network.route"
    for setting in ("rp_filter=2", "arp_ignore=1"):
        on(box, "node2", "sysctl", "-qw", f"net.ipv4.conf.all.{setting}")

    assert wrong(checked(box)[1]) == []


def test_an_ephemeral_master_port_is_well_once_it_is_reserved(
    make_sandbox: MakeSandbox, tmp_path: Path
) -> None:
    box = make_sandbox()
    path = inventory(box, tmp_path / "hosts.yaml", network={"master_port": 40123})
    (finding,) = wrong(checked(box, "-i", path)[1])
    assert (finding["check"], finding["nodes"]) == ("network.ephemeral-ports", ["node1"])
    command = finding["remedy"].removeprefix("sudo ").split(" (on")[0]

    on(box, "node1", *command.split())

    assert wrong(checked(box, "-i", path)[1]) == []
