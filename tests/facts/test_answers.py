"""Whatever a node answers, its facts are values that print, or it said nothing of ours."""

from __future__ import annotations

import functools
import json
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterctl.facts.answers import Answers
from clusterctl.facts.machine.system import Clock, Limits
from clusterctl.facts.nodefacts import NodeFacts, from_document, to_document
from clusterctl.facts.parse_facts import parse_facts, read_arguments
from clusterctl.facts.request import FactRequest, PathQuestion
from clusterctl.node.probe.read import read
from clusterctl.wire import Message
from tests.damage import ANY_JSON, ANY_TEXT, as_json, damaged, damaged_json

TESTS = Path(__file__).parents[1]
WANTED = FactRequest(places=(PathQuestion(path="/tmp", write=True), PathQuestion(path="/no-such")))
STATES = ("ok", "absent", "denied", "error", "timeout", "too-long", "not-asked")
CARD = {
    "asic": {"market_name": "AMD Instinct MI300X", "asic_serial": "0x1"},
    "bus": {"bdf": "0000:0c:00.0"},
    "vram": {"size": {"value": 192, "unit": "GB"}},
    "driver": {"version": "6.10.5"},
}
RECORDED: dict[str, bytes] = {
    "command:nvidia-smi": (TESTS / "recordings/nvidia-smi-q-x-h200-v13.xml").read_bytes(),
    "command:amd-smi": as_json({"gpu_data": [CARD]}),
    "command:rocm-smi": as_json(
        {"card0": {"Card Series": "MI250", "VRAM Total Memory (B)": "68702699520"}, "system": {}}
    ),
    "interfaces": (TESTS / "facts/sources/interfaces.json").read_bytes(),
    "command:torch": as_json({"cuda_available": True, "device_count": 8, "nccl": "2.28.9"}),
    "command:python": b"/v/bin/python\x003.12.1\x0012.8\x00torch\x002.13.0",
    "file:/sys/class/net/eth0/speed": b"25000\n",
    "file:/sys/class/net/eth0/flags": b"0x1003\n",
    "file:/sys/class/infiniband/mlx5_0/ports/1/state": b"4: ACTIVE\n",
    "file:/sys/class/infiniband/mlx5_0/ports/1/rate": b"400 Gb/sec (4X NDR)\n",
    "file:/etc/nccl.conf": b"NCCL_DEBUG=INFO\n",
    "lock": as_json({"holder": {"run": "r", "user": "ada", "since": 0, "holds": ["GPU-1"]}}),
}
"""Answers that this machine may not give: those of GPUs, of RDMA, and of a run that holds it."""


class Controller:
    """The other end of the conversation, which asks for nothing more."""

    disconnected = False

    def receive(self) -> None:
        return None

    def send(self, message: Message) -> None:
        """Take it."""


@functools.cache
def recorded() -> dict[str, bytes]:
    """Return what this machine answers, and what others do."""
    message = read(read_arguments(WANTED), b"", Controller())  # type: ignore[arg-type]
    answered = Answers.of(message).by_key
    return {**{key: one.data for key, one in answered.items() if one.good}, **RECORDED}


def packed(
    bodies: dict[str, bytes], state: str = "ok", code: Any = None, seconds: Any = 0.0
) -> Message:
    rows = [[key, state, len(body), code, seconds, ""] for key, body in bodies.items()]
    return Message({"answers": rows}, zlib.compress(b"".join(bodies.values()), 1))


def learned(message: Message) -> NodeFacts | None:
    """Return the facts, as a file keeps them too; None: it is no answer of ours."""
    try:
        answers = Answers.of(message)
    except ValueError:
        return None
    facts = parse_facts("a", answers, WANTED, clock=Clock(offset_s=0.0, error_s=0.1))
    written = json.dumps(to_document({"a": facts}))
    # A NaN is not equal to itself; its text is.
    assert repr(from_document(json.loads(written))["a"]) == repr(facts)
    return facts


HUGE = b"9" * 5000
"""More digits than Python turns into a number."""


@pytest.mark.parametrize(
    ("key", "body"),
    [
        ("file:/proc/meminfo", b"MemTotal: " + HUGE + b" kB\n"),
        ("file:/proc/self/limits", b"Max open files  " + HUGE + b"  1  files\n"),
        ("file:/proc/sys/net/ipv4/ip_local_port_range", b"1 " + HUGE),
        ("file:/sys/class/infiniband/m/ports/" + HUGE.decode() + "/state", b"4: ACTIVE\n"),
        ("file:/sys/class/infiniband/m/ports/1/rate", HUGE + b" Gb/sec"),
        ("path:/tmp", b'{"exists": [], "folder": "x"}'),
    ],
)
def test_what_no_machine_has_is_unknown(key: str, body: bytes) -> None:
    bodies = {"file:/sys/class/infiniband/m/ports/1/state": b"4: ACTIVE\n", key: body}
    facts = learned(packed(bodies))
    assert facts is not None
    assert (facts.memory_bytes, facts.ephemeral_ports, facts.gpus) == (None, None, None)
    assert facts.limits in {None, Limits()}
    assert facts.rdma is not None
    assert [(port.port, port.rate_gbps) for port in facts.rdma] == [(1, None)]
    assert all(path.exists is None and path.folder is None for path in facts.paths)


@pytest.mark.parametrize("code", [[], "0", True, 1.5])
def test_an_exit_code_that_is_none_is_no_answer_of_ours(code: object) -> None:
    assert learned(packed({"interfaces": b"[]"}, code=code)) is None


@pytest.mark.parametrize("size", [2.0, True, "2", None, -1, 2**62])
def test_a_size_that_is_none_is_no_answer_of_ours(size: object) -> None:
    message = packed({"interfaces": b"[]"})
    message.head["answers"][0][2] = size
    assert learned(message) is None


@settings(max_examples=settings().max_examples // 2)
@given(st.data())
def test_a_recording_with_some_of_it_changed(data: st.DataObject) -> None:
    bodies = dict(recorded())
    keys = st.lists(st.sampled_from(sorted(bodies)), min_size=1, max_size=4, unique=True)
    for key in data.draw(keys):
        try:
            value = json.loads(bodies[key])
        except ValueError:
            value = None
        if isinstance(value, (dict, list)) and data.draw(st.booleans()):
            bodies[key] = as_json(data.draw(damaged_json(value)))
        else:
            bodies[key] = data.draw(damaged(bodies[key]))
    # Without netlink, addresses come from /proc; without one vendor's program, GPUs from the next.
    sources = ["interfaces", "command:nvidia-smi", "command:amd-smi"]
    for source in data.draw(st.lists(st.sampled_from(sources), unique=True)):
        del bodies[source]

    assert learned(packed(bodies)) is not None


@given(
    st.dictionaries(st.sampled_from(sorted(RECORDED)) | ANY_TEXT, st.binary(max_size=60)),
    st.sampled_from(STATES) | ANY_TEXT,
    ANY_JSON,
    ANY_JSON,
)
def test_noise_and_how_it_ended(
    bodies: dict[str, bytes], state: str, code: object, seconds: object
) -> None:
    learned(packed(bodies, state, code, seconds))


@given(st.data())
def test_a_head_with_some_of_it_changed(data: st.DataObject) -> None:
    message = packed({key: body[:40] for key, body in RECORDED.items()})
    learned(Message(data.draw(damaged_json(message.head)), message.body))
    learned(Message(message.head, data.draw(damaged(message.body))))
