"""A cluster that is written as YAML reads back as the same cluster."""

from __future__ import annotations

import string
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterctl.inventory import kinds, load
from clusterctl.inventory.cluster import (
    Cluster,
    Ends,
    Hang,
    Job,
    LauncherName,
    Node,
    Notify,
    Restart,
    Ssh,
    Stop,
    Via,
)
from clusterctl.inventory.dump import dump
from clusterctl.inventory.kinds import SIGNALS
from clusterctl.inventory.problems import Problems
from clusterctl.inventory.settings import Setting, keys_of

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
WORD = st.text(string.ascii_letters + string.digits + "._-", min_size=1, max_size=8)
PATH = st.builds("/x{}".format, WORD)
VARIABLE = st.from_regex(r"[A-Z_][A-Z0-9_]{0,6}", fullmatch=True)
HOST = st.builds(
    "{}{:0{}}{}".format,
    st.sampled_from(["gpu", "n-", "host.lab"]),
    st.integers(0, 12),
    st.integers(1, 3),
    st.sampled_from(["", "x"]),
) | st.sampled_from(["fd00::5", "fe80::1%eth0", "203.0.113.9"])


def maybe(strategy: st.SearchStrategy[str]) -> st.SearchStrategy[str | None]:
    return st.none() | strategy


SSH = st.builds(
    Ssh,
    user=maybe(st.sampled_from(["root", "no", "1000"])),
    port=st.none() | st.sampled_from([22, 2222]),
    identity=maybe(PATH),
    jump=maybe(st.sampled_from(["bastion", "root@b:22,c", "none"])),
    via=st.sampled_from(list[Via](["paramiko", "openssh", "srun"])),
)
OPTIONS = (("nodes", "2"), ("time", "1:30:00"), ("exclusive", ""), ("gpus-per-node", "8"))


NODE = st.builds(
    Node,
    host=st.just(""),
    name=st.just(""),
    ssh=SSH,
    gpus=st.none() | st.integers(0, 2),
    python=maybe(st.sampled_from(["python3", "/venv/bin/python"])),
    workdir=maybe(st.sampled_from(["/a", "/b c"])),
    state=maybe(PATH),
)


@st.composite
def nodes(draw: st.DrawFn) -> tuple[Node, ...]:
    """Draw hosts of which neighbors often have the same settings."""
    hosts = draw(st.lists(HOST, min_size=1, max_size=6, unique=True))
    few = draw(st.lists(NODE, min_size=1, max_size=2))
    made = []
    for at, host in enumerate(hosts):
        chosen = draw(st.sampled_from(few))
        made.append(
            replace(
                chosen,
                host=host,
                name=host.replace(":", "_").replace("%", "_"),
                procs=None if chosen.gpus else draw(st.none() | st.just(2)),
                address=draw(st.sampled_from([None, f"10.0.0.{at + 1}", f"fd00::{at + 1}"])),
            )
        )
    return tuple(made)


STOP = st.builds(
    Stop,
    signal=st.sampled_from(SIGNALS),
    grace=st.integers(0, 86400).map(float),
    failure_grace=st.integers(0, 86400).map(float),
    leftovers=st.integers(0, 86400).map(float),
) | st.builds(Stop, signal=st.none(), file=st.builds("STOP{}".format, WORD))
HANG = st.builds(
    Hang, after=st.integers(0, 86400).map(float), action=st.sampled_from(["report", "stop"])
)
ENDS = st.builds(
    Ends,
    exit_codes=st.lists(st.integers(1, 255), max_size=3).map(tuple),
    patterns=st.lists(st.sampled_from(["CUDA error", "no|yes", "#1: 'x'"]), max_size=2).map(tuple),
)
RESTART = st.builds(Restart, max=st.integers(0, 1000), on=ENDS, never=ENDS)
WORDS = st.lists(TEXT, max_size=3).map(tuple)
RECEIVER = st.builds(
    Notify,
    on=st.sets(st.sampled_from(["started", "failed"]), min_size=1).map(tuple),
    every=st.none() | st.integers(10, 86400).map(float),
    webhook_from=VARIABLE,
) | st.builds(
    Notify,
    every=st.integers(10, 86400).map(float),
    command=st.lists(TEXT, min_size=1, max_size=3).map(tuple),
)


