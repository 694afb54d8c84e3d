"""Interfaces and addresses by netlink are those that `ip` lists."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import Any

import pytest

from clusterctl.node.probe.interface_addresses import list_interfaces
from tests.installed import LOCATION

needs_ip = pytest.mark.skipif(not shutil.which("ip"), reason="the program ip is not installed")
ASK = (
    "import sys, json; sys.path.insert(0, sys.argv[1]);"
    "from clusterctl.node.probe.interface_addresses import list_interfaces;"
    "print(json.dumps(list_interfaces()))"
)
SET_UP = """
ip link add bridge0 type bridge
ip link add out0 type veth peer name in0
unshare -n sleep 60 & there=$!
until [ "$(readlink /proc/$there/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.01; done
ip link set in0 netns $there
ip link add link bridge0 name macvlan0 type macvlan
ip link add far0 type ifb
ip addr add 10.77.0.1/24 dev bridge0
ip addr add 10.77.1.1/24 dev bridge0
ip addr add fd77::1/64 dev bridge0
ip addr add 10.77.2.1 peer 10.77.2.9/32 dev far0
ip -j addr
"$0" -c "$1" "$2"
kill $there
"""


def expected(listed: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what we keep of the list of `ip`."""
    return [
        {
            "ifname": entry["ifname"],
            "addr_info": [
                {"local": row["local"], "prefixlen": row["prefixlen"]} for row in entry["addr_info"]
            ],
            **({"link": entry["link"]} if "link" in entry else {}),
        }
        for entry in listed
    ]


@needs_ip
def test_they_are_those_that_ip_lists() -> None:
    done = subprocess.run(["ip", "-j", "addr"], capture_output=True, check=True)
    assert list_interfaces() == expected(json.loads(done.stdout))


@needs_ip
@pytest.mark.netns
def test_bridges_stacked_interfaces_pairs_and_both_ends_of_a_link() -> None:
    argv = ["unshare", "-n", "sh", "-e", "-c", SET_UP, sys.executable, ASK, str(LOCATION)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    of_ip, ours = done.stdout.splitlines()
    found = {link["ifname"]: link for link in json.loads(ours)}
    assert list(found.values()) == expected(json.loads(of_ip))
    assert found["macvlan0"]["link"] == "bridge0"
    assert "link" not in found["out0"]  # its other end is in another namespace
    assert found["far0"]["addr_info"][0] == {"local": "10.77.2.1", "prefixlen": 32}
