"""Parses `amd-smi static --json` and `rocm-smi … --json`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from clusterctl.facts.values.accelerators import Gpu, Gpus

_MIB = 1024 * 1024
_UNITS = {"B": 1 / _MIB, "KB": 1 / 1024, "MB": 1.0, "GB": 1024.0}


def parse_amd_smi(text: str) -> Gpus:
    """Read `amd-smi static --json`: a list of GPUs, in newer releases under `gpu_data`.

    Raises:
        ValueError: it is neither.
    """
    document = json.loads(text)
    listed = document.get("gpu_data") if isinstance(document, Mapping) else document
    if not isinstance(listed, list) or not all(isinstance(entry, Mapping) for entry in listed):
        raise ValueError("not a list of GPUs")
    return Gpus(
        tool="amd-smi",
        driver=next((_text(e, "driver", "version") for e in listed), ""),
        devices=tuple(
            Gpu(
                index=index,
                name=_text(entry, "asic", "market_name"),
                uuid=_text(entry, "asic", "asic_serial"),
                bus_id=_text(entry, "bus", "bdf"),
                memory_mib=_mib(entry),
            )
            for index, entry in enumerate(listed)
        ),
    )


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
    total = _first(card, "VRAM Total Memory (B)")
    used = _first(card, "VRAM Total Used Memory (B)")
    return Gpu(
        index=index,
        name=_first(card, "Card Series", "Card series", "Card Model", "Card model"),
        uuid=_first(card, "Unique ID"),
        bus_id=_first(card, "PCI Bus"),
        memory_mib=int(total) // _MIB if total.isdecimal() else None,
        used_mib=int(used) // _MIB if used.isdecimal() else None,
    )


def _first(card: Mapping[str, Any], *keys: str) -> str:
    return next((str(card[key]) for key in keys if card.get(key) not in {None, "N/A"}), "")


def _text(entry: Mapping[str, Any], section: str, key: str) -> str:
    inner = entry.get(section)
    value = inner.get(key) if isinstance(inner, Mapping) else None
    return "" if value in {None, "N/A"} else str(value)


def _mib(entry: Mapping[str, Any]) -> int | None:
    vram = entry.get("vram")
    size = vram.get("size") if isinstance(vram, Mapping) else None
    if not isinstance(size, Mapping):
        return None
    unit = _UNITS.get(str(size.get("unit")))
    value = size.get("value")
    return int(value * unit) if unit and isinstance(value, (int, float)) else None