VALUES: dict[object, st.SearchStrategy[Any]] = {
    kinds.WORDS: WORDS,
    kinds.SBATCH_OPTIONS: st.sets(st.sampled_from(OPTIONS)).map(tuple),
    kinds.RAY_ADDRESS: maybe(st.sampled_from(["auto", "10.0.0.1:6379", "ray://[::1]:10001"])),
    kinds.SHELL_LINE: maybe(TEXT.filter(lambda text: bool(text.strip()))),
    kinds.PROGRESS: st.sampled_from([(), (r"it (?P<step>\d+)", "of '(?P<total>9)'")]),
    kinds.PATHS: st.lists(PATH, max_size=2).map(tuple),
    kinds.PACKAGES: st.lists(st.sampled_from(["axolotl", "my_pkg==1.2"]), max_size=2).map(tuple),
    kinds.NODE_PATH: maybe(PATH),
}
"""Of the kinds of the job's settings; those of a number have bounds."""


def values(key: Setting) -> st.SearchStrategy[Any]:
    if key.bounds is None:
        return VALUES[key.kind]
    least, most = map(int, key.bounds)
    number = st.integers(least, most)
    return st.none() | number if key.default is None else number


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """Draw a value for each key of `job:`."""
    names = draw(st.lists(VARIABLE, max_size=4, unique=True))
    own: dict[str, Any] = {
        # With slurm, the nodes are those of an allocation: see test_allocation.
        "launcher": draw(st.sampled_from(sorted({*get_args(LauncherName)} - {"slurm"}))),
        "env": tuple((name, draw(TEXT)) for name in names[:2]),
        "env_from": tuple(names[2:]),
        "resume_args": ("--from", "{checkpoint}"),
        "stop": draw(STOP),
        "hang": draw(HANG),
        "restart": draw(RESTART),
        "notify": draw(st.lists(RECEIVER, max_size=2).map(tuple)),
    }
    drawn = {name: draw(values(key)) for name, key in keys_of(Job).items() if name not in own}
    return Job(**own, **drawn)


CLUSTERS = st.builds(
    Cluster,
    name=st.from_regex(r"[a-z0-9][a-z0-9-]{0,23}", fullmatch=True),
    nodes=nodes(),
    shared=st.lists(PATH, max_size=2).map(tuple),
    subnet=st.sampled_from([None, "10.0.0.0/8", "::/0"]),
    master_port=st.none() | st.integers(1, 65535),
    same_machine=st.booleans(),
    job=jobs(),
    file=st.just("hosts.yaml"),
)


def without_sources(cluster: Cluster) -> Cluster:
    return cluster.with_nodes(tuple(replace(node, source="") for node in cluster.nodes))


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Cluster]:
    monkeypatch.chdir(tmp_path)

    def read(text: str) -> Cluster:
        path = Path("hosts.yaml")
        path.write_text(text, encoding="utf-8", newline="")
        return without_sources(load(path))

    return read


@settings(max_examples=30)
@given(CLUSTERS.filter(lambda c: c.subnet is None or all(n.address is None for n in c.nodes)))
def test_what_is_written_reads_back(read: Callable[[str], Cluster], cluster: Cluster) -> None:
    assert read(dump(cluster)) == cluster


def test_the_example_reads_back(read: Callable[[str], Cluster]) -> None:
    example = load(Path(__file__).parent.parent.parent / "hosts.example.yaml")
    again = read(dump(example))
    assert replace(again, file=example.file) == without_sources(example)


def test_this_machine_reads_back(read: Callable[[str], Cluster]) -> None:
    cluster = read("cluster: lab\nnodes: [localhost, gpu01, gpu02, gpu03]\n")
    text = dump(cluster)
    assert text == "cluster: lab\nnodes:\n  - localhost\n  - gpu[01-03]\n"
    assert read(text) == cluster


def test_neighbors_with_the_same_settings_share_an_entry(read: Callable[[str], Cluster]) -> None:
    text = (
        "cluster: lab\n"
        "workdir: /code\n"
        "nodes:\n"
        "  - {host: 'gpu[01-03]', address: '10.0.0.[1-3]', gpus: 8}\n"
        "  - {host: gpu04, gpus: 8}\n"
        "  - other\n"
    )
    assert dump(read(text)) == text


def test_a_range_whose_addresses_make_none_is_written_out(read: Callable[[str], Cluster]) -> None:
    text = (
        "cluster: lab\n"
        "nodes:\n"
        "  - {host: gpu01, address: 10.0.0.1}\n"
        "  - {host: gpu02, address: 10.9.0.2}\n"
    )
    assert dump(read(text)) == text


def test_problems_without_a_document_stand_in_the_first_line() -> None:
    assert Problems("hosts.yaml").line(("nodes", 3)) == 1
