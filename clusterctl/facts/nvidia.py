"""Parses `nvidia-smi -q -x`, of any schema from v10 to v13."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from clusterctl.facts.values.accelerators import Gpu, GpuProcess, Gpus

_MISSING = re.compile(
    r"^\[?(n/?a|not supported|unknown error|none|err!|insufficient.*)\]?$", re.IGNORECASE
)
_NUMBER = re.compile(r"\s*(\d+)")


def parse_nvidia_smi(text: str) -> Gpus:
    """Read the log.

    Raises:
        ValueError: it is not one; the error has the tool's own message, if there is one.
    """
    start = text.find("<nvidia_smi_log")
    if start < 0:
        raise ValueError(text.strip().splitlines()[-1] if text.strip() else "nothing was printed")
    try:
        # Without the document type before it, no entity can be declared.
        log = ET.fromstring(text[start:])  # noqa: S314
    except ET.ParseError as error:
        raise ValueError(f"not XML: {error}") from error
    return Gpus(
        tool="nvidia-smi",
        driver=_word(log, "driver_version"),
        cuda=_word(log, "cuda_version"),
        devices=tuple(_gpu(index, node) for index, node in enumerate(log.iter("gpu"))),
    )


def _gpu(index: int, node: ET.Element) -> Gpu:
    mig = _word(node, "mig_mode/current_mig")
    pending = _word(node, "remapped_rows/remapped_row_pending") or _word(
        node, "retired_pages/pending_retirement"
    )
    return Gpu(
        index=index,
        name=_word(node, "product_name"),
        uuid=_word(node, "uuid"),
        bus_id=node.get("id", ""),
        memory_mib=_number(node, "fb_memory_usage/total"),
        used_mib=_number(node, "fb_memory_usage/used"),
        mig=mig == "Enabled" if mig else None,
        ecc_uncorrected=_uncorrected(node),
        remap_pending=pending == "Yes" if pending else None,
        recovery_action=_word(node, "gpu_recovery_action"),
        processes=_processes(node),
    )


def _uncorrected(node: ET.Element) -> int | None:
    """Sum the uncorrectable errors since boot, under the names of every schema."""
    volatile = node.find("ecc_errors/volatile")
    if volatile is None:
        return None
    total = None
    for child in volatile.iter():
        if "uncorrect" in child.tag or child.tag == "double_bit":
            whole = child.find("total")  # of its siblings
            counts = [whole] if whole is not None else child.iter()
            numbers = [_as_number(item.text) for item in counts if len(item) == 0]
            known = [number for number in numbers if number is not None]
            total = sum(known) + (total or 0) if known else total
    return total


def _processes(node: ET.Element) -> tuple[GpuProcess, ...] | None:
    listed = node.find("processes")
    if listed is None or _MISSING.match((listed.text or "").strip()):
        return None if listed is None or "none" not in (listed.text or "").lower() else ()
    return tuple(
        GpuProcess(
            pid=_number(entry, "pid") or 0,
            name=_word(entry, "process_name"),
            memory_mib=_number(entry, "used_memory"),
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
