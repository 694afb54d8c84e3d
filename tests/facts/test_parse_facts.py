"""From raw answers to facts: what could not be read is unknown, with why."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.facts.answers import Answer, Answers
from clusterctl.facts.gpu.accelerators import Gpu, Gpus
from clusterctl.facts.machine.machine_state import RunLock
from clusterctl.facts.machine.system import Clock, SshStatus
from clusterctl.facts.network.pairwise import PairwiseFacts, TokenSeen
from clusterctl.facts.nodefacts import NodeFacts, from_document, to_document
from clusterctl.facts.parse_facts import parse_facts, read_arguments
from clusterctl.facts.request import FactRequest, PathQuestion
from clusterctl.facts.storage.storage import PathFacts
from clusterctl.model.from_json import DocumentError
from clusterctl.wire import plain
from tests.facts.answering import answers


def test_a_node_of_which_nothing_could_be_read_is_all_unknown() -> None:
    facts = parse_facts(
        "a", answers(), FactRequest(places=(PathQuestion(path="/data"),)), clock=None
    )

    assert facts.interfaces is None
    assert facts.gpus is None
    assert facts.lock is None
    assert facts.rsync is None
    assert facts.boot_id is None
    assert facts.paths == (PathFacts(path="/data", problem="not asked"),)


def test_empty_lines_without_end_cost_no_time() -> None:
    asked, data = read_arguments(FactRequest()), b"\n" * 40_000
    keys = [f"file:{path}" for path in asked["files"]]
    keys += [f"command:{one['key']}" for one in asked["commands"]]
    endless = Answers(by_key=dict.fromkeys(keys, Answer(state="ok", data=data, exit_code=0)))
    began = time.process_time()
    parse_facts("a", endless, FactRequest(), clock=None)
    assert time.process_time() - began < 3  # two parsers took 8 s


def test_no_tool_is_no_accelerator_but_a_tool_that_fails_is_unknown() -> None:
    none = dict.fromkeys(("nvidia-smi", "amd-smi", "rocm-smi"))
    assert parse_facts("a", answers(commands=none), FactRequest(), clock=None).gpus == Gpus()

    failing = {**none, "nvidia-smi": ("NVIDIA-SMI has failed\n", 9)}
    facts = parse_facts("a", answers(commands=failing), FactRequest(), clock=None)
    assert facts.gpus is None
    assert facts.why_unknown("gpus") == "nvidia-smi: exit code 9: NVIDIA-SMI has failed"


def test_of_what_a_failed_tool_printed_the_start_is_kept() -> None:
    printed = "Failed to initialize NVML: Driver/library version mismatch\n" + "x\n" * 9999
    files = {"/proc/driver/nvidia/version": "Kernel Module  570.124.06  Release"}
    commands = {"nvidia-smi": (printed, 18)}

    why = parse_facts("a", answers(files, commands), FactRequest(), clock=None).why_unknown("gpus")

    assert why.startswith("nvidia-smi: exit code 18: Failed to initialize NVML: Driver/library")
    assert why.endswith("; loaded: 570.124.06")
    assert len(why) < 600
    other = answers(commands={"nvidia-smi": ("x" * 9999, 9)})
    assert len(parse_facts("a", other, FactRequest(), clock=None).why_unknown("gpus")) < 600


def test_what_is_nested_beyond_all_reason_is_unknown_too() -> None:
    text = "[" * 100_000
    programs = answers(commands=dict.fromkeys(("amd-smi", "torch"), text))
    deep = {**programs.by_key, "interfaces": Answer(state="ok", data=text.encode())}
    facts = parse_facts("a", Answers(by_key=deep), FactRequest(), clock=None)
    assert facts.interfaces is None
    assert "maximum recursion depth" in str(facts.why_unknown("gpus"))


def test_the_interpreter_and_its_torch() -> None:
    printed = {
        "python": "/v/bin/python 3.12.1 12.8 torch 2.13.0 peft 0.21".replace(" ", "\0"),
        "torch": json.dumps({"cuda_available": True, "device_count": 8, "nccl": "2.28.9"}),
    }
    python = parse_facts(
        "a", answers(commands=dict(printed)), FactRequest(python="/v/bin/python"), clock=None
    ).python
    assert python is not None

    assert (python.version, python.package("torch"), python.torch_build) == (
        "3.12.1",
        "2.13.0",
        "12.8",
    )
    assert python.torch is not None
    assert (python.torch.device_count, python.torch.nccl) == (8, "2.28.9")


@pytest.mark.parametrize(
    ("printed", "problem"),
    [
        (None, "there is no such program"),
        (
            ("Traceback\nModuleNotFoundError: encodings\n", 1),
            "exit code 1: ModuleNotFoundError: encodings",
        ),
        ("hello", "what it printed is not an answer"),
    ],
)
def test_an_interpreter_that_does_not_answer_says_why(
    printed: str | tuple[str, int] | None, problem: str
) -> None:
    python = parse_facts(
        "a", answers(commands={"python": printed}), FactRequest(), clock=None
    ).python

    assert python is not None
    assert python.problem == problem


def test_the_error_of_env_init_is_shown_with_the_advice_after_it() -> None:
    words = "env_init ended with exit code 1: x\n\nNotFound: trainx\nYou can list them\n"
    found = Answers(by_key={"command:python": Answer(state="ok", exit_code=1, words=words)})
    python = parse_facts("a", found, FactRequest(), clock=None).python
    assert python is not None
    assert python.problem.endswith(": x; it printed: NotFound: trainx You can list them")


def test_of_a_python_without_its_library_the_line_that_tells_is_shown() -> None:
    words = (
        "Fatal Python error: init_fs_encoding\nModuleNotFoundError: No module named 'encodings'\n\n"
        "Current thread 0x00007f306d662b80 (most recent call first):\n  <no Python frame>\n"
    )
    found = Answers(by_key={"command:python": Answer(state="ok", exit_code=1, words=words)})
    python = parse_facts("a", found, FactRequest(), clock=None).python
    assert python is not None
    assert python.problem == "ModuleNotFoundError: No module named 'encodings'"


def test_the_holder_of_the_lock() -> None:
    def lock(holder: object) -> RunLock | None:
        return parse_facts(
            "a", answers(others={"lock": {"holder": holder}}), FactRequest(), clock=None
        ).lock

    assert lock(None) == RunLock()
    assert lock({"run": "r", "user": "ada", "since": 0}) == RunLock(
        run="r", user="ada", since="1970-01-01 00:00 UTC"
    )
    for since in (1e300, float("nan"), -(10**30), "yesterday"):
        assert lock({"run": "r", "user": "ada", "since": since}) == RunLock(run="r", user="ada")
    assert lock({"pid": 7, "uid": 1}) == RunLock(run="unknown, of pid 7", user="1")


def test_paths_know_their_mount() -> None:
    mounts = "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 0:4 / /data ro - nfs4 fs:/export rw\n"
    told = {"exists": True, "real": "/data/x", "folder": True, "writable": False, "free": 5}
    given_answers = answers({"/proc/self/mountinfo": mounts}, others={"path:/link": told})
    (path,) = parse_facts(
        "a", given_answers, FactRequest(places=(PathQuestion(path="/link"),)), clock=None
    ).paths

    assert (path.mount, path.source, path.read_only) == ("/data", "fs:/export", True)


def test_gpu_tools_are_not_asked_where_cpus_are_planned() -> None:
    def keys(gpus: int | None) -> set[str]:
        return {command["key"] for command in read_arguments(FactRequest(gpus=gpus))["commands"]}

    assert keys(0) == {"python"}
    assert "torch" in keys(8)


class Recording(Mapping[str, Answer]):
    """No answers; keeps the keys of those that parsers want."""

    def __init__(self) -> None:
        self.wanted: set[str] = set()

    def __getitem__(self, key: str) -> Answer:
        self.wanted.add(key)
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def test_every_file_that_a_parser_wants_is_asked_for() -> None:
    recording = Recording()
    parse_facts("a", Answers(by_key=recording), FactRequest(), clock=None)
    wanted = {key.removeprefix("file:") for key in recording.wanted if key.startswith("file:")}

    asked = read_arguments(FactRequest())
    small = {
        f"{folder['path']}/{name}"
        for folder in (*asked["folders"], *asked["rdma"])
        for name in folder["files"]
    }
    assert "/proc/meminfo" in wanted
    assert wanted <= {*asked["files"], *small}


FULL = NodeFacts(
    node="a",
    reach=SshStatus(seconds=0.1, ping="ok"),
    clock=Clock(offset_s=-0.5, error_s=0.001),
    ephemeral_ports=(32768, 60999),
    gpus=Gpus(tool="nvidia-smi", devices=(Gpu(index=0, name="H100", mig=False),)),
    between=PairwiseFacts(tokens=(TokenSeen(path="/data", writer="b", seen=True, delay_s=0.1),)),
    environment=(("NCCL_DEBUG", "INFO"),),
)


def test_facts_survive_a_file() -> None:
    facts = {"a": FULL, "b": NodeFacts(node="b", reach=SshStatus(state="timeout"))}

    assert from_document(json.loads(json.dumps(to_document(facts)))) == facts


def test_unknown_keys_are_ignored_and_whole_numbers_are_floats_too() -> None:
    value = {"node": "a", "of_the_future": 1, "clock": {"offset_s": 1, "error_s": 0}}

    assert from_document({"nodes": [value]})["a"].clock == Clock(offset_s=1.0, error_s=0.0)


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ([], r": expected an object"),
        ({}, r"\.node: expected a value, found none"),
        ({"node": 5}, r".node: expected str, found 5"),
        ({"node": "a", "cpus": "8"}, r".cpus: expected int, found '8'"),
        ({"node": "a", "ephemeral_ports": [1]}, r".ephemeral_ports: expected 2 values, found 1"),
        ({"node": "a", "interfaces": [{"name": 1}]}, r".interfaces\[0\].name: expected str"),
        (
            {"node": "a", "interfaces": [{"name": "e", "addresses": ["here"]}]},
            r".interfaces\[0\]: 'here' does not appear to be",
        ),
        (
            {"node": "a", "routes": [{"destination": "10.0.0.1/24", "interface": "e"}]},
            r".routes\[0\]: 10.0.0.1/24 has host bits set",
        ),
    ],
)
def test_what_is_not_facts_is_refused_with_its_place(value: object, where: str) -> None:
    with pytest.raises(DocumentError, match=r"nodes\[0\]" + where):
        from_document({"nodes": [value]})


@given(st.dictionaries(st.sampled_from(sorted(plain(FULL))), st.none() | st.integers() | st.text()))
def test_no_document_breaks_the_reader(value: dict[str, object]) -> None:
    try:
        from_document({"nodes": [value]})
    except DocumentError:
        return
