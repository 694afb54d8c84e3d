"""Loading an inventory: what it becomes, and how what is wrong is told.

`bad/NAME.yaml` is a file with problems, `bad/NAME.txt` what must be said about it, in full.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.errors import InventoryError
from clusterctl.inventory import load
from clusterctl.inventory.cluster import Cluster, Hang, Job, Node, Ssh, Stop
from clusterctl.inventory.dump import dump
from clusterctl.inventory.load import SIZE_LIMIT
from clusterctl.inventory.problems import PROBLEM_LIMIT
from clusterctl.wire import plain
from tests.damage import damaged

ROOT = Path(__file__).parent.parent.parent
BAD = sorted((Path(__file__).parent / "bad").glob("*.yaml"))

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Return a function that writes ./hosts.yaml."""
    monkeypatch.chdir(tmp_path)

    def write(text: str) -> Path:
        path = Path("hosts.yaml")
        path.write_text(text)
        return path

    return write


def problems_of(path: Path) -> list[str]:
    with pytest.raises(InventoryError) as caught:
        load(path)
    assert caught.value.exit_code == 2
    return list(caught.value.problems)


def assert_told(path: Path) -> None:
    """Whatever is in the file: a cluster, or problems that a terminal can show."""
    problems: tuple[str, ...] = ()
    try:
        load(path)
    except InventoryError as error:
        problems = error.problems
    for problem in problems:
        assert problem.startswith(f"{path}:")
        assert problem.isprintable()


def test_the_example_is_read_whole() -> None:
    file = ROOT / "hosts.example.yaml"
    workdir = "/workspace/distTest"
    python = f"{workdir}/.venv/bin/python"
    key = str(Path("~/.ssh/id_ed25519").expanduser())
    ssh = Ssh(port=22, identity=key, jump="bastion")
    first = Node(
        host="10.11.7.50",
        name="head",
        ssh=replace(ssh, user="ubuntu"),
        gpus=8,
        python=python,
        workdir=workdir,
        source=f"{file}:38",
    )
    others = tuple(
        Node(
            host=f"gpu{number}",
            name=f"gpu{number}",
            ssh=replace(ssh, user="root"),
            gpus=4,
            python=python,
            workdir=workdir,
            address=f"10.11.7.1{number}",
            source=f"{file}:40",
        )
        for number in ("02", "03", "04", "07")
    )
    assert load(file) == Cluster(
        name="lab",
        nodes=(first, *others),
        shared=("/workspace",),
        subnet="10.11.7.0/24",
        master_port=29600,
        job=Job(
            launcher="torchrun",
            launcher_args=("--max-restarts=1",),
            command=(
                "-m",
                "train",
                "--config",
                "config.yaml",
                "--resume-from-checkpoint",
                "latest",
            ),
            env=(("NCCL_DEBUG", "INFO"),),
            env_from=("HF_TOKEN",),
            env_init="module load cuda",
            needs=("/workspace/models/GLM-4.5-Air", "/workspace/dataset/all_data.jsonl"),
            check=("-m", "train", "--check", "--config", "config.yaml"),
            checkpoints="glm_fsdp_output",
            resume_args=("--resume-from-checkpoint", "{checkpoint}"),
            stop=Stop(signal="TERM", file=None, grace=60.0),
        ),
        file=str(file),
    )


def test_two_lines_are_an_inventory(write: Write) -> None:
    cluster = load(write("cluster: lab\nnodes: [gpu01]\n"))
    node = Node(host="gpu01", name="gpu01", ssh=Ssh(), source="hosts.yaml:2")
    assert cluster == Cluster(name="lab", nodes=(node,), file="hosts.yaml")


def test_a_section_whose_keys_were_removed_is_empty(write: Write) -> None:
    cluster = load(write("cluster: lab\nnodes: [gpu01]\njob:\nnetwork:\ndefaults:\nssh:\n"))
    assert cluster == load(write("cluster: lab\nnodes: [gpu01]\n"))
    lists = "".join(
        f"  {key}:\n" for key in ("env", "env_from", "needs", "command", "stop", "check")
    )
    assert cluster == load(write(f"cluster: lab\nnodes: [gpu01]\njob:\n{lists}"))


def test_a_cluster_prints_as_json() -> None:
    text = json.dumps(plain(load(ROOT / "hosts.example.yaml")))
    assert [node["name"] for node in json.loads(text)["nodes"]][:2] == ["head", "gpu02"]


