"""What the driver, the kernel and its log tell of GPUs: recorded, older, cut off and garbage."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.facts.gpu.accelerators import (
    FabricManager,
    Gpu,
    GpuClocks,
    GpuDriver,
    GpuHeat,
    GpuMemory,
    GpuPower,
    GpuProcess,
    Gpus,
    PcieLink,
)
from clusterctl.facts.gpu.amd import with_metrics
from clusterctl.facts.gpu.gpus import nvlink_rates, parse_nvlinks, with_machine
from clusterctl.facts.gpu.nvidia import parse_nvidia_smi, pci_address
from clusterctl.facts.machine.kernel_log import (
    GpuEvent,
    KernelLine,
    KernelLog,
    crashes,
    dead_switches,
    late_frees,
    peermem_errors,
    sxids,
    xids,
)
from clusterctl.facts.parse_facts import parse_facts, read_arguments
from clusterctl.facts.request import FactRequest
from tests.damage import damaged, damaged_json
from tests.facts.answering import answers

TESTS = Path(__file__).parents[1]
H200 = (TESTS / "recordings" / "nvidia-smi-q-x-h200-v13.xml").read_text()
SHARED = TESTS.parents[1] / "shared" / "recordings"


def recorded(name: str) -> Gpu:
    path = SHARED / "nvidia-smi-q-x" / f"{name}.xml"
    if not path.exists():
        pytest.skip("the recordings are not beside this checkout")
    return parse_nvidia_smi(path.read_text()).devices[0]


def test_all_that_the_recorded_h200_reports() -> None:
    found = parse_nvidia_smi(H200)
    (gpu,) = found.devices

    assert (found.tool, gpu.name, gpu.processes) == ("nvidia-smi", "NVIDIA H200", ())
    assert found.driver.startswith("580.")
    assert (gpu.mig, gpu.ecc_uncorrected, gpu.remap_pending) == (False, 0, False)
    assert gpu.recovery_action == ""
    assert gpu.memory == GpuMemory(
        ecc=True, uncorrected_ever=0, sram_threshold=False, remap_failure=False,
        repair_pending=False, unrepairable=False,
    )  # fmt: skip
    assert gpu.heat == GpuHeat(celsius=31, margin=58)
    assert gpu.power == GpuPower(limit=700.0, default_limit=700.0)
    assert gpu.clocks == GpuClocks(application=1980, default=1980)
    assert gpu.link == PcieLink(width=16, max_width=16, generation=5, max_generation=5)
    assert (gpu.throttle, gpu.utilization) == (("gpu_idle",), 0)
    assert (gpu.persistence, gpu.compute_mode) == (True, "Default")
    assert (gpu.asks_recovery, gpu.inforom_corrupt) == (False, False)
    assert gpu.fabric is not None
    assert gpu.fabric.state == ""


def test_schemas_before_v13() -> None:
    ampere, turing, pascal = map(recorded, ("a100-sxm4-v12", "tesla-t4", "gtx-1070-ti"))

    assert (ampere.asks_recovery, turing.asks_recovery) == (False, None)
    assert (ampere.heat, turing.heat) == (
        GpuHeat(celsius=27, margin=62),
        GpuHeat(celsius=40, margin=53),
    )
    assert turing.power == GpuPower(limit=70.0, default_limit=70.0)
    assert turing.memory is not None
    assert (turing.memory.retired_pages, turing.memory.remap_failure) == (0, None)
    assert (ampere.throttle, turing.throttle, pascal.throttle) == ((), (), None)
    assert pascal.memory == GpuMemory()


def test_texts_for_nothing_are_unknown_and_not_a_value() -> None:
    for nothing in ("N/A", "[N/A]", "[Unknown Error]", "ERR!", "[GPU requires reset]"):
        text = H200.replace("<persistence_mode>Enabled<", f"<persistence_mode>{nothing}<")
        (gpu,) = parse_nvidia_smi(text).devices
        assert gpu.persistence is None


def test_a_recovery_action_that_cannot_be_read_is_unknown() -> None:
    text = H200.replace("<gpu_recovery_action>None<", "<gpu_recovery_action>[Unknown Error]<")
    (gpu,) = parse_nvidia_smi(text).devices
    assert (gpu.asks_recovery, gpu.recovery_action) == (None, "")


def test_a_warning_after_the_log_and_an_exit_code_do_not_hide_the_gpus() -> None:
    warning = "WARNING: infoROM is corrupted at gpu 0000:00:06.0\n"
    for printed in ((H200 + warning, 14), (warning + H200, 14)):
        facts = parse_facts(
            "a", answers(commands={"nvidia-smi": printed}), FactRequest(), clock=None
        )
        assert facts.gpus is not None
        assert facts.gpus.devices[0].inforom_corrupt


@pytest.mark.parametrize(
    ("line", "address", "why"),
    [
        ("GPU3: 0000:5F:00.0: Unknown Error", "0000:5f:00.0", "Unknown Error"),
        ("GPU 0000:01:00.0: Not Found", "0000:01:00.0", "Not Found"),
        ("GPU0000:25:00.0: GPU is lost", "0000:25:00.0", "GPU is lost"),
        ("GPU 00010000:03:00.0: GPU is lost.  Reboot the system", "10000:03:00.0", "GPU is lost"),
        ("GPU2: Unknown Error", "", "Unknown Error"),
    ],
)
def test_a_gpu_that_nvidia_smi_names_but_cannot_list(line: str, address: str, why: str) -> None:
    text = f"Unable to determine the device handle for {line}\n"
    (gpu,) = parse_nvidia_smi(text).unlisted
    assert (gpu.address, gpu.why) == (address, why)
    for code in (0, 15, 255):
        printed = answers(commands={"nvidia-smi": (H200 + text, code)})
        gpus = parse_facts("a", printed, FactRequest(), clock=None).gpus
        assert gpus is not None
        assert (len(gpus.devices), gpus.unlisted) == (1, (gpu,))


def test_the_other_gpus_keep_their_numbers() -> None:
    text = "Unable to determine the device handle for GPU0: 0000:5F:00.0: GPU is lost\n"
    assert [gpu.index for gpu in parse_nvidia_smi(H200 + text).devices] == [1]


def test_a_word_for_a_lost_gpu_is_no_value_of_it() -> None:
    text = H200.replace("<total>143771 MiB<", "<total>GPU is lost<")
    text = text.replace("<persistence_mode>Enabled<", "<persistence_mode>GPU is lost<")
    (gpu,) = parse_nvidia_smi(text).devices
    assert (gpu.lost, gpu.persistence) == ("GPU is lost", None)


def test_one_value_that_fails_is_no_lost_gpu() -> None:
    temperature = H200.replace("<gpu_temp>31 C<", "<gpu_temp>[Unknown Error]<")
    both = temperature.replace("<gpu_util>0 %<", "<gpu_util>ERR!<")
    assert [parse_nvidia_smi(text).devices[0].lost for text in (H200, temperature)] == ["", ""]
    assert parse_nvidia_smi(both).devices[0].lost == "ERR!"


def test_a_log_that_was_cut_off_with_an_exit_code_is_unknown() -> None:
    printed = (H200[:5000] + "WARNING: infoROM is corrupted at gpu 0000:00:06.0\n", 14)
    facts = parse_facts("a", answers(commands={"nvidia-smi": printed}), FactRequest(), clock=None)
    assert facts.gpus is None


@pytest.mark.parametrize(
    ("given_address", "address"),
    [
        ("00000000:1B:00.0", "0000:1b:00.0"),
        ("0000:1b:00.0", "0000:1b:00.0"),
        ("00010000:00:00.0", "10000:00:00.0"),
        ("0000:1B:00", "0000:1b:00"),
        ("", ""),
        ("x", "x"),
    ],
)
def test_the_address_of_a_gpu_as_the_kernel_writes_it(given_address: str, address: str) -> None:
    assert pci_address(given_address) == address


NVLINKS = """\
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-a)
\t Link 0: 26.562 GB/s
\t Link 1: <inactive>
GPU 1: NVIDIA L40S (UUID: GPU-b)
NVML: Unable to retrieve NVLink information as all links are inActive
"""


def test_nvlinks() -> None:
    assert parse_nvlinks(NVLINKS) == {"GPU-a": (True, False)}
    assert nvlink_rates(NVLINKS) == {"GPU-a": 26.562}
    path = SHARED / "nvidia-smi-nvlink-status-a100x8.txt"
    if path.exists():
        links = parse_nvlinks(path.read_text())
        assert (len(links), set(links.values())) == (8, {(True,) * 12})


def test_what_the_machine_shows_is_added_to_the_gpus() -> None:
    folder = "/sys/bus/pci/drivers/nvidia/0000:1b:00.0/"
    gpu = Gpu(
        index=0, name="", uuid="GPU-a", bus_id="00000000:1B:00.0", processes=(GpuProcess(pid=7),)
    )
    found = with_machine(
        Gpus(tool="nvidia-smi", devices=(gpu,)),
        answers(
            {
                folder + "numa_node": "1\n",
                folder + "current_link_width": "8\n",
                folder + "max_link_width": "16\n",
                folder + "aer_dev_fatal": "Undefined 0 DLP 3 TOTAL_ERR_FATAL 3",
                "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for"
                " x86_64  570.124.06  Release Build\n",
                "/sys/module/nvidia_peermem/initstate": "live\n",
            },
            {
                "nvlink": NVLINKS,
                "owners": "    1 root\n    7 ada\n",
                "gpu-services": ("failed\ninactive\n", 3),
                "fabric-manager": "Fabric Manager version is : 570.86.15\n",
            },
        ),
    )

    (gpu,) = found.devices
    assert gpu.link == PcieLink(width=8, max_width=16, fatal=3, numa=1)
    assert gpu.nvlinks == (True, False)
    assert gpu.processes == (GpuProcess(pid=7, user="ada"),)
    assert found.kernel == GpuDriver(
        open_modules=True,
        peermem=True,
        fabric_manager=FabricManager(state="failed", version="570.86.15"),
        imex="inactive",
    )


def test_a_machine_that_shows_nothing_leaves_it_unknown() -> None:
    gpu = Gpu(index=0, name="", nvlinks=None)
    found = with_machine(Gpus(tool="nvidia-smi", devices=(gpu,)), answers())
    assert found.kernel is None
    assert (found.devices[0].link, found.devices[0].nvlinks) == (PcieLink(), None)


def test_nothing_is_asked_of_gpus_where_none_are_planned_or_no_driver_is_loaded() -> None:
    none, some = (read_arguments(FactRequest(gpus=count)) for count in (0, 8))
    paths = [
        {*args["files"], *(question["path"] for question in args["folders"])}
        for args in (none, some)
    ]
    assert not [path for path in paths[0] if "nvidia" in path or "pci" in path]
    assert {"/proc/driver/nvidia/version", "/sys/bus/pci/drivers/nvidia/*"} <= paths[1]
    conditional = {c["key"] for c in some["commands"] if "only_if" in c}
    assert conditional == {
        "nvlink", "owners", "gpu-services", "fabric-manager", "amd-metric", "amd-process",
        "ibv", "apt-config", "driver-packages",
    }  # fmt: skip


def log(*texts: str) -> KernelLog:
    lines = tuple(KernelLine(age_s=float(i), text=text) for i, text in enumerate(reversed(texts)))
    return KernelLog(source="kmsg", lines=lines[::-1])


def test_the_newest_xid_of_each_number_and_gpu() -> None:
    events = xids(
        log(
            "NVRM: Xid (PCI:0000:1B:00): 79, pid=1, GPU has fallen off the bus.",
            "NVRM: Xid (0000:1b:00): 79, again",
            "NVRM: GPU at PCI:0000:1b:00: GPU-1",
            "NVRM: Xid (PCI:0000:1b:00 GPU-I:05): 31, pid=7, name=python, MMU Fault",
            "NVRM: Xid (PCI:0000:1b:00): 154, GPU recovery action changed from 0x0 (None) to 0x2"
            " (Node Reboot Required)",
        )
    )
    found = {event.number: event for event in events}

    assert sorted(found) == [31, 79, 154]
    assert found[79] == GpuEvent(address="0000:1b:00", number=79, text="again", age_s=3.0)
    assert (found[154].action, found[79].action) == ("Node Reboot Required", "")


def test_a_gpu_that_fell_off_the_bus_without_an_xid() -> None:
    events = xids(
        log(
            "NVRM: GPU 0000:5f:00.0: GPU has fallen off the bus.",
            "NVRM: The NVIDIA GPU 0000:6f:00.0 (PCI ID: 10de:2330)\\x0aNVRM: installed in this"
            " system has\\x0aNVRM: fallen off the bus and is not responding to commands.",
            "NVRM: fallen off the bus and is not responding to commands.",
        )
    )
    assert {(event.address, event.number) for event in events} == {
        ("0000:5f:00", 79),
        ("0000:6f:00", 79),
    }


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: Xid (PCI:0000:5f:00): 119, pid=1, name=python, Timeout after 6s",
        "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
        "NVRM: GPU 0000:5f:00.0: GPU has fallen off the bus.",
        "nvidia-nvswitch3: Failed to initialize device : -1",
        "nvidia-peermem nv_dma_map:201 nv_dma_map -- invalid pci_dev",
        "python3[17]: segfault at 0 ip 00007f sp 00007f error 4 in libnccl.so.2.27.3[7f3a+12000]",
    ],
)
def test_a_node_sends_the_lines_that_are_parsed(line: str) -> None:
    assert any(pattern in line for pattern in read_arguments(FactRequest(gpus=8))["kernel_log"])


def test_lines_of_switches_crashes_and_peermem() -> None:
    recorded = log(
        "nvidia-nvswitch3: open (major=511)",
        "nvidia-nvswitch3: Failed to initialize device : -1",
        "python3[17]: segfault at 0 ip 00007f sp 00007f error 4 in libnccl.so.2.27.3[7f3a+12000]",
        "python3[18]: segfault at 0 ip 00007f sp 00007f error 4 in libc.so.6[7f3a+12000]",
        "nvidia-peermem nv_mem_client_init:524 nv_mem_client_init -- error while registering",
    )
    assert [x.text for x in dead_switches(recorded)] == ["Failed to initialize device : -1"]
    assert [x.text for x in crashes(recorded)] == ["python3[17]"]
    (peermem,) = peermem_errors(recorded)
    assert peermem.text == "nv_mem_client_init -- error while registering"


def test_a_line_of_a_killed_job_is_no_error_of_peermem() -> None:
    line = "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping"
    recorded = log(line)

    assert list(peermem_errors(recorded)) == []
    assert [x.text for x in late_frees(recorded)] == ["ERROR detected invalid context, skipping"]


def test_a_recorded_xid() -> None:
    path = SHARED / "dmesg-xid-119.log"
    if not path.exists():
        pytest.skip("the recordings are not beside this checkout")
    assert {event.number for event in xids(log(*path.read_text().splitlines()))} == {119}


def test_sxids_with_the_word_of_the_driver() -> None:
    fatal, other = sxids(
        log(
            "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
            "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Severity 1 Engine instance 30",
            "nvidia-nvswitch3: SXid (PCI:0000:c4:00.0): 28006, Non-fatal, Link 46 MC TS",
        )
    )
    assert (fatal.number, fatal.fatal, fatal.text) == (20034, True, "Link 30 LTSSM Fault Up")
    assert (other.address, other.fatal, other.harmless) == ("0000:c4:00.0", False, True)


@given(damaged(H200.encode()))
def test_a_damaged_log_is_gpus_or_a_valueerror(data: bytes) -> None:
    try:
        gpus = parse_nvidia_smi(data.decode("utf-8", "replace"))
    except ValueError:
        return
    assert all(dataclasses.is_dataclass(gpu) for gpu in gpus.devices)


WORDS = st.sampled_from(
    ["NVRM: Xid (PCI:0000:1b:00): ", "SXid (PCI:0000:c1:00.0): ", "79", ", ", "Fatal", "154",
     "recovery action changed from 0x0 (None) to 0x1 (", "NVRM: GPU 0000:5f:00.0", "python[1]: ",
     "fallen off the bus", "segfault", " in libnccl", "nvidia-peermem x:1 ", "nvidia-nvswitch1: ",
     "GPU 0: x (UUID: GPU-a)\n", "Link 0: ",
     "<inactive>", "25 GB/s", "\n", "TOTAL_ERR_FATAL ", "9" * 30, "-1", "²", "\0"]
)  # fmt: skip
TEXT = st.lists(WORDS | st.text(max_size=5), max_size=12).map("".join)


@given(TEXT, TEXT)
def test_no_line_breaks_a_parser(text: str, other: str) -> None:
    found = KernelLog(source="", lines=(KernelLine(age_s=None, text=text),))
    assert all(event.number >= 0 for event in (*xids(found), *sxids(found)) if not event.action)
    assert all(x.text for x in (*dead_switches(found), *crashes(found)))
    assert len(list(peermem_errors(found))) <= 1
    parse_nvlinks(text + other)
    files: dict[str, Any] = {
        f"/sys/bus/pci/drivers/nvidia/0000:1b:00.0/{name}": other
        for name in ("numa_node", "aer_dev_fatal", "current_link_width")
    }
    commands = dict.fromkeys(("nvlink", "owners", "gpu-services", "fabric-manager"), text)
    files["/proc/driver/nvidia/version"] = other
    gpu = Gpu(index=0, name="", uuid="GPU-a", bus_id="0000:1b:00.0", processes=())
    with_machine(Gpus(tool="nvidia-smi", devices=(gpu,)), answers(files, commands))


AMD_STATIC = {
    "gpu": 0,
    "asic": {"market_name": "AMD Instinct MI300X"},
    "bus": {"bdf": "0000:0c:00.0"},
    "limit": {
        "socket_power": {"value": 750, "unit": "W"},
        "slowdown_hotspot_temperature": {"value": 100, "unit": "C"},
    },
}
AMD_METRIC = {
    "gpu": 0,
    "usage": {"gfx_activity": {"value": 3, "unit": "%"}},
    "temperature": {"edge": "N/A", "hotspot": {"value": 41, "unit": "C"}},
    "ecc": {"total_uncorrectable_count": 2},
    "mem_usage": {"used_vram": {"value": 285, "unit": "MB"}},
    "throttle": {"ppt_violation_status": "ACTIVE", "socket_thermal_violation_status": "ACTIVE"},
}
AMD_PROCESS = {"gpu": 0, "process_list": [{"process_info": {"name": "python3", "pid": 4242}}]}


def amd_facts(metric: object, process: object, static: object = AMD_STATIC) -> Gpu:
    printed = {
        "amd-smi": json.dumps([static]),
        "amd-metric": json.dumps(metric),
        "amd-process": json.dumps(process),
        "owners": "4242 ada\n",
    }
    facts = parse_facts("a", answers(commands=dict(printed)), FactRequest(), clock=None)
    assert facts.gpus is not None
    return facts.gpus.devices[0]


def test_what_amd_smi_reports() -> None:
    for metric, process in (
        ([AMD_METRIC], [AMD_PROCESS]),
        ({"gpu_data": [AMD_METRIC]}, {"gpu_data": [AMD_PROCESS]}),
    ):
        gpu = amd_facts(metric, process)
        assert gpu.heat == GpuHeat(celsius=41, margin=59)
        assert gpu.power == GpuPower(limit=750.0)
        assert gpu.throttle == ("hw_thermal_slowdown", "sw_power_cap")
        assert (gpu.ecc_uncorrected, gpu.utilization, gpu.used_mib) == (2, 3, 285)
        assert gpu.processes == (GpuProcess(pid=4242, name="python3", user="ada"),)


def test_what_amd_smi_does_not_report_is_unknown() -> None:
    gpu = amd_facts([{**AMD_METRIC, "ecc": "N/A", "throttle": {}, "mem_usage": {}}], [])
    assert (gpu.ecc_uncorrected, gpu.throttle, gpu.used_mib, gpu.processes) == (None,) * 4
    assert amd_facts("no permission", "no permission").heat == GpuHeat()
    none = {"gpu": 0, "process_list": [{"process_info": "No running processes detected"}]}
    assert amd_facts([AMD_METRIC], [none]).processes == ()
    newer = {**AMD_STATIC, "limit": {"ppt0": {"socket_power_limit": {"value": 1000}}}}
    assert amd_facts([], [], newer).power == GpuPower(limit=1000.0)


@given(damaged_json(AMD_METRIC), damaged_json(AMD_PROCESS), damaged_json(AMD_STATIC))
def test_damaged_documents_of_amd_smi(metric: object, process: object, static: object) -> None:
    found = Gpus(tool="amd-smi", devices=(Gpu(index=0, name=""),))
    texts = [json.dumps([document]) for document in (static, metric, process)]
    with_metrics(found, *texts)
    with_metrics(found, *(text[: len(text) // 2] for text in texts))
