"""A fake nvidia-smi, which shows GPUs that do not exist.

It answers `nvidia-smi -q -x` and `nvidia-smi -L` in NVIDIA's documented schema, with a driver
new enough for any torch, and lists no process on any GPU. Without options it prints the list, too.
A job on such a host finds no CUDA device.
"""

import hashlib
import re
import shlex
from pathlib import Path

from clusterctl.errors import UsageError
from clusterctl.values import dataclass

DRIVER = "595.58.03"
CUDA = "13.2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpus:
    """The GPUs that a host shows."""

    model: str = ""
    count: int = 0


NONE = Gpus()


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What the fake nvidia-smi reports for one GPU model."""

    product: str
    architecture: str
    memory: int
    """MiB."""
    watts: int
    fabric: bool = True
    """It is behind NVSwitches."""


MODELS = {
    "A100": Model(product="NVIDIA A100-SXM4-80GB", architecture="Ampere", memory=81920, watts=400),
    "L40S": Model(
        product="NVIDIA L40S", architecture="Ada Lovelace", memory=46068, watts=350, fabric=False
    ),
    "H100": Model(product="NVIDIA H100 80GB HBM3", architecture="Hopper", memory=81559, watts=700),
    "H200": Model(product="NVIDIA H200", architecture="Hopper", memory=143771, watts=700),
    "B200": Model(product="NVIDIA B200", architecture="Blackwell", memory=183359, watts=1000),
}

_GPU = """\
  <gpu id="{bus}">
    <product_name>{product}</product_name>
    <product_brand>NVIDIA</product_brand>
    <product_architecture>{architecture}</product_architecture>
    <persistence_mode>Enabled</persistence_mode>
    <mig_mode><current_mig>Disabled</current_mig><pending_mig>Disabled</pending_mig></mig_mode>
    <mig_devices>None</mig_devices>
    <serial>{serial}</serial>
    <uuid>{uuid}</uuid>
    <minor_number>{minor}</minor_number>
    <vbios_version>96.00.74.00.01</vbios_version>
    <gpu_recovery_action>None</gpu_recovery_action>
    <pci>
      <pci_bus_id>{bus}</pci_bus_id>
      <pci_gpu_link_info>
        <pcie_gen><max_link_gen>5</max_link_gen><current_link_gen>1</current_link_gen></pcie_gen>
        <link_widths>
          <max_link_width>16x</max_link_width><current_link_width>16x</current_link_width>
        </link_widths>
      </pci_gpu_link_info>
      <replay_counter>0</replay_counter>
    </pci>
    <performance_state>P0</performance_state>
    <clocks_event_reasons>
      <clocks_event_reason_gpu_idle>Active</clocks_event_reason_gpu_idle>
      <clocks_event_reason_hw_slowdown>Not Active</clocks_event_reason_hw_slowdown>
      <clocks_event_reason_hw_thermal_slowdown>Not Active</clocks_event_reason_hw_thermal_slowdown>
      <clocks_event_reason_hw_power_brake_slowdown>Not Active\
</clocks_event_reason_hw_power_brake_slowdown>
      <clocks_event_reason_sw_thermal_slowdown>Not Active</clocks_event_reason_sw_thermal_slowdown>
    </clocks_event_reasons>
    <fb_memory_usage>
      <total>{memory} MiB</total><reserved>{reserved} MiB</reserved>
      <used>1 MiB</used><free>{free} MiB</free>
    </fb_memory_usage>
    <compute_mode>Default</compute_mode>
    <utilization><gpu_util>0 %</gpu_util><memory_util>0 %</memory_util></utilization>
    <ecc_mode><current_ecc>Enabled</current_ecc><pending_ecc>Enabled</pending_ecc></ecc_mode>
    <ecc_errors>
      <volatile>
        <sram_correctable>0</sram_correctable>
        <sram_uncorrectable_parity>0</sram_uncorrectable_parity>
        <sram_uncorrectable_secded>0</sram_uncorrectable_secded>
        <dram_correctable>0</dram_correctable>
        <dram_uncorrectable>0</dram_uncorrectable>
      </volatile>
      <aggregate>
        <sram_correctable>0</sram_correctable>
        <sram_uncorrectable_parity>0</sram_uncorrectable_parity>
        <sram_uncorrectable_secded>0</sram_uncorrectable_secded>
        <dram_correctable>0</dram_correctable>
        <dram_uncorrectable>0</dram_uncorrectable>
        <sram_threshold_exceeded>No</sram_threshold_exceeded>
      </aggregate>
    </ecc_errors>
    <remapped_rows>
      <remapped_row_corr>0</remapped_row_corr>
      <remapped_row_unc>0</remapped_row_unc>
      <remapped_row_pending>No</remapped_row_pending>
      <remapped_row_failure>No</remapped_row_failure>
    </remapped_rows>
    <temperature>
      <gpu_temp>34 C</gpu_temp><gpu_temp_tlimit>53 C</gpu_temp_tlimit>
      <gpu_temp_slow_tlimit_threshold>-2 C</gpu_temp_slow_tlimit_threshold>
    </temperature>
    <gpu_power_readings>
      <instant_power_draw>{idle}.10 W</instant_power_draw>
      <current_power_limit>{watts}.00 W</current_power_limit>
      <default_power_limit>{watts}.00 W</default_power_limit>
    </gpu_power_readings>
    <fabric><state>{fabric}</state><status>{status}</status></fabric>
    <processes></processes>
  </gpu>
