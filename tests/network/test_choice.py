"""Which network is chosen, and why: subnets and routes decide, names never."""

from __future__ import annotations

from dataclasses import replace

from clusterctl.facts.network.interfaces import Interface
from clusterctl.facts.network.ports import Listener
from clusterctl.facts.network.rdma import RdmaPort
from clusterctl.facts.network.routes import Route
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.inventory.cluster import Cluster, Node, Ssh
from clusterctl.network.choice import choose_network, environment, route_to
from clusterctl.network.ports import choose_port


def interface(
    name: str, *addresses: str, speed: int | None = 1000, running: bool | None = True
) -> Interface:
    return Interface(name=name, addresses=addresses, speed_mbps=speed, running=running)


def cluster(*hosts: str, **fields: object) -> Cluster:
    nodes = tuple(Node(host=host, name=host, ssh=Ssh()) for host in hosts)
    return replace(Cluster(name="lab", nodes=nodes), **fields)  # type: ignore[arg-type]


def facts(node: str, *interfaces: Interface, **fields: object) -> NodeFacts:
    return replace(NodeFacts(node=node, interfaces=interfaces), **fields)  # type: ignore[arg-type]


def learned(*nodes: NodeFacts) -> dict[str, NodeFacts]:
    return {node.node: node for node in nodes}


def test_the_fastest_common_subnet_wins_whatever_the_interfaces_are_called() -> None:
    known = learned(
        facts("a", interface("eth0", "10.0.0.1/24"), interface("ib0", "10.9.0.1/16", speed=200000)),
        facts("b", interface("wan", "10.0.0.2/24"), interface("hsn1", "10.9.0.2/16", speed=200000)),
    )

    network = choose_network(cluster("a", "b"), known)

    assert network.subnet == "10.9.0.0/16"
    assert {n: own.interface for n, own in network.nodes.items()} == {"a": "ib0", "b": "hsn1"}
    assert network.master_address == "10.9.0.1"
    assert network.why == "the fastest of the 2 subnets that all 2 nodes share"


def test_a_node_that_did_not_answer_is_not_counted_among_those_that_share() -> None:
    known = learned(
        facts("a", interface("eth0", "10.0.0.1/24")), facts("b", interface("wan", "10.0.0.2/24"))
    )

    two, one = choose_network(cluster("a", "b", "c"), known), learned(known["a"])

    assert two.why == "the only subnet that the 2 nodes that answered share"
    only = choose_network(cluster("a", "b", "c"), one)
    assert only.why == "the only subnet that the one node that answered is in"


def test_an_interface_of_an_unknown_state_is_used_and_one_that_is_down_is_not() -> None:
    known = learned(
        *(facts(n, interface("e0", f"10.0.0.{i}/24", running=None)) for i, n in enumerate("ab", 1))
    )
    assert choose_network(cluster("a", "b"), known).subnet == "10.0.0.0/24"
    down = learned(known["a"], facts("b", interface("e0", "10.0.0.2/24", running=False)))
    assert "b" not in choose_network(cluster("a", "b"), down).nodes


def test_a_subnet_is_as_fast_as_its_slowest_node() -> None:
    known = learned(
        facts("a", interface("e0", "10.0.0.1/24"), interface("e1", "10.1.0.1/24", speed=100000)),
        facts("b", interface("e0", "10.0.0.2/24"), interface("e1", "10.1.0.2/24", speed=100)),
    )

    assert choose_network(cluster("a", "b"), known).subnet == "10.0.0.0/24"


def test_of_equal_subnets_the_one_that_ssh_uses_wins() -> None:
    known = learned(
        facts("10.2.0.1", interface("e0", "10.1.0.1/24"), interface("e1", "10.2.0.1/24")),
        facts("10.2.0.2", interface("e0", "10.1.0.2/24"), interface("e1", "10.2.0.2/24")),
    )

    assert choose_network(cluster("10.2.0.1", "10.2.0.2"), known).subnet == "10.2.0.0/24"


