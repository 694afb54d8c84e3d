"""Parses `nvidia-smi -q -x`, of any schema from v10 to v13."""

import itertools
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator

from clusterctl.facts.gpu.accelerators import (
    Gpu,
    GpuClocks,
    GpuFabric,
    GpuHeat,
    GpuMemory,
    GpuPower,
    GpuProcess,
    Gpus,
    PcieLink,
    UnlistedGpu,
)

_MISSING = re.compile(
    r"^\[?(n/?a|not supported|unknown error|none|err!|insufficient.*|gpu requires reset|gpu is lost"
    r"|requested functionality has been deprecated)\]?$",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"\s*(-?\d{1,18})(\.\d+)?")
_CORRUPT = re.compile(r"infoROM is corrupted at gpu (\S+)", re.IGNORECASE)
_END = "</nvidia_smi_log>"
_LOST = re.compile(r"\[?(gpu is lost|gpu requires reset)\b", re.IGNORECASE)
_SILENT = re.compile(r"\[?(unknown error|err!)\]?$", re.IGNORECASE)
"""One value may fail on a GPU that works, such as a fan's: only several vital ones tell."""
_VITAL = (
    "fb_memory_usage/total", "utilization/gpu_util", "temperature/gpu_temp", "clocks/sm_clock",
)  # fmt: skip
_NO_HANDLE = re.compile(
    r"Unable to determine the device handle for gpu ?(?:(\d{1,3}): ?)?"
    r"([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])?:? *([^\n]*)",
    re.IGNORECASE,
)
_UNHEALTHY = {"unhealthy", "limited capacity", "degraded"}


def parse_nvidia_smi(text: str) -> Gpus:
    """Read the log."""
    start, end = text.find("<nvidia_smi_log"), text.find(_END)
    unlisted = list(_NO_HANDLE.finditer(text))
    if start < 0 and unlisted:
        return Gpus(tool="nvidia-smi", unlisted=tuple(map(_unlisted, unlisted)))
    if start < 0:
        raise ValueError(text.strip().splitlines()[-1] if text.strip() else "nothing was printed")
    try:
        # Without the document type before it, no entity can be declared; warnings follow it.
        log = ET.fromstring(text[start : end + len(_END) if end >= 0 else None])  # noqa: S314
    except ET.ParseError as error:
        raise ValueError(f"not XML: {error}") from error
    warnings = text[:start] + text[end:]
    corrupt = {pci_address(bus) for bus in _CORRUPT.findall(warnings)}
    # The GPUs that are not listed keep their numbers.
    left_out = {int(found[1]) for found in unlisted if found[1]}
    numbers = (number for number in itertools.count() if number not in left_out)
    return Gpus(
        tool="nvidia-smi",
        driver=_word(log, "driver_version"),
        cuda=_word(log, "cuda_version"),
        devices=tuple(_gpu(next(numbers), node, corrupt) for node in log.iter("gpu")),
        unlisted=tuple(map(_unlisted, unlisted)),
    )


def is_complete(text: str) -> bool:
    """Return whether it tells all: nvidia-smi also exits with 14 or 15 for one faulty GPU."""
    return _END in text or _NO_HANDLE.search(text) is not None


def _unlisted(found: re.Match[str]) -> UnlistedGpu:
    why = found[3].strip().partition(".")[0]
    return UnlistedGpu(address=pci_address(found[2] or ""), why=why)


def pci_address(bus_id: str) -> str:
    """Return a PCI address as the kernel writes it, with a domain of four digits."""
    domain, colon, rest = bus_id.strip().lower().partition(":")
    if ":" not in rest:
        return bus_id.strip().lower()
    return f"{domain[-8:].lstrip('0').rjust(4, '0')}{colon}{rest}"


