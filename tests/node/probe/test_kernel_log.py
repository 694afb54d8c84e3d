"""The kernel log as this user may read it: the device, else dmesg, else the journal."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from clusterctl.node.probe import kernel_log

RECORDS = """\
4,1,1000000,-;NVRM: Xid (PCI:0000:0b:00): 48, pid=1, DBE
 SUBSYSTEM=pci
6,2,1500000,-;NVRM: loading
4,3,2000000,c;NVRM: Xid (PCI:0000:0b:00): 79, GPU has fallen off the bus.
not a record
"""
DMESG = "<4>[   12.250000] NVRM: Xid (PCI:0000:0b:00): 31\nno time\n"
JOURNAL = "[    7.500000] gpu1 kernel: NVRM: Xid (PCI:0000:0b:00): 13\n"


def read_log(*patterns: str) -> Any:
    sent: list[bytes] = []
    kernel_log.read_kernel_log(patterns, sent.append)
    return json.loads(b"".join(sent))


@pytest.fixture
def printing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that lets a program print a text, or fail for None."""
    monkeypatch.setattr(kernel_log, "DEVICE", str(tmp_path / "none"))

    def let(name: str, text: str | None) -> None:
        argv: tuple[str, ...] = ("false",)
        if text is not None:
            (tmp_path / name).write_text(text)
            argv = ("cat", str(tmp_path / name))
        monkeypatch.setattr(kernel_log, name, argv)

    return let


def test_records_of_the_device_that_contain_a_pattern(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = tmp_path / "kmsg"
    device.write_text(RECORDS)
    monkeypatch.setattr(kernel_log, "DEVICE", str(device))

    assert read_log("NVRM: Xid", "SXid") == {
        "source": "kmsg",
        "lines": [
            [1.0, "NVRM: Xid (PCI:0000:0b:00): 48, pid=1, DBE"],
            [2.0, "NVRM: Xid (PCI:0000:0b:00): 79, GPU has fallen off the bus."],
        ],
    }


@pytest.mark.skipif(not os.access("/dev/kmsg", os.R_OK), reason="/dev/kmsg is not readable")
def test_the_real_device_is_read_to_its_end_without_waiting() -> None:
    log = read_log("")

    assert log["source"] == "kmsg"
    assert len(log["lines"]) <= kernel_log.NEWEST


def test_without_the_device_dmesg_is_read_and_then_the_journal(printing: Any) -> None:
    printing("DMESG", DMESG)
    printing("JOURNAL", JOURNAL)
    assert read_log("Xid")["lines"] == [[12.25, "NVRM: Xid (PCI:0000:0b:00): 31"]]

    printing("DMESG", None)
    found = read_log("Xid")
    assert (found["source"], found["lines"][0][0]) == ("journal", 7.5)


def test_if_no_source_may_be_read_the_answer_says_so(printing: Any) -> None:
    printing("DMESG", None)
    printing("JOURNAL", "")

    assert "No such file" in read_log("Xid")["error"]