def test_containers_overlays_and_dead_links_are_left_out_with_the_reason() -> None:
    known = learned(
        facts("a", interface("docker0", "172.17.0.1/16"), interface("e0", "10.0.0.1/24")),
        facts(
            "b",
            interface("docker0", "172.17.0.1/16"),
            interface("e0", "10.0.0.2/24"),
            interface("e1", "10.5.0.2/24", running=False),
            interface("lo", "127.0.0.1/8"),
            interface("e2", "169.254.3.4/16"),
        ),
    )

    network = choose_network(cluster("a", "b"), known)

    assert network.subnet == "10.0.0.0/24"
    reasons = {c.interface: c.excluded for c in network.nodes["b"].candidates}
    assert reasons == {
        "e0": "",
        "docker0": "interface of a container engine, tunnel or overlay",
        "e1": "it is down or has no carrier",
        "lo": "loopback: only reachable on this machine",
        "e2": "link-local address: only reachable on one link",
    }


def test_the_subnet_of_the_inventory_wins_even_over_an_exclusion() -> None:
    known = learned(
        facts("a", interface("wg0", "10.7.0.1/24"), interface("e0", "10.0.0.1/24")),
        facts("b", interface("wg0", "10.7.0.2/24"), interface("e0", "10.0.0.2/24")),
    )

    network = choose_network(cluster("a", "b", subnet="10.7.0.0/24"), known)

    assert [own.interface for own in network.nodes.values()] == ["wg0", "wg0"]


def test_the_address_of_a_node_wins() -> None:
    nodes = (
        Node(host="a", name="a", ssh=Ssh(), address="10.5.0.1"),
        Node(host="b", name="b", ssh=Ssh()),
    )
    known = learned(
        facts("a", interface("e0", "10.0.0.1/24"), interface("e1", "10.5.0.1/24")),
        facts("b", interface("e0", "10.0.0.2/24")),
    )

    assert choose_network(Cluster(name="lab", nodes=nodes), known).master_address == "10.5.0.1"


def test_without_a_common_subnet_the_route_to_the_master_decides() -> None:
    default = Route(destination="0.0.0.0/0", interface="ens5", gateway="10.1.0.1")
    known = learned(
        facts("a", interface("eth0", "10.0.0.1/24"), routes=(replace(default, interface="eth0"),)),
        facts(
            "b",
            interface("ens5", "10.1.0.2/24"),
            interface("ens6", "10.6.0.2/24", speed=100000),
            routes=(default,),
        ),
    )

    network = choose_network(cluster("a", "b"), known)

    assert (network.kind, network.nodes["b"].interface) == ("routed", "ens5")


def test_addresses_that_stand_alone_are_routed_in_either_family() -> None:
    """As clouds give them: a subnet each, with no more than the node's own address in it."""
    for one, other, network in (
        ("10.0.0.1", "10.0.0.2", "0.0.0.0/0"),
        ("2001:db8::1", "2001:db8::2", "::/0"),
    ):
        default = (Route(destination=network, interface="ens4", gateway="x"),)
        known = learned(
            *(
                facts(name, interface("ens4", f"{own}/{32 if '.' in own else 128}"), routes=default)
                for name, own in (("a", one), ("b", other))
            )
        )

        chosen = choose_network(cluster("a", "b"), known)

        assert (chosen.kind, chosen.master_address) == ("routed", one)
        assert chosen.nodes["b"].address == other


def test_a_master_without_a_default_route_goes_by_its_route_to_the_others() -> None:
    def known(name: str, own: str, far: str) -> NodeFacts:
        routes = (Route(destination=far, interface="hsn0", gateway="x"),)
        outside = interface("eth0", f"192.168.{name == 'b':d}.1/24", speed=100000)
        return facts(name, outside, interface("hsn0", own), routes=routes)

    network = choose_network(
        cluster("a", "b"),
        learned(known("a", "10.0.0.1/24", "10.1.0.0/24"), known("b", "10.1.0.1/24", "10.0.0.0/24")),
    )

    assert (network.kind, network.master_address) == ("routed", "10.0.0.1")
    assert network.nodes["b"].interface == "hsn0"


def test_a_node_that_answers_to_both_families_stays_in_that_of_the_master() -> None:
    default = (
        Route(destination="0.0.0.0/0", interface="ens5", gateway="x"),
        Route(destination="::/0", interface="ens5", gateway="x"),
    )
    known = learned(
        facts("a", interface("ens5", "fd00:1::1/64"), routes=default),
        facts("b", interface("ens5", "10.1.0.2/24", "fd00:2::2/64"), routes=default),
    )

    assert choose_network(cluster("a", "b"), known).nodes["b"].address == "fd00:2::2"