@pytest.mark.parametrize("case", BAD, ids=lambda path: path.stem)
def test_every_problem_is_told_in_one_go(write: Write, case: Path) -> None:
    path = write("")
    path.write_bytes(case.read_bytes())
    assert problems_of(path) == case.with_suffix(".txt").read_text().splitlines()


def test_the_reference_shows_real_messages() -> None:
    told = (Path(__file__).parent / "bad" / "reference.txt").read_text()
    assert f"```text\n{told}```" in (ROOT / "docs" / "reference" / "inventory.md").read_text()


def test_a_missing_file_is_an_error_that_says_how_to_write_one(tmp_path: Path) -> None:
    with pytest.raises(InventoryError) as caught:
        load(tmp_path / "hosts.yaml")
    assert str(caught.value) == f"{tmp_path}/hosts.yaml: expected an inventory, found no such file"
    assert caught.value.hint == f"write one: clusterctl init gpu1 gpu2 -i {tmp_path}/hosts.yaml"


def test_a_file_that_may_be_meant_is_named(tmp_path: Path) -> None:
    (tmp_path / "hostfile").touch()
    with pytest.raises(InventoryError) as caught:
        load(tmp_path / "hosts.yaml")
    assert caught.value.hint == f"-i {tmp_path}/hostfile"


def test_a_folder_is_no_inventory(tmp_path: Path) -> None:
    assert problems_of(tmp_path) == [f"{tmp_path}: expected a file, found a folder"]


def test_a_name_that_no_file_can_have_is_an_error() -> None:
    assert problems_of(Path("a\0b")) == [
        "a\0b: expected a readable file, found: embedded null byte"
    ]


def test_a_file_without_end_is_read_up_to_the_limit() -> None:
    assert problems_of(Path("/dev/zero")) == [
        f"/dev/zero: expected an inventory of at most {SIZE_LIMIT} bytes, found more"
    ]


def test_many_ranges_are_refused_before_they_are_spread(write: Write) -> None:
    entries = "".join(f"  - n{at}x[1-4000]\n" for at in range(500))
    assert problems_of(write(f"cluster: lab\nnodes:\n{entries}")) == [
        "hosts.yaml:2: nodes: expected at most 4096 hosts, found more"
    ]


def test_a_file_of_problems_is_told_up_to_a_hundred(write: Write) -> None:
    told = problems_of(write(f"cluster: lab\nnodes: [{'[], ' * 2000}]\n"))
    assert len(told) == PROBLEM_LIMIT + 1
    assert told[-1] == f"hosts.yaml: and {2000 - PROBLEM_LIMIT} more"


@pytest.mark.parametrize(
    "text", ["\ufeffcluster: lab\nnodes: [a]\n", "cluster: lab\r\nnodes: [a]\r\n"]
)
def test_what_windows_editors_add_does_no_harm(write: Write, text: str) -> None:
    path = write("")
    path.write_bytes(text.encode())
    assert [node.host for node in load(path).nodes] == ["a"]


def test_scalars_reach_the_job_as_they_were_typed(write: Write) -> None:
    job = load(
        write(
            "cluster: lab\nnodes: [a]\njob:\n"
            "  command: [-m, train, --lr, 1e-4, --flag, no, 010, 1:30, '', 'a b', 2026-01-01]\n"
            "  env: {A: yes, B: 08, C: '', D: \"x\\ny\", E: '$HOME', F: 1_000,"
            ' G: "\\ud83d\\ude00"}\n'
        )
    ).job
    words = ("-m", "train", "--lr", "1e-4", "--flag", "no", "010", "1:30", "", "a b", "2026-01-01")
    assert job.command == words
    assert dict(job.env) == {
        "A": "yes", "B": "08", "C": "", "D": "x\ny", "E": "$HOME", "F": "1_000", "G": "😀",
    }  # fmt: skip