"""

_SCRIPT = """\
#!/bin/sh
# clusterctl's fake nvidia-smi: shows {count} {model} that do not exist.
here=$(dirname "$0")
case "$*" in
  "-q -x" | "-x -q") exec cat "$here/nvidia-smi.xml" ;;
  "-L" | "") exec cat "$here/nvidia-smi.list" ;;
  --query-compute-apps=*) exit 0 ;;
  --query-gpu=index,utilization.gpu,memory.used,memory.total*) exec cat "$here/nvidia-smi.use" ;;
esac
echo "nvidia-smi (stand-in of the sandbox): expected -q -x or -L, found: $*" >&2
exit 2
"""


def parse(text: str) -> Gpus:
    """Read `MODELxCOUNT`."""
    found = re.fullmatch(r"([A-Za-z0-9]+)x([1-9]\d?)", text)
    if found is None or found[1].upper() not in MODELS:
        raise UsageError(
            f"--gpus: expected {'|'.join(MODELS)} x COUNT, such as H100x8; found {text!r}"
        )
    return Gpus(model=found[1].upper(), count=int(found[2]))


def install(folder: Path, gpus: Gpus, *, host: str) -> None:
    """Install a fake nvidia-smi in a folder of a host's PATH."""
    uuids = [_uuid(host, minor) for minor in range(gpus.count)]
    product = MODELS[gpus.model].product
    listing = [f"GPU {i}: {product} (UUID: {uuid})\n" for i, uuid in enumerate(uuids)]
    (folder / "nvidia-smi.xml").write_text(document(gpus, host=host))
    (folder / "nvidia-smi.list").write_text("".join(listing))
    memory = MODELS[gpus.model].memory
    (folder / "nvidia-smi.use").write_text(
        "".join(f"{i}, 0, 1, {memory}\n" for i in range(gpus.count))
    )
    _write_program(folder, _SCRIPT.format(count=gpus.count, model=gpus.model))


def lose(folder: Path, gpus: Gpus, *, host: str) -> None:
    """Show the last of a host's GPUs as nvidia-smi shows one that fell off the bus."""
    head, last = document(gpus, host=host).rsplit("  <gpu ", 1)
    for value in ("fb_memory_usage", "utilization", "temperature", "remapped_rows", "fabric"):
        inner = re.search(rf"(?s)<{value}>.*</{value}>", last)
        assert inner is not None, value
        last = last.replace(inner[0], re.sub(r">[^<>\n]+<", ">GPU is lost<", inner[0]))
    (folder / "nvidia-smi.xml").write_text(f"{head}  <gpu {last}")


def install_failing(folder: Path, message: str, code: int) -> None:
    """Install an nvidia-smi that fails with a message of the driver."""
    _write_program(folder, f"#!/bin/sh\necho {shlex.quote(message)}\nexit {code}\n")


def install_hanging(folder: Path) -> None:
    """Install an nvidia-smi that hangs, as on a GPU that fell off the bus."""
    _write_program(folder, "#!/bin/sh\nexec sleep 100000\n")


def remove(folder: Path) -> None:
    """Remove the fake nvidia-smi."""
    for name in ("nvidia-smi", "nvidia-smi.xml", "nvidia-smi.list"):
        (folder / name).unlink(missing_ok=True)


def _write_program(folder: Path, text: str) -> None:
    new = folder / ".nvidia-smi.new"
    new.write_text(text)
    new.chmod(0o755)
    new.replace(folder / "nvidia-smi")


def document(gpus: Gpus, *, host: str) -> str:
    """Return the output of `nvidia-smi -q -x` for these GPUs, all healthy and idle."""
    model = MODELS[gpus.model]
    parts = [
        _GPU.format(
            bus=f"00000000:{0x1B + 16 * minor // 2:02X}:00.0",
            product=model.product,
            architecture=model.architecture,
            serial=f"16{int(_digest(host, minor)[:8], 16):011d}",
            uuid=_uuid(host, minor),
            minor=minor,
            memory=model.memory,
            reserved=model.memory // 128,
            free=model.memory - model.memory // 128 - 1,
            idle=model.watts // 10,
            watts=model.watts,
            fabric="Completed" if model.fabric else "N/A",
            status="Success" if model.fabric else "N/A",
        )
        for minor in range(gpus.count)
    ]
    return (
        '<?xml version="1.0" ?>\n'
        '<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">\n'
        "<nvidia_smi_log>\n"
        "  <timestamp>Thu Jan  1 00:00:00 2026</timestamp>\n"
        f"  <driver_version>{DRIVER}</driver_version>\n"
        f"  <cuda_version>{CUDA}</cuda_version>\n"
        f"  <attached_gpus>{gpus.count}</attached_gpus>\n" + "".join(parts) + "</nvidia_smi_log>\n"
    )


def _digest(host: str, minor: int) -> str:
    return hashlib.sha256(f"{host}/{minor}".encode()).hexdigest()


def _uuid(host: str, minor: int) -> str:
    d = _digest(host, minor)
    return f"GPU-{d[:8]}-{d[8:12]}-{d[12:16]}-{d[16:20]}-{d[20:32]}"
