"""Each parser on its own source: what is there, what is unknown, and no crash on garbage."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.facts.answers import Answers
from clusterctl.facts.gpu import amd, nvidia
from clusterctl.facts.gpu.accelerators import GpuProcess
from clusterctl.facts.machine.system import (
    UNLIMITED,
    Limits,
    parse_kill_user_processes,
    parse_limits,
    parse_logind,
    parse_memory,
    parse_os,
)
from clusterctl.facts.network.interfaces import parse_interfaces
from clusterctl.facts.network.ports import Listener, parse_listeners, parse_port_range
from clusterctl.facts.network.rdma import parse_rdma
from clusterctl.facts.network.routes import parse_routes
from clusterctl.facts.request import ContainerWords, FactRequest
from clusterctl.facts.software.programs import Image, parse_image
from clusterctl.facts.software.python import parse_python
from clusterctl.facts.software.settings import (
    Setting,
    parse_etc_environment,
    parse_launcher_config,
    parse_nccl_conf,
)
from clusterctl.facts.storage.storage import mount_of, parse_mounts
from clusterctl.wire import Message
from tests.facts.answering import answers

SOURCES = Path(__file__).parent / "sources"
RECORDINGS = Path(__file__).parents[2].parent / "shared" / "recordings"


def test_nvidia_smi_with_unknown_fields_unknown_not_zero() -> None:
    gpus = nvidia.parse_nvidia_smi((SOURCES / "nvidia-smi-v12-two.xml").read_text())
    well, sick = gpus.devices

    assert (gpus.driver, gpus.cuda) == ("570.86.15", "12.8")
    assert (well.name, well.used_mib) == ("NVIDIA H100 80GB HBM3", 4)
    assert (well.mig, well.ecc_uncorrected, well.remap_pending) == (False, 0, False)
    assert (well.recovery_action, well.processes) == ("", ())
    assert (sick.used_mib, sick.mig) == (None, None)
    assert (sick.ecc_uncorrected, sick.remap_pending, sick.recovery_action) == (2, True, "Reset")
    assert sick.processes == (GpuProcess(pid=4242, name="/venv/bin/python"),)


@pytest.mark.parametrize(
    ("name", "model", "driver"),
    [
        ("a100-sxm4-v12", "NVIDIA A100-SXM4-80GB", "535.54.03"),
        ("a10g", "NVIDIA A10G", "515.105.01"),
        ("gtx-1070-ti", "GeForce GTX 1070 Ti", ""),
        ("rtx-3080-v13", "NVIDIA GeForce RTX 3080", "595.58.03"),
        ("tesla-t4", "Tesla T4", "515.105.01"),
    ],
)
def test_recorded_nvidia_smi_of_three_generations(name: str, model: str, driver: str) -> None:
    path = RECORDINGS / "nvidia-smi-q-x" / f"{name}.xml"
    if not path.exists():
        pytest.skip("the recordings are not beside this checkout")

    gpus = nvidia.parse_nvidia_smi(path.read_text())

    assert gpus.driver == driver
    assert [gpu.name for gpu in gpus.devices] == [model]
    assert gpus.devices[0].uuid.startswith("GPU-")


def test_memory_errors_of_an_older_schema_are_not_counted_twice() -> None:
    log = (
        "<nvidia_smi_log><gpu id='x'><ecc_errors><volatile>"
        "<single_bit><device_memory>9</device_memory><total>9</total></single_bit>"
        "<double_bit><device_memory>1</device_memory><cbu>N/A</cbu><total>1</total></double_bit>"
        "</volatile></ecc_errors></gpu></nvidia_smi_log>"
    )

    assert nvidia.parse_nvidia_smi(log).devices[0].ecc_uncorrected == 1


def test_nvidia_smi_that_fails_gives_its_own_words() -> None:
    with pytest.raises(ValueError, match="driver/library version mismatch"):
        nvidia.parse_nvidia_smi("Failed to initialize NVML: driver/library version mismatch\n")


def test_an_entity_in_the_log_is_not_expanded() -> None:
    with pytest.raises(ValueError, match="not XML"):
        nvidia.parse_nvidia_smi(
            '<!DOCTYPE x [<!ENTITY a "aaaa">]><nvidia_smi_log><gpu><uuid>&a;</uuid></gpu>'
            "</nvidia_smi_log>"
        )


def test_amd_smi_old_and_new() -> None:
    card = {
        "gpu": 0,
        "asic": {"market_name": "AMD Instinct MI300X", "asic_serial": "0x1"},
        "bus": {"bdf": "0000:0c:00.0"},
        "vram": {"size": {"value": 192, "unit": "GB"}},
        "driver": {"version": "6.10.5"},
    }
    for document in ([card], {"gpu_data": [card]}):
        gpus = amd.parse_amd_smi(json.dumps(document))
        assert (gpus.driver, gpus.devices[0].name) == ("6.10.5", "AMD Instinct MI300X")


def test_rocm_smi() -> None:
    document = {
        "card1": {"Card Series": "MI250", "VRAM Total Memory (B)": "68702699520"},
        "card0": {"Card Series": "MI250", "VRAM Total Memory (B)": "N/A", "Unique ID": "0x7"},
        "system": {"Driver version": "6.3.6"},
    }
    gpus = amd.parse_rocm_smi("WARNING: no permission\n" + json.dumps(document))

    assert [gpu.uuid for gpu in gpus.devices] == ["0x7", ""]
    assert gpus.driver == "6.3.6"


def test_interfaces_from_netlink_and_sys() -> None:
    found = parse_interfaces(
        answers(
            {
                "/sys/class/net/lo/flags": "0x9",
                "/sys/class/net/wan0/flags": "0x1003",
                "/sys/class/net/wan0/carrier": "1",
                "/sys/class/net/wan0/speed": "25000",
                "/sys/class/net/wan0/mtu": "9000",
                "/sys/class/net/bare/flags": "0x1002",
                "/sys/class/net/bare/speed": "-1",
            },
            others={"interfaces": json.loads((SOURCES / "interfaces.json").read_text())},
        )
    )
    assert found is not None
    by_name = {interface.name: interface for interface in found}

    assert by_name["wan0"].addresses == ("10.1.0.5/24", "fe80::1/64")
    assert (by_name["wan0"].running, by_name["wan0"].speed_mbps) == (True, 25000)
    assert by_name["lo"].loopback
    assert (by_name["bare"].running, by_name["bare"].speed_mbps) == (False, None)


def test_interfaces_are_unknown_where_nothing_could_be_read() -> None:
    assert parse_interfaces(answers()) is None


def test_recorded_rdma_ports() -> None:
    folder = RECORDINGS / "sys-class-infiniband-h100.0"
    if not folder.exists():
        pytest.skip("the recordings are not beside this checkout")
    files = {
        f"/sys/class/infiniband/{path.relative_to(folder)}": path.read_text()
        for name in ("state", "rate", "link_layer")
        for path in folder.glob(f"*/ports/*/{name}")
    }

    ports = parse_rdma(answers(files)) or ()

    assert len(ports) == 9
    assert all(port.active for port in ports)
    assert [port.device for port in ports if port.link_layer == "Ethernet"] == ["mlx5_bond_0"]
    assert {port.rate_gbps for port in ports} == {400, 200}


def test_routes_of_both_families() -> None:
    routes = parse_routes(
        answers(
            {
                "/proc/net/route": "header\n"
                "eth0\t0000000A\t0100A8C0\t0003\t0\t0\t5\t000000FF\t0\t0\t0\n"
                "eth1\t0000000B\t00000000\t0201\t0\t0\t0\t000000FF\t0\t0\t0\n",
                "/proc/net/ipv6_route": "fd000000000000000000000000000000 40 "
                "00000000000000000000000000000000 00 00000000000000000000000000000000 "
                "00000100 00000001 00000000 00000001     eth0\n",
            }
        )
    )
    assert routes is not None

    shown = [(r.destination, r.interface, r.gateway, r.metric) for r in routes]
    assert shown == [("10.0.0.0/8", "eth0", "192.168.0.1", 5), ("fd00::/64", "eth0", "", 256)]


def test_a_table_of_routes_that_was_cut_off() -> None:
    line = f"{0:032x} 00 {0:032x} 00 {0:032x} 00000100 00000001 00000000 00000001"

    assert parse_routes(answers({"/proc/net/ipv6_route": line})) == ()


def test_mounts_with_escapes_and_bind_mounts() -> None:
    mounts = parse_mounts(
        "1 0 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n"
        "2 1 0:40 / /data rw shared:5 master:1 - nfs4 server:/export rw,vers=4.2\n"
        "3 2 8:1 /x /data/my\\040model ro - ext4 /dev/sda1 rw\n"
        "garbage\n"
    )

    inner = mount_of(mounts, "/data/my model/weights")
    assert inner is not None
    assert (inner.point, inner.read_only) == ("/data/my model", True)
    outer = mount_of(mounts, "/data2")
    assert outer is not None
    assert outer.point == "/"


def test_recorded_mounts() -> None:
    path = RECORDINGS / "mountinfo.txt"
    if not path.exists():
        pytest.skip("the recordings are not beside this checkout")
    mounts = parse_mounts(path.read_text())

    assert len(mounts) == len(path.read_text().splitlines())
    root = mount_of(mounts, "/")
    assert root is not None
    assert root.filesystem == "ext4"


def test_listeners() -> None:
    header = "  sl  local_address rem_address st tx rx tr when retrnsmt uid timeout inode\n"
    found = parse_listeners(
        answers(
            {
                "/proc/net/tcp": header
                + "   0: 0B4D0A0A:733C 00000000:0000 0A 0:0 00:0 0 1000 0 77 1\n"
                + "   1: 0100007F:0016 0100007F:9C40 01 0:0 00:0 0 0 0 78 1\n",
                "/proc/net/tcp6": header
                + "   0: 00000000000000000000000000000000:0016 0:0 0A 0:0 00:0 0 0 0 79 1\n",
            }
        )
    )

    assert found == (
        Listener(address="10.10.77.11", port=29500, uid=1000),
        Listener(address="::", port=22, uid=0),
    )
    assert parse_listeners(answers()) is None


def test_limits() -> None:
    text = (
        "Limit                     Soft Limit           Hard Limit           Units\n"
        "Max open files            1024                 524288               files\n"
        "Max locked memory         unlimited            unlimited            bytes\n"
    )

    expected = Limits(memlock=UNLIMITED, nofile_hard=524288)
    assert parse_limits(text) == expected
    assert parse_limits("") == Limits()


def test_small_files() -> None:
    assert parse_os('NAME=x\nPRETTY_NAME="Ubuntu 24.04.1 LTS"\n') == "Ubuntu 24.04.1 LTS"
    assert parse_os("NAME=x") is None
    assert parse_memory("MemTotal:       16384 kB\n") == 16384 * 1024
    assert parse_port_range("32768\t60999\n") == (32768, 60999)
    assert parse_port_range("") is None


@pytest.mark.parametrize(
    ("filesystem", "options", "found"),
    [
        ("nfs4", "rw,vers=4.2,local_lock=none", ""),
        ("nfs", "rw,vers=3,nolock,local_lock=all", "nolock"),
        ("nfs", "rw,vers=3,local_lock=flock", "local_lock=flock"),
        ("lustre", "rw,flock,lazystatfs", ""),
        ("lustre", "rw,localflock", "localflock"),
        ("lustre", "rw,lazystatfs", "noflock"),
        ("ext4", "rw", ""),
    ],
)
def test_whether_the_file_server_hears_of_locks(filesystem: str, options: str, found: str) -> None:
    (mount,) = parse_mounts(f"36 25 0:44 / /data rw shared:1 - {filesystem} nas:/d {options}\n")
    assert mount.lock_option == found


def test_logind_settings_in_their_order() -> None:
    main = {"/etc/systemd/logind.conf": "[Login]\n#KillUserProcesses=yes\n"}
    assert parse_kill_user_processes(answers()) is None
    assert parse_kill_user_processes(answers(main)) is False
    dropped = {**main, "/etc/systemd/logind.conf.d/9.conf": "[Login]\nKillUserProcesses=yes\n"}
    assert parse_kill_user_processes(answers(dropped)) is True


def test_logind_s_default_is_the_one_that_its_file_shows_as_a_comment() -> None:
    path = "/etc/systemd/logind.conf"
    for text, removed in (("#RemoveIPC=no\n", False), ("#RemoveIPC=yes\n", True), ("", True)):
        given = answers({path: f"[Login]\n{text}"})
        assert parse_logind(given, "RemoveIPC", default=True) is removed


def test_logind_settings_of_a_vendor_that_ships_no_main_file() -> None:
    usr = "/usr/lib/systemd/logind.conf"
    no, yes = "[Login]\nKillUserProcesses=no\n", "[Login]\nKillUserProcesses=yes\n"
    assert parse_kill_user_processes(answers({usr: yes})) is True
    assert parse_kill_user_processes(answers({usr + ".d/9.conf": yes})) is True
    # A file of a folder wins over the main one, whoever wrote them; one name counts once.
    main = {"/etc/systemd/logind.conf": no}
    assert parse_kill_user_processes(answers({**main, usr + ".d/9.conf": yes})) is True
    etc = {"/etc/systemd/logind.conf.d/9.conf": no}
    assert parse_kill_user_processes(answers({**etc, usr + ".d/9.conf": yes})) is False
    early = {"/etc/systemd/logind.conf.d/1.conf": no}
    assert parse_kill_user_processes(answers({**early, usr + ".d/9.conf": yes})) is True


def test_what_nccl_reads_behind_everyones_back() -> None:
    files = {
        "/etc/nccl.conf": "# site\nNCCL_SOCKET_IFNAME==eth9\nNCCL_DEBUG=WARN\nNCCL_NET = IB\n",
        "/home/ada/.nccl.conf": "NCCL_DEBUG=INFO\n",
    }
    assert parse_nccl_conf(answers(files)) == (
        Setting(name="NCCL_DEBUG", value="INFO", origin="/home/ada/.nccl.conf"),
        Setting(name="NCCL_NET ", value=" IB", origin="/etc/nccl.conf"),
        Setting(name="NCCL_SOCKET_IFNAME", value="=eth9", origin="/etc/nccl.conf"),
    )


def test_in_a_container_nccl_reads_the_file_of_the_image() -> None:
    container = ContainerWords(
        plain=("docker", "run", "img"), nvidia=(), amd=(), image="img", image_id=()
    )
    words = ["/usr/bin/python3", "3.11.7", "cpu", "torch", "2.7.0", "file:/etc/nccl.conf"]
    told = "\0".join([*words, "# left over\nNCCL_IB_USE_INLINE=1\n"])
    read = answers(
        {"/etc/nccl.conf": "NCCL_DEBUG=INFO\n"},
        {"python": told},
        wanted=FactRequest(container=container),
    )
    origin = "/etc/nccl.conf in the image img"
    assert parse_nccl_conf(read) == (Setting(name="NCCL_IB_USE_INLINE", value="1", origin=origin),)
    assert [package.name for package in parse_python(read).packages] == ["torch"]


@pytest.mark.parametrize(
    ("driver", "linked", "wanted"),
    [("systemd\n", False, True), ("systemd\n", True, False), ("cgroupfs\n", False, False)],
)
def test_a_container_may_lose_its_gpus(driver: str, linked: bool, wanted: bool) -> None:  # noqa: FBT001
    others = {"link:/dev/char/195:255": "../nvidiactl"} if linked else {}
    image = parse_image(answers({}, {"image": "sha256:1\n", "cgroups": driver}, others))
    assert image == Image(id="sha256:1", revoked=wanted)


ACCELERATE = """\
compute_environment: LOCAL_MACHINE
fsdp_config:
  fsdp_version: 2
