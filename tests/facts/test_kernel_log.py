"""The kernel log's lines from a node's answer: their age, and why there are none."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.facts.fact import Unreadable
from clusterctl.facts.machine.kernel_log import (
    LENGTH,
    NEWEST,
    KernelLine,
    KernelLog,
    parse_kernel_log,
)
from tests.facts.answering import answers

XID = "NVRM: Xid (PCI:0000:0b:00): 79, GPU has fallen off the bus."


def test_a_line_has_an_age_if_the_uptime_is_known() -> None:
    log = {"kernel-log": {"source": "kmsg", "lines": [[40.5, XID]]}}

    with_uptime = parse_kernel_log(answers({"/proc/uptime": "100.50 3.00\n"}, others=log))
    without = parse_kernel_log(answers(others=log))

    assert with_uptime == KernelLog(source="kmsg", lines=(KernelLine(age_s=60.0, text=XID),))
    assert without == KernelLog(source="kmsg", lines=(KernelLine(age_s=None, text=XID),))


def test_a_log_that_this_user_may_not_read_is_unknown_with_the_reason() -> None:
    refused = answers(others={"kernel-log": {"error": "/dev/kmsg: Operation not permitted"}})

    with pytest.raises(Unreadable, match=r"^/dev/kmsg: Operation not permitted$"):
        parse_kernel_log(refused)
    assert parse_kernel_log(answers()) is None  # not asked


def test_the_newest_lines_count_and_the_start_of_each() -> None:
    sent = [[float(at), f"{at} " + "x" * 2 * LENGTH] for at in range(2 * NEWEST)]

    log = parse_kernel_log(answers(others={"kernel-log": {"source": "kmsg", "lines": sent}}))

    assert log is not None
    assert (len(log.lines), log.lines[-1].text.split()[0]) == (NEWEST, f"{2 * NEWEST - 1}")
    assert {len(line.text) for line in log.lines} == {LENGTH}


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text() | st.integers(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_any_answer_of_a_node_is_a_log_or_none(value: object) -> None:
    for document in (value, {"source": value, "lines": value}, {"lines": [value, [1, value]]}):
        with contextlib.suppress(Unreadable):
            parse_kernel_log(answers(others={"kernel-log": document}))