def test_a_node_overrides_what_holds_for_all(write: Write) -> None:
    nodes = load(
        write(
            "cluster: lab\n"
            "ssh: {user: ubuntu, port: 2222, jump: bastion, via: openssh}\n"
            "defaults: {gpus: 0, procs: 2, python: python3.12, state: /scratch/}\n"
            "workdir: //code/.//\n"
            "nodes:\n"
            "  - a\n"
            "  - {host: b, user: root, port: 22, jump: none, via: paramiko, gpus: auto,"
            " python: /venv/bin/python, workdir: /b, state: /s, identity: keys/b}\n"
            "  - {host: c, gpus: 4}\n"
        )
    ).nodes
    common = Ssh(user="ubuntu", port=2222, jump="bastion", via="openssh")
    assert nodes == (
        Node(
            host="a", name="a", ssh=common, gpus=0, procs=2, python="python3.12",
            workdir="/code", state="/scratch", source="hosts.yaml:6",
        ),
        Node(
            host="b", name="b",
            ssh=Ssh(user="root", port=22, identity=str(Path("keys/b").absolute()), jump="none"),
            gpus=None, procs=2, python="/venv/bin/python", workdir="/b", state="/s",
            source="hosts.yaml:7",
        ),
        Node(
            host="c", name="c", ssh=common, gpus=4, python="python3.12",
            workdir="/code", state="/scratch", source="hosts.yaml:8",
        ),
    )  # fmt: skip


def test_a_range_spreads_over_hosts_and_addresses(write: Write) -> None:
    nodes = load(
        write("cluster: lab\nnodes:\n  - {host: 'gpu[09-11]', address: '10.0.1.[1-3]'}\n")
    ).nodes
    assert [(node.host, node.address) for node in nodes] == [
        ("gpu09", "10.0.1.1"),
        ("gpu10", "10.0.1.2"),
        ("gpu11", "10.0.1.3"),
    ]


def test_the_master_comes_first_and_the_others_keep_their_order(write: Write) -> None:
    cluster = load(write("cluster: lab\nnodes: [a, b, {host: c, master: true}, d]\n"))
    assert [node.host for node in cluster.nodes] == ["c", "a", "b", "d"]


def test_hosts_written_alike_get_names_apart(write: Write) -> None:
    cluster = load(
        write(
            "cluster: lab\nsame_machine: allow\nnodes:\n"
            "  - {host: 127.0.0.1, port: 2201}\n"
            "  - {host: 127.0.0.1, port: 2202}\n"
            "  - 'fe80::1%eth0'\n"
        )
    )
    names = [node.name for node in cluster.nodes]
    assert names == ["127.0.0.1_2201", "127.0.0.1_2202", "fe80__1_eth0"]


def test_names_stay_apart_whatever_the_hosts_are_called(write: Write) -> None:
    text = "cluster: lab\nsame_machine: allow\nnodes: [a, {host: a, port: 23}, a_22, a_22_]\n"
    names = [node.name for node in load(write(text)).nodes]
    assert names == ["a_22", "a_23", "a_22_", "a_22__"]


def test_a_node_may_be_called_other_than_its_host(write: Write) -> None:
    text = "{host: '10.0.0.[1-2]', name: 'gpu[1-2]'}, {host: 10.0.0.9, name: login}, 10.0.0.10"
    cluster = load(write(f"cluster: lab\nnodes: [{text}]\n"))
    assert [(node.host, node.name) for node in cluster.nodes] == [
        ("10.0.0.1", "gpu1"), ("10.0.0.2", "gpu2"), ("10.0.0.9", "login"), ("10.0.0.10",) * 2,
    ]  # fmt: skip
    again = load(write(dump(cluster)))
    assert [node.name for node in again.nodes] == [node.name for node in cluster.nodes]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "{host: a, name: B}, b",
            'nodes[0].name: expected a name that no other node has, found "B"',
        ),
        ("{host: a, name: 10.0.0.1}", "nodes[0].name: expected a name, not an address"),
        (
            "{host: 'a[1-2]', name: b}",
            "nodes[0].name: expected 2 names, one for each host, found 1",
        ),
        ("{host: a, name: ../b}", "nodes[0].name: expected"),
    ],
)
def test_a_name_that_cannot_be_is_refused(write: Write, text: str, told: str) -> None:
    with pytest.raises(InventoryError) as caught:
        load(write(f"cluster: lab\nnodes: [{text}]\n"))
    assert told in str(caught.value)


@pytest.mark.parametrize("host", ["fd00::5", "'[fd00::5]'", "'fd00::[5]'"])
def test_an_ipv6_address_is_a_host(write: Write, host: str) -> None:
    assert load(write(f"cluster: lab\nnodes:\n  - {host}\n")).nodes[0].host == "fd00::5"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HF_TOKEN", "abc"),
        ("WANDB_API_KEY", "0123"),
        ("MY_PASSWORD", "x"),
        ("AWS_SECRET_ACCESS_KEY", "x"),
        ("FOO", "hf_abcdefghijklmnopqrst"),
    ],
)
def test_a_secret_in_env_is_warned_of_and_not_shown(
    write: Write, caplog: pytest.LogCaptureFixture, name: str, value: str
) -> None:
    load(write(f"cluster: lab\nnodes: [a]\njob:\n  env: {{{name}: {value}}}\n"))
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    message = caplog.records[0].getMessage()
    assert message == (
        f"hosts.yaml:4: job.env.{name}: looks like a secret, and env is recorded in clear"
        f" (hint: env_from: [{name}])"
    )