gpu_ids: '0,1' # two
num_processes: 8
main_process_ip:
"""
ACCELERATE_JSON = """
{"compute_environment": "LOCAL_MACHINE", "fsdp_config": {"fsdp_version": 2},
 "gpu_ids": "0,1", "num_processes": 8, "main_process_ip": null}
"""


@pytest.mark.parametrize("text", [ACCELERATE, ACCELERATE_JSON])
def test_a_launchers_own_file_is_yaml_or_json(text: str) -> None:
    path = "~/.cache/huggingface/accelerate/default_config.yaml"

    def config(path: str) -> Answers:
        wanted = FactRequest(launcher_file=path)
        return answers(
            {"/home/ann/.cache/huggingface/accelerate/default_config.yaml": text}, wanted=wanted
        )

    assert parse_launcher_config(config(path)) == (
        ("compute_environment", "LOCAL_MACHINE"), ("gpu_ids", "0,1"), ("num_processes", "8"),
    )  # fmt: skip
    assert parse_launcher_config(config("/elsewhere/default_config.yaml")) == ()
    assert parse_launcher_config(config("")) is None


def test_the_names_in_etc_environment() -> None:
    text = 'PATH="/bin"\nexport NCCL_DEBUG=INFO\n# a comment\n=x\n'
    assert parse_etc_environment(text) == ("NCCL_DEBUG", "PATH")


FILE_NAMES = st.sampled_from(
    ["/proc/net/route", "/proc/net/ipv6_route", "/proc/net/tcp", "/proc/net/tcp6",
     "/sys/class/net/a/speed", "/sys/class/net/a/flags",
     "/sys/class/infiniband/m/ports/1/state", "/etc/systemd/logind.conf", "/etc/nccl.conf"]
)  # fmt: skip
LINES = st.text(alphabet="0123456789abcdefABCDEF:. \n\tLOCAL/|-=", max_size=200)


@given(st.dictionaries(FILE_NAMES, LINES | st.text(max_size=100)), st.text(max_size=100))
def test_no_file_breaks_a_parser(files: dict[str, str], printed: str) -> None:
    given_answers = answers(files, others={"interfaces": printed})
    parsers: list[Callable[[Answers], object]] = [
        parse_interfaces, parse_rdma, parse_routes, parse_listeners, parse_kill_user_processes,
        parse_nccl_conf,
    ]  # fmt: skip
    for parse in parsers:
        parse(given_answers)


@given(st.text(max_size=200))
def test_no_text_breaks_a_parser(text: str) -> None:
    for parse in (
        parse_os,
        parse_etc_environment,
        parse_memory,
        parse_limits,
        parse_port_range,
        parse_mounts,
    ):
        parse(text)
    tools = (nvidia.parse_nvidia_smi, amd.parse_amd_smi, amd.parse_rocm_smi)
    for tool in tools:
        try:
            tool(text)
        except (ValueError, AttributeError, TypeError):
            continue  # what `learn` turns into unknown


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
)


@given(JSON)
def test_no_json_breaks_the_answers(value: object) -> None:
    try:
        Answers.of(Message({"answers": value}, b"x"))
    except ValueError:
        return
