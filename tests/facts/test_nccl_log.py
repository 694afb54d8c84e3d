"""What NCCL's own lines tell of its network: as several versions print them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.facts.ladder import NcclTransport
from clusterctl.facts.network import nccl_log
from clusterctl.facts.network.nccl_log import parse_nccl
from clusterctl.node.probe.trial.nccl_lines import KEPT, LENGTH, kept_lines

INFINIBAND = """\
n1:4052:4052 [0] NCCL INFO Bootstrap : Using ib0.0065:10.1.32.3<0>
n1:4052:4052 [0] NCCL INFO cudaDriverVersion 12040
NCCL version 2.21.5+cuda12.4
n1:4052:4122 [0] NCCL INFO Plugin Path : /opt/hpcx/nccl_rdma_sharp_plugin/lib/libnccl-net.so
n1:4052:4122 [0] NCCL INFO P2P plugin IBext_v8
n1:4052:4122 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB/SHARP [1]mlx5_2:1/RoCE [RO]; OOB ib0:10.1.32.3<0>
n1:4052:4122 [0] NCCL INFO Using non-device net plugin version 0
n1:4052:4122 [0] NCCL INFO Using network IBext_v8
n1:4052:4122 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IBext_v8/0/GDRDMA
n1:4052:4122 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[0] [send] via NET/IBext_v8/1/GDRDMA
n1:4052:4122 [0] NCCL INFO Connected all trees
"""  # noqa: E501
NO_DEVICE = """\
n1:924:1152 [5] NCCL INFO NET/IB : No device found.
n1:924:1152 [5] NCCL INFO NET/IB : Using [RO]; OOB eth0:10.149.0.32<0>
n1:924:1152 [5] NCCL INFO NET/Socket : Using [0]eth0:10.149.0.32<0> [1]eth1:10.0.0.2<0>
n1:924:1152 [5] NCCL INFO Initialized NET plugin Socket
n1:924:1152 [5] NCCL INFO Assigned NET plugin Socket to comm
n1:924:1152 [5] NCCL INFO Using network Socket
n1:924:1152 [5] NCCL INFO Channel 00/0 : 0[5] -> 1[5] [send] via NET/Socket/0
n1:924:1152 [5] NCCL INFO Channel 01/0 : 0[5] -> 1[5] [send] via NET/Socket/1
"""
ONE_NODE = """\
n1:5663:5809 [0] NCCL INFO NET/IB : Using [0]={[0] mlx5_2:1/RoCE, [1] mlx5_3:1/RoCE} [RO]; OOB bond0.5:1.2.3.4<0>
n1:5663:5809 [0] NCCL INFO Using network IB
n1:5663:5809 [0] NCCL INFO Channel 04/0 : 0[0] -> 7[7] via P2P/CUMEM/read
n1:5663:5809 [0] NCCL INFO Channel 05/0 : 0[0] -> 7[7] via P2P/CUMEM/read
n1:5663:5809 [0] NCCL INFO Channel 05/0 : 0[0] -> 3[3] via SHM/direct/direct
"""  # noqa: E501
EFA = """\
n1:77:80 [0] NCCL INFO NET/OFI Initializing aws-ofi-nccl 1.14.0
n1:77:80 [0] NCCL INFO NET/OFI Selected provider is efa, fabric is efa-direct (found 4 nics)
n1:77:80 [0] NCCL INFO Using network AWS Libfabric
n1:77:80 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/AWS Libfabric/0/GDRDMA
"""
HOST_STAGED = """\
n1:7:8 [0] NCCL INFO NET/IB : Using [0]mlx5_4:1/RoCE ; OOB eth0:1.2.3.4<0>
n1:7:8 [0] NCCL INFO Channel 00/0 : 1[0] -> 2[0] [receive] via NET/IB/0
"""

CASES = {
    "infiniband": (INFINIBAND, NcclTransport(
        network="IBext_v8", devices=("mlx5_0:1/IB/SHARP", "mlx5_2:1/RoCE"),
        via=("NET/IBext_v8/GDRDMA",), gpu_direct=True, version="2.21.5+cuda12.4",
    )),
    "no-device": (NO_DEVICE, NcclTransport(
        network="Socket", devices=("eth0", "eth1"), via=("NET/Socket",),
    )),
    "one-node": (ONE_NODE, NcclTransport(
        network="IB", devices=("mlx5_2:1/RoCE", "mlx5_3:1/RoCE"),
        via=("P2P/CUMEM/read", "SHM/direct/direct"),
    )),
    "efa": (EFA, NcclTransport(
        network="AWS Libfabric", via=("NET/AWS Libfabric/GDRDMA",), gpu_direct=True,
    )),
    "host-staged": (HOST_STAGED, NcclTransport(
        network="IB", devices=("mlx5_4:1/RoCE",), via=("NET/IB",), gpu_direct=False,
    )),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_network_that_nccl_uses(name: str) -> None:
    text, expected = CASES[name]

    assert parse_nccl(text.splitlines()) == expected
    assert parse_nccl(kept_lines(text)) == expected  # the node keeps what counts


def test_lines_without_a_network_tell_nothing() -> None:
    assert parse_nccl([]) is None
    assert (
        parse_nccl(["NCCL version 2.27.3", "n1:7:8 [0] NCCL INFO cudaDriverVersion 12040"]) is None
    )


def test_a_node_keeps_few_lines_however_many_nccl_prints() -> None:
    chatter = "".join(f"n1:7:8 [0] NCCL INFO NET/IB : Using [0]m{i}:1/IB\n" for i in range(9999))

    assert len(kept_lines(chatter)) == KEPT
    peers = "".join(
        f"n1:7:8 [0] NCCL INFO Channel 00/0 : 0[0] -> {i}[0] [send] via NET/IB/0/GDRDMA\n"
        for i in range(9999)
    )
    assert kept_lines(peers) == ["via NET/IB/0/GDRDMA"]
    assert all(
        len(line) <= LENGTH + 10 for line in kept_lines("NCCL INFO Using network " + "x" * 9999)
    )


def test_of_what_a_node_sends_no_more_counts_than_an_honest_one_keeps() -> None:
    assert (nccl_log.KEPT, nccl_log.LENGTH) == (KEPT, LENGTH)

    peers = parse_nccl(f"via NET/A{'B' * i}" for i in range(9999))
    devices = parse_nccl(["Using network IB", "NET/IB : Using " + "[0]m " * 9999])
    assert peers is not None
    assert len(peers.via) == KEPT
    assert devices is not None
    assert 0 < len(devices.devices) < LENGTH
    name = parse_nccl(["Using network " + "x" * 9999])
    assert name is not None
    assert len(name.network) < LENGTH


@given(st.lists(st.one_of(
    st.text(max_size=60),
    st.sampled_from("".join(text for text, _ in CASES.values()).splitlines()),
    st.builds("NCCL INFO {} {}".format, st.sampled_from(
        ["NET/IB : Using", "Using network", "via NET/IB/", "Assigned NET plugin", "NCCL version"]
    ), st.text(max_size=40)),
), max_size=30))  # fmt: skip
def test_any_lines_give_a_transport_or_none(lines: list[str]) -> None:
    found = parse_nccl(lines)

    assert found is None or found.network or found.via
    parse_nccl(kept_lines("\n".join(lines)))
