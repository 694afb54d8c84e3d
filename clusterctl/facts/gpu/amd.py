"""Parses what `amd-smi … --json` and `rocm-smi … --json` print."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from clusterctl.facts.gpu.accelerators import Gpu, GpuHeat, GpuPower, GpuProcess, Gpus

_MIB = 1024 * 1024
_MOST = 1e12


def parse_amd_smi(text: str) -> Gpus:
    """Read `amd-smi static --json`: a list of GPUs, or one under `gpu_data`; else ValueError."""
    listed = _entries(text)
    return Gpus(
        tool="amd-smi",
        driver=next((_text(e, "driver", "version") for e in listed), ""),
        devices=tuple(
            Gpu(
                index=index,
                name=_text(entry, "asic", "market_name"),
                uuid=_text(entry, "asic", "asic_serial"),
                bus_id=_text(entry, "bus", "bdf"),
                power=GpuPower(limit=_power_limit(entry)),
            )
            for index, entry in enumerate(listed)
        ),
    )


def _entries(text: str) -> list[Mapping[str, Any]]:
    """Return the GPUs of a document of amd-smi; raise ValueError if it lists none."""
    document = json.loads(text)
    listed = document.get("gpu_data") if isinstance(document, Mapping) else document
    if not isinstance(listed, list) or not all(isinstance(entry, Mapping) for entry in listed):
        raise ValueError("not a list of GPUs")
    return listed


def with_metrics(gpus: Gpus, static: str, metric: str, processes: str) -> Gpus:
    """Add what `amd-smi metric --json` and `amd-smi process --json` report of each GPU.

    Args:
        gpus: those of `parse_amd_smi`.
        static: the document that they are from; it has the GPUs' limits.
        metric: what the tool printed; what is none of its documents adds nothing.
        processes: as `metric`.
    """
    limits, metrics, running = map(_by_number, (static, metric, processes))
    return replace(
        gpus,
        devices=tuple(
            _with_metric(
                replace(gpu, processes=_processes(running.get(gpu.index))),
                metrics.get(gpu.index, {}),
                limits.get(gpu.index, {}),
            )
            for gpu in gpus.devices
        ),
    )


def _by_number(text: str) -> dict[int, Mapping[str, Any]]:
    try:
        entries = _entries(text)
    except (ValueError, RecursionError):
        return {}
    return {e["gpu"]: e for e in entries if type(e.get("gpu")) is int}


_THROTTLE = {
    "prochot": "hw_slowdown",
    "socket_thermal": "hw_thermal_slowdown",
    "vr_thermal": "hw_thermal_slowdown",
    "hbm_thermal": "hw_thermal_slowdown",
    "ppt": "sw_power_cap",
}
"""AMD's reasons, and the name of the same one of NVIDIA."""


def _with_metric(gpu: Gpu, metric: Mapping[str, Any], limits: Mapping[str, Any]) -> Gpu:
    hot = next(
        (n for part in ("hotspot", "edge") if (n := _value(metric, "temperature", part))), None
    )
    slow = _value(limits, "limit", "slowdown_hotspot_temperature")
    states = {
        reason: _text(metric, "throttle", reason + "_violation_status").upper()
        for reason in _THROTTLE
    }
    active = {_THROTTLE[reason] for reason, state in states.items() if state == "ACTIVE"}
    used = _value(metric, "mem_usage", "used_vram")
    return replace(
        gpu,
        used_mib=used if used is not None else gpu.used_mib,
        ecc_uncorrected=_value(metric, "ecc", "total_uncorrectable_count"),
        utilization=_value(metric, "usage", "gfx_activity"),
        heat=GpuHeat(
            celsius=hot, margin=slow - hot if slow is not None and hot is not None else None
        ),
        throttle=tuple(sorted(active)) if any(states.values()) else None,
    )


def _processes(entry: Mapping[str, Any] | None) -> tuple[GpuProcess, ...] | None:
    listed = entry.get("process_list") if entry is not None else None
    if not isinstance(listed, list):
        return None
    rows = [row.get("process_info") for row in listed if isinstance(row, Mapping)]
    return tuple(
        GpuProcess(pid=row["pid"], name=str(row.get("name", "")))
        for row in rows  # a text if there is none
        if isinstance(row, Mapping) and type(row.get("pid")) is int
    )


def _power_limit(entry: Mapping[str, Any]) -> float | None:
    """Return the limit that is set, in newer releases below `ppt0`."""
    limit = entry.get("limit")
    newer = limit.get("ppt0") if isinstance(limit, Mapping) else None
    watts = _value({"limit": newer}, "limit", "socket_power_limit")
    if watts is None:
        watts = _value(entry, "limit", "socket_power")
    return float(watts) if watts is not None else None


def _value(entry: Mapping[str, Any], section: str, key: str) -> int | None:
    """Return a number, given as it is or with its unit; None for `N/A`."""
    inner = entry.get(section)
    value = inner.get(key) if isinstance(inner, Mapping) else None
    if isinstance(value, Mapping):
        value = value.get("value")
    if isinstance(value, (int, float)) and -_MOST < value < _MOST:  # neither NaN nor infinity
        return int(value)
    return None


def parse_rocm_smi(text: str) -> Gpus:
    """Read `rocm-smi --json`: an object with a key `cardN` for each GPU; else ValueError."""
    # rocm-smi prints warnings before the document.
    document = json.loads(text[max(text.find("{"), 0) :])
    if not isinstance(document, Mapping):
        raise ValueError("not an object")  # noqa: TRY004  (of bad text, as every parser does)
    cards = {
        k: v for k, v in document.items() if re.fullmatch(r"card\d+", k) and isinstance(v, Mapping)
    }
    names = sorted(cards, key=lambda name: int(name[4:]))
    system = document.get("system")
    return Gpus(
        tool="rocm-smi",
        driver=_first(system, "Driver version") if isinstance(system, Mapping) else "",
        devices=tuple(_card(index, cards[name]) for index, name in enumerate(names)),
    )


def _card(index: int, card: Mapping[str, Any]) -> Gpu:
    used = _first(card, "VRAM Total Used Memory (B)")
    return Gpu(
        index=index,
        name=_first(card, "Card Series", "Card series", "Card Model", "Card model"),
        uuid=_first(card, "Unique ID"),
        bus_id=_first(card, "PCI Bus"),
        used_mib=int(used) // _MIB if used.isdecimal() else None,
    )


def _first(card: Mapping[str, Any], *keys: str) -> str:
    return next((str(card[key]) for key in keys if card.get(key) not in {None, "N/A"}), "")


def _text(entry: Mapping[str, Any], section: str, key: str) -> str:
    inner = entry.get(section)
    value = inner.get(key) if isinstance(inner, Mapping) else None
    return str(value) if isinstance(value, (str, int, float)) and value != "N/A" else ""