def _gpu(index: int, node: ET.Element, corrupt: set[str]) -> Gpu:
    bus_id = node.get("id", "")
    asks, action = _recovery(node)
    pending = _flag(node, "remapped_rows/remapped_row_pending")
    if pending is None:
        pending = _flag(node, "retired_pages/pending_retirement")
    return Gpu(
        index=index,
        name=_word(node, "product_name"),
        uuid=_word(node, "uuid"),
        bus_id=bus_id,
        used_mib=_number(node, "fb_memory_usage/used"),
        mig=_flag(node, "mig_mode/current_mig"),
        ecc_uncorrected=_uncorrected(node, "volatile"),
        remap_pending=pending,
        recovery_action=action,
        asks_recovery=asks,
        processes=_processes(node),
        memory=_memory(node),
        heat=_heat(node),
        power=_power(node),
        clocks=_clocks(node),
        link=_link(node),
        fabric=_fabric(node),
        throttle=_throttle(node),
        utilization=_number(node, "utilization/gpu_util"),
        persistence=_flag(node, "persistence_mode"),
        compute_mode=_word(node, "compute_mode"),
        inforom_corrupt=pci_address(bus_id) in corrupt,
        lost=_lost(node),
    )


def _lost(node: ET.Element) -> str:
    """Return the words that stand for the values of a GPU that does not answer."""
    if found := next(
        filter(None, (_LOST.match((e.text or "").strip()) for e in node.iter())), None
    ):
        return found[1]
    vital = (_SILENT.match((node.findtext(path) or "").strip()) for path in _VITAL)
    words = [found[1] for found in vital if found]
    return words[0] if len(words) > 1 else ""


def _recovery(node: ET.Element) -> tuple[bool | None, str]:
    """Return whether the driver asks for an action, and which: since v12 of the schema, or R570."""
    named = (node.findtext("gpu_recovery_action") or "").strip()
    if named:
        action = _word(node, "gpu_recovery_action")
        return (bool(action) if action or named.lower() == "none" else None), action
    required = _flag(node, "gpu_reset_status/reset_required")
    drain = _flag(node, "gpu_reset_status/drain_and_reset_recommended")
    action = "Reset" if required else "Drain and Reset" if drain else ""
    return (None if required is None else bool(action)), action


def _uncorrected(node: ET.Element, since: str) -> int | None:
    """Sum the uncorrectable errors of `volatile` or `aggregate`, by the names of every schema."""
    counters = node.find("ecc_errors/" + since)
    if counters is None:
        return None
    total: int | None = None
    for child in counters.iter():
        if "uncorrect" in child.tag or child.tag == "double_bit":
            whole = child.find("total")  # of its siblings
            counts = [whole] if whole is not None else child.iter()
            numbers = [_as_number(item.text) for item in counts if len(item) == 0]
            known = [number for number in numbers if number is not None]
            total = sum(known) + (total or 0) if known else total
    return total


def _memory(node: ET.Element) -> GpuMemory:
    repairs = [
        _flag(node, "ecc_errors/" + part)
        for part in ("channel_repair_pending", "tpc_repair_pending")
    ]
    retired = [
        _number(node, f"retired_pages/{kind}/retired_count")
        for kind in ("multiple_single_bit_retirement", "double_bit_retirement")
    ]
    pages = [count for count in retired if count is not None]
    return GpuMemory(
        ecc=_flag(node, "ecc_mode/current_ecc"),
        uncorrected_ever=_uncorrected(node, "aggregate"),
        sram_threshold=_flag(node, "ecc_errors/aggregate/sram_threshold_exceeded"),
        retired_pages=sum(pages) if pages else None,
        remap_failure=_flag(node, "remapped_rows/remapped_row_failure"),
        repair_pending=None if set(repairs) == {None} else any(repairs),
        unrepairable=_flag(node, "ecc_errors/unrepairable_memory"),
    )