def test_a_bridge_with_one_address_on_every_node_is_no_network_of_theirs() -> None:
    known = learned(
        *(
            facts(
                name,
                interface("ens3", f"10.0.0.{host}/24", speed=None),
                interface("incusbr0", "10.57.0.1/24", speed=10000),
            )
            for host, name in enumerate(("a", "b"), 1)
        )
    )

    assert choose_network(cluster("a", "b"), known).subnet == "10.0.0.0/24"


def test_of_two_addresses_in_a_subnet_the_faster_one_speaks_for_it() -> None:
    def known(name: str, host: int) -> NodeFacts:
        return facts(
            name,
            interface("e0", f"10.0.0.{host}/24", speed=100),
            interface("e1", f"10.0.0.10{host}/24", speed=100000),
            interface("e2", f"10.1.0.{host}/24", speed=1000),
        )

    network = choose_network(cluster("a", "b"), learned(known("a", 1), known("b", 2)))

    assert (network.subnet, network.nodes["a"].interface) == ("10.0.0.0/24", "e1")


def test_a_node_alone_needs_no_network() -> None:
    alone = facts("a", interface("lo", "127.0.0.1/8"), interface("docker0", "172.17.0.1/16"))

    network = choose_network(cluster("a"), learned(alone))

    assert (network.kind, network.master_address) == ("one machine", "127.0.0.1")
    assert choose_network(cluster("a", "b"), learned(alone, NodeFacts(node="b"))).kind == "none"


def test_what_is_down_is_not_chosen_though_it_was_written() -> None:
    nodes = (Node(host="a", name="a", ssh=Ssh(), address="10.5.0.1"),)
    down = interface("e1", "10.5.0.1/24", running=False)
    known = learned(facts("a", interface("e0", "10.0.0.1/24"), down))

    assert not choose_network(Cluster(name="lab", nodes=nodes), known).nodes
    assert not choose_network(cluster("a", subnet="10.5.0.0/24"), known).nodes


def test_all_entries_on_one_machine_meet_on_loopback() -> None:
    home = {"boot_id": "x", "netns": "net:[1]"}
    known = learned(
        facts("a", interface("lo", "127.0.0.1/8"), interface("e0", "10.0.0.1/24"), **home),
        facts("b", interface("lo", "127.0.0.1/8"), interface("e0", "10.0.0.1/24"), **home),
    )

    network = choose_network(cluster("a", "b", same_machine=True), known)

    assert (network.kind, network.master_address) == ("one machine", "127.0.0.1")


def test_ipv6_is_taken_where_there_is_nothing_else() -> None:
    known = learned(
        facts("a", interface("e0", "fd00::1/64", "fe80::1/64")),
        facts("b", interface("e0", "fd00::2/64", "fe80::2/64")),
    )

    assert choose_network(cluster("a", "b"), known).master_address == "fd00::1"


def test_of_equally_fast_subnets_the_one_of_ipv4_wins() -> None:
    known = learned(
        facts("fd00::1", interface("e0", "fd00::1/64"), interface("e1", "10.0.0.1/24")),
        facts("fd00::2", interface("e0", "fd00::2/64"), interface("e1", "10.0.0.2/24")),
    )

    assert choose_network(cluster("fd00::1", "fd00::2"), known).subnet == "10.0.0.0/24"


def test_a_subnet_of_which_a_node_knows_no_speed_is_not_taken_for_the_fastest() -> None:
    known = learned(
        facts("a", interface("e0", "10.0.0.1/24"), interface("e1", "10.1.0.1/24", speed=100000)),
        facts("b", interface("e0", "10.0.0.2/24"), interface("e1", "10.1.0.2/24", speed=None)),
    )

    assert choose_network(cluster("a", "b"), known).subnet == "10.0.0.0/24"