def test_a_default_that_no_node_takes_is_warned_of(
    write: Write, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = "nodes:\n- {host: a, gpus: 0, procs: 1}\n- {host: b, gpus: 0}\n"
    load(write(f"cluster: lab\ndefaults: {{gpus: 8, procs: 2}}\n{nodes}"))
    assert [record.getMessage() for record in caplog.records] == [
        "hosts.yaml:2: defaults.gpus: no node takes it, because every entry of `nodes` has its own"
    ]


@pytest.mark.parametrize("name", ["TOKENIZERS_PARALLELISM", "KEYBOARD", "MONKEY", "NCCL_DEBUG"])
def test_other_variables_are_not_taken_for_secrets(
    write: Write, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    load(write(f"cluster: lab\nnodes: [a]\njob: {{env: {{{name}: x}}}}\n"))
    assert not caplog.records


@given(content=st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_bytes_give_a_cluster_or_an_inventory_error(write: Write, content: bytes) -> None:
    path = write("")
    path.write_bytes(content)
    assert_told(path)


_KEYS = (
    "cluster ssh defaults shared workdir same_machine network nodes job host address port user"
    " gpus procs master subnet command env env_from stop signal file grace x"
)
_VALUES = "lab gpu[1-3] gpu[3-1] 8 -1 auto ~ true TERM /a 10.0.0.0/24 10.0.0.1 localhost '' {}"
_SCALARS = st.sampled_from(_VALUES.split()) | st.text(
    st.characters(exclude_categories=("Cs", "Cc")), max_size=5
).map(repr)
_TREES = st.recursive(
    _SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]")
        | st.lists(st.tuples(st.sampled_from(_KEYS.split()), inner), max_size=4).map(
            lambda pairs: "{" + ", ".join(f"{key}: {value}" for key, value in pairs) + "}"
        )
    ),
    max_leaves=12,
)


@given(st.lists(st.tuples(st.sampled_from(_KEYS.split()), _TREES), max_size=6))
def test_any_mapping_gives_a_cluster_or_an_inventory_error(
    write: Write, pairs: list[tuple[str, str]]
) -> None:
    path = write("".join(f"{key}: {value}\n" for key, value in pairs))
    assert_told(path)


_EXAMPLE = (ROOT / "hosts.example.yaml").read_bytes()
_HOSTFILE = b"# MPI\nroot@gpu1 slots=8 port=2222\n10.0.0.2:4\ngpu[03-04] user=me slots=2\n"


@given(damaged(_EXAMPLE) | st.lists(st.sampled_from(_EXAMPLE.split(b"\n"))).map(b"\n".join))
def test_the_example_with_some_of_it_changed(write: Write, content: bytes) -> None:
    path = write("")
    path.write_bytes(content)
    assert_told(path)


@given(damaged(_HOSTFILE) | st.binary(max_size=60))
def test_a_hostfile_with_some_of_it_changed(write: Write, content: bytes) -> None:
    path = write("").with_name("hostfile")
    path.write_bytes(content)
    assert_told(path)


@pytest.mark.parametrize(
    ("text", "seconds"), [("300", 300), ("10s", 10), ("5m", 300), ("1.5h", 5400), ("0", 0)]
)
def test_a_time_is_seconds_or_has_a_unit(write: Write, text: str, seconds: float) -> None:
    path = write(f"cluster: lab\nnodes: [a]\njob: {{hang: {{after: {text}}}}}\n")
    assert load(path).job.hang == Hang(after=seconds)


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        ("after: 25h", "expected a time such as 300, 10s, 5m or 2h, of at most a day"),
        ("after: soon", "expected a time such as"),
        ("action: stp", "expected stop (one of report, stop, restart)"),
    ],
)
def test_what_becomes_of_a_hang_is_refused_in_words(
    write: Write, written: str, wanted: str
) -> None:
    (problem,) = problems_of(write(f"cluster: lab\nnodes: [a]\njob: {{hang: {{{written}}}}}\n"))
    assert wanted in problem
