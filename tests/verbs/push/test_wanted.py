"""Which paths a push is about, and which copy is its source."""

from __future__ import annotations

import posixpath
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.errors import ClusterError, UsageError
from clusterctl.facts.storage.storage import PathFacts
from clusterctl.inventory.cluster import Cluster, Job, Node, Ssh
from clusterctl.verbs.events import Event, Notice
from clusterctl.verbs.push.push import _destination
from clusterctl.verbs.push.result import HERE, WantedPath
from clusterctl.verbs.push.wanted import choose_source, split_path, wanted_paths


def cluster(*needs: str) -> Cluster:
    nodes = (
        Node(host="a", name="a", ssh=Ssh(), workdir="/srv/a"),
        Node(host="b", name="b", ssh=Ssh(), workdir="/srv/b"),
        Node(host="c", name="c", ssh=Ssh(), workdir="/srv/c"),
    )
    return Cluster(name="lab", nodes=nodes, job=Job(needs=needs))


def copy(digest: str, size: int = 7, *faults: str) -> PathFacts:
    return PathFacts(
        path="/m", exists=True, folder=True, size=size, entries=2, digest=digest, faults=faults
    )


MISSING = PathFacts(path="/m", exists=False)
(MODEL,) = wanted_paths(cluster(), ("/m",))


@pytest.mark.parametrize(
    ("text", "local", "remote"),
    [
        ("/m/a", "/m/a", "/m/a"),
        ("/m/../x/", "/x", "/x"),
        ("/m/a:/n/b", "/m/a", "/n/b"),
        ("/m/a:~/b", "/m/a", "~/b"),
        ("~/m", "~/m", "~/m"),
        ("/m/a:b", "/m/a:b", "/m/a:b"),
    ],
)
def test_a_path_is_the_same_everywhere_or_two(text: str, local: str, remote: str) -> None:
    assert split_path(text) == (local, remote)


@pytest.mark.parametrize("text", ["", "/", "/m:/", "/m:/..", "/m\0", "/..:/m"])
def test_no_path_is_an_error(text: str) -> None:
    with pytest.raises(UsageError, match="PATH"):
        split_path(text)


@given(st.text(st.sampled_from("ab:/~. \n\0ü"), max_size=12))
def test_any_text_is_a_path_below_the_root_or_an_error(text: str) -> None:
    try:
        local, remote = split_path(text)
    except UsageError:
        return
    for path in (local, remote):
        assert path.startswith(("/", "~"))
        assert "\0" not in path
        assert posixpath.normpath(path) != "/"


def test_without_a_path_it_is_what_the_job_needs() -> None:
    absolute, relative = wanted_paths(cluster("/m", "data/x"), ())
    assert (absolute.here, absolute.targets["b"]) == ("/m", "/m")
    assert (relative.here, relative.targets["b"]) == (None, "/srv/b/data/x")
    with pytest.raises(UsageError, match="no needs"):
        wanted_paths(cluster(), ())


def test_this_machine_goes_first() -> None:
    seen = {HERE: copy("1"), "a": copy("2"), "b": copy("2")}
    assert choose_source(MODEL, seen, named=None).name == HERE
    assert choose_source(MODEL, seen, named="b").name == "b"


def test_the_copy_of_most_nodes_is_the_source_if_it_is_whole() -> None:
    seen = {HERE: MISSING, "a": copy("1"), "b": copy("2"), "c": copy("2")}
    assert choose_source(MODEL, seen, named=None).name == "b"
    cut = {"a": copy("1", 7, "model-2.safetensors is cut"), "b": copy("2"), "c": MISSING}
    assert choose_source(MODEL, cut, named=None).name == "b"


@pytest.mark.parametrize(
    ("seen", "named", "words"),
    [
        ({HERE: MISSING, "a": MISSING}, None, "neither this machine nor a node"),
        ({"a": copy("1", 7, "x is cut")}, None, "a: x is cut"),
        ({"a": copy("1", 7), "b": copy("2", 8)}, None, "different copies: a has 7 bytes"),
        ({"a": copy("1"), "b": MISSING}, "b", "--from b"),
        ({"a": copy("1")}, "b", "--from b"),
    ],
)
def test_no_source_is_an_error(seen: dict[str, PathFacts], named: str | None, words: str) -> None:
    with pytest.raises(ClusterError, match=words):
        choose_source(MODEL, seen, named=named)


def destinations(path: WantedPath) -> list[Notice]:
    events: list[Event] = []
    _destination(cluster(), path, emit=events.append)
    return [event for event in events if isinstance(event, Notice)]


def test_a_path_goes_to_a_folder_of_the_nodes_and_that_is_said() -> None:
    (path,) = wanted_paths(cluster(), ("/here/w.bin",), "models")
    assert path.targets == {name: f"/srv/{name}/models/w.bin" for name in "abc"}
    assert set(path.sources.values()) == {"/here/w.bin"}
    told = [notice.text for notice in destinations(path)]
    assert told == [f"/here/w.bin goes to /srv/{name}/models/w.bin on {name}" for name in "abc"]
    for words, to in (((), "/x"), (("/a:/b",), "/x"), (("/a",), "")):
        with pytest.raises(UsageError, match="--to"):
            wanted_paths(cluster(), words, to)


def test_where_a_relative_path_goes_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (path,) = wanted_paths(cluster(), ("w.bin",))
    (notice,) = destinations(path)
    place = f"{tmp_path}/w.bin on a,b,c, the same path as here (another: --to DIR)"
    assert notice.text == f"w.bin goes to {place}"
    for typed in ("/m/w.bin", "w.bin:/m/w.bin"):
        assert not destinations(*wanted_paths(cluster(), (typed,)))


def test_a_relative_path_of_a_node_is_in_its_workdir() -> None:
    (path,) = wanted_paths(cluster(), ("out/step_20",), source="a")
    assert path.sources == path.targets
    assert path.targets["b"] == "/srv/b/out/step_20"
    (typed,) = wanted_paths(cluster(), ("/m",), source="a")
    assert typed.targets["b"] == "/m"


def test_two_paths_with_one_name_are_not_sent_to_one_place() -> None:
    with pytest.raises(UsageError, match=r"--to: /a/w\.bin and /b/w\.bin/ would both be w\.bin"):
        wanted_paths(cluster(), ("/a/w.bin", "/b/w.bin/"), "models")