def _heat(node: ET.Element) -> GpuHeat:
    celsius = _number(node, "temperature/gpu_temp")
    limit = _number(node, "temperature/gpu_temp_slow_threshold")
    # Newer GPUs count the degrees that are left, and slow down a little below zero.
    left = _number(node, "temperature/gpu_temp_tlimit")
    slow = _number(node, "temperature/gpu_temp_slow_tlimit_threshold")
    if left is not None and slow is not None:
        return GpuHeat(celsius=celsius, margin=left - slow)
    if limit is not None and celsius is not None:
        return GpuHeat(celsius=celsius, margin=limit - celsius)
    return GpuHeat(celsius=celsius)


def _power(node: ET.Element) -> GpuPower:
    def watts(*names: str) -> float | None:
        texts = [node.findtext(f"{part}/{name}") for part in parts for name in names]
        return next((value for value in map(_as_float, texts) if value is not None), None)

    parts = ("gpu_power_readings", "power_readings")
    return GpuPower(
        limit=watts("current_power_limit", "enforced_power_limit", "power_limit"),
        default_limit=watts("default_power_limit"),
    )


def _clocks(node: ET.Element) -> GpuClocks:
    return GpuClocks(
        application=_number(node, "applications_clocks/graphics_clock"),
        default=_number(node, "default_applications_clocks/graphics_clock"),
    )


def _link(node: ET.Element) -> PcieLink:
    info = "pci/pci_gpu_link_info/"
    return PcieLink(
        width=_number(node, info + "link_widths/current_link_width"),
        max_width=_number(node, info + "link_widths/max_link_width"),
        generation=_number(node, info + "pcie_gen/current_link_gen"),
        max_generation=_number(node, info + "pcie_gen/max_link_gen"),
    )


def _fabric(node: ET.Element) -> GpuFabric | None:
    if node.find("fabric") is None:
        return None
    return GpuFabric(
        state=_word(node, "fabric/state"),
        status=_word(node, "fabric/status"),
        cluster=_word(node, "fabric/clusterUuid"),
        unhealthy=", ".join(_fabric_faults(node)),
    )


def _fabric_faults(node: ET.Element) -> Iterator[str]:
    health = "fabric/health/"
    words = (_word(node, health + part) for part in ("summary", "bandwidth"))
    yield from (word for word in words if word.lower() in _UNHEALTHY)
    for part in ("route_unhealthy", "route_recovery_in_progress", "access_timeout_recovery"):
        if _word(node, health + part).lower() == "true":
            yield part.replace("_", " ")
    if wrong := _word(node, health + "incorrect_configuration"):
        yield f"incorrect configuration: {wrong}"


def _throttle(node: ET.Element) -> tuple[str, ...] | None:
    """Return the active reasons, without the prefix that changed with R535."""
    for name in ("clocks_event_reason", "clocks_throttle_reason"):
        reasons = node.find(name + "s")
        if reasons is not None:
            flags = {
                child.tag.removeprefix(name + "_"): (child.text or "").strip() for child in reasons
            }
            known = {"Active", "Not Active"} & set(flags.values())
            return tuple(tag for tag, text in flags.items() if text == "Active") if known else None
    return None


def _processes(node: ET.Element) -> tuple[GpuProcess, ...] | None:
    listed = node.find("processes")
    if listed is None or _MISSING.match((listed.text or "").strip()):
        return None if listed is None or "none" not in (listed.text or "").lower() else ()
    return tuple(
        GpuProcess(
            pid=_number(entry, "pid") or 0,
            name=_word(entry, "process_name"),
        )
        for entry in listed.iter("process_info")
    )


def _word(node: ET.Element, path: str) -> str:
    text = (node.findtext(path) or "").strip()
    return "" if _MISSING.match(text) else text


def _number(node: ET.Element, path: str) -> int | None:
    return _as_number(node.findtext(path))


def _as_number(text: str | None) -> int | None:
    found = _NUMBER.match(text or "")
    return int(found[1]) if found else None


def _as_float(text: str | None) -> float | None:
    found = _NUMBER.match(text or "")
    return float(found[0]) if found else None


def _flag(node: ET.Element, path: str) -> bool | None:
    return {"yes": True, "enabled": True, "no": False, "disabled": False}.get(
        _word(node, path).lower()
    )