def test_namespaces_of_one_machine_are_nodes_of_a_network() -> None:
    """As containers and the sandbox: one kernel, and no common loopback."""
    a, b = (
        facts(
            name,
            interface("lo", "127.0.0.1/8"),
            interface("e0", f"10.0.0.{number}/24"),
            boot_id="x",
            netns=f"net:[{number}]",
        )
        for number, name in enumerate("ab", start=1)
    )

    network = choose_network(cluster("a", "b"), learned(a, b))

    assert (network.kind, network.master_address) == ("subnet", "10.0.0.1")


def test_dead_and_unknown_nodes_do_not_decide() -> None:
    known = learned(facts("a", interface("e0", "10.0.0.1/24")), NodeFacts(node="b"))

    network = choose_network(cluster("a", "b"), known)

    assert list(network.nodes) == ["a"]


def test_the_port_is_the_inventorys_else_the_first_free_one() -> None:
    busy = tuple(Listener(address="::", port=port) for port in (29500, 29501))
    known = learned(facts("a", interface("e0", "10.0.0.1/24"), listeners=busy))

    assert choose_network(cluster("a", master_port=29500), known).master_port == 29500
    found = choose_network(cluster("a"), known)
    assert (found.master_port, found.master_port_why) == (29502, "the first free port from 29500")


def test_where_the_kernel_gives_clients_any_port_a_free_one_is_found_all_the_same() -> None:
    busy = (Listener(address="::", port=29500),)
    known = facts(
        "a", interface("e0", "10.0.0.1/24"), listeners=busy, ephemeral_ports=(1024, 65535)
    )

    found = choose_network(cluster("a"), learned(known))

    assert (found.master_port, found.master_port_why) == (29501, "the first free port from 29500")


def test_where_all_ports_are_taken_that_is_said() -> None:
    busy = tuple(Listener(address="::", port=port) for port in range(29500, 30000))

    assert choose_port(None, NodeFacts(node="a", listeners=busy)) == (
        29500,
        "PyTorch's default; 29500 to 29999 are all in use",
    )
    assert choose_port(None, NodeFacts(node="a", listeners=busy[:1]), but=29501)[0] == 29502


def test_each_library_gets_the_interface_in_its_own_syntax() -> None:
    known = facts(
        "a",
        interface("eth0", "10.0.0.1/24"),
        rdma=(
            RdmaPort(device="mlx5_1", port=1, state="ACTIVE", link_layer="InfiniBand"),
            RdmaPort(device="mlx5_0", port=1, state="DOWN", link_layer="InfiniBand"),
            RdmaPort(device="mlx5_bond_0", port=1, state="ACTIVE", link_layer="Ethernet"),
        ),
    )
    own = choose_network(cluster("a"), {"a": known}).nodes["a"]

    values = {v.name: v.value for v in environment(own, known)}

    assert values == {
        "NCCL_SOCKET_IFNAME": "=eth0",
        "GLOO_SOCKET_IFNAME": "eth0",
        "TP_SOCKET_IFNAME": "eth0",
        "NCCL_IB_HCA": "=mlx5_1",
    }


def test_programs_that_ask_the_default_route_are_told_the_address_in_the_common_network() -> None:
    nets = interface("eth0", "10.0.0.1/24"), interface("wlan0", "192.168.50.11/24")
    default = Route(destination="0.0.0.0/0", interface="wlan0")

    def told(*routes: Route) -> set[str]:
        known = facts("a", *nets, routes=routes)
        own = choose_network(cluster("a", subnet="10.0.0.0/24"), {"a": known}).nodes["a"]
        return {v.value for v in environment(own, known) if v.name.endswith("_HOST_IP")}

    assert told(default) == {"10.0.0.1"}
    assert told(replace(default, interface="eth0")) == told() == set()


def test_the_longest_prefix_then_the_least_metric_is_the_route() -> None:
    routes = [
        Route(destination="0.0.0.0/0", interface="a"),
        Route(destination="10.0.0.0/24", interface="b", metric=200),
        Route(destination="10.0.0.0/24", interface="c", metric=100),
        Route(destination="::/0", interface="d"),
    ]

    assert [getattr(route_to(routes, to), "interface", None) for to in ("10.0.0.9", "8.8.8.8")] == [
        "c",
        "a",
    ]
    assert route_to(routes[1:3], "8.8.8.8") is None
