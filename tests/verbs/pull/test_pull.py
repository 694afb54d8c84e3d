"""What comes to this machine from nodes, and what of it is never written."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.errors import ClusterError, UsageError
from clusterctl.inventory.cluster import Cluster, Node, Ssh
from clusterctl.node.push.manifest import BLOCK
from clusterctl.sync.source import read_source
from clusterctl.transport.interface import Reply
from clusterctl.transport.pool import Pool
from clusterctl.verbs.events import CopyProgress, Event, Notice
from clusterctl.verbs.pull.pull import pull
from clusterctl.verbs.pull.result import MARK, PullOptions, PullResult, local_names
from clusterctl.verbs.push.result import this_machine
from clusterctl.verbs.push.transfer import Transfer
from clusterctl.wire import Message


def node(name: str, workdir: Path) -> Node:
    """Return a node that is this machine itself: the same agent, without sshd."""
    return Node(host="localhost", name=name, ssh=Ssh(), workdir=str(workdir), local=True)


def pulled(
    cluster: Cluster,
    to: Path,
    *paths: str,
    overwrite: bool = False,
    events: list[Event] | None = None,
) -> PullResult:
    options = PullOptions(paths=paths, to=to, overwrite=overwrite)
    shown = [] if events is None else events
    with Pool(cluster) as pool, Pool(this_machine(cluster)) as here:
        return pull(cluster, pool, here, options, emit=shown.append)


def states(result: PullResult, path: int = 0) -> list[str]:
    return [one.state for one in result.paths[path].nodes]


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    nodes = []
    for name in ("a", "b", "c"):
        (tmp_path / name / "out" / "sub").mkdir(parents=True)
        nodes.append(node(name, tmp_path / name))
    (tmp_path / "a" / "out" / "metrics.jsonl").write_text("{}\n")
    (tmp_path / "a" / "out" / "sub" / "model.bin").write_bytes(os.urandom(9 << 20))
    (tmp_path / "a" / "out" / "latest").symlink_to("sub")
    return Cluster(name="t", nodes=tuple(nodes))


def test_one_node_has_it(cluster: Cluster, tmp_path: Path) -> None:
    to, events = tmp_path / "here", list[Event]()
    shutil.rmtree(tmp_path / "b" / "out")
    shutil.rmtree(tmp_path / "c" / "out")
    (tmp_path / "a" / "out" / "sub").chmod(0o777)
    (tmp_path / "a" / "out" / "sub" / "model.bin").chmod(0o6777)
    result = pulled(cluster, to, "out", events=events)
    assert states(result) == ["pulled", "absent", "absent"]
    assert result.exit_code == 0
    source = tmp_path / "a" / "out"
    for name in ("metrics.jsonl", "sub/model.bin"):
        assert (to / "out" / name).read_bytes() == (source / name).read_bytes()
    assert (to / "out" / "latest").readlink() == Path("sub")
    for name in ("sub", "sub/model.bin"):  # no one else may write to them here
        assert (to / "out" / name).stat().st_mode & 0o7777 == 0o755
    notices = [event for event in events if isinstance(event, Notice)]
    assert [(n.node, n.text) for n in notices] == [("a", f"out: 9.4 MB in 2 files to {to}/out")]
    sending = [e for e in events if isinstance(e, CopyProgress) and e.phase == "sending"]
    assert sending[-1].total == 9 << 20 | 3
    again = pulled(cluster, to, "out")
    assert states(again) == ["unchanged", "absent", "absent"]
    assert again.paths[0].nodes[0].received == 0


def test_what_is_alike_is_brought_once_and_what_differs_under_the_nodes_names(
    cluster: Cluster, tmp_path: Path
) -> None:
    """A and b have one content, c another; d sees the very files of c."""
    to = tmp_path / "here"
    shutil.rmtree(tmp_path / "b" / "out")
    shutil.copytree(tmp_path / "a" / "out", tmp_path / "b" / "out", symlinks=True)
    os.utime(tmp_path / "b" / "out" / "metrics.jsonl", (1, 1))
    (tmp_path / "c" / "out" / "metrics.jsonl").write_text("[]\n")
    cluster = Cluster(name="t", nodes=(*cluster.nodes, node("d", tmp_path / "c")))
    result = pulled(cluster, to, "out", str(tmp_path / "a" / "out" / "metrics.jsonl"))
    assert states(result) == ["pulled", "same", "pulled", "same"]
    assert (to / "a" / "out" / "metrics.jsonl").read_text() == "{}\n"
    assert (to / "c" / "out" / "metrics.jsonl").read_text() == "[]\n"
    assert sorted(path.name for path in to.iterdir()) == [
        ".clusterctl",
        ".gitignore",
        "a",
        "c",
        "out",
    ]
    # An absolute path in the workdir of one lies as there; all nodes see this one.
    assert states(result, 1) == ["pulled", "same", "same", "same"]
    assert (to / "out" / "metrics.jsonl").read_text() == "{}\n"


def test_files_of_the_persons_are_not_replaced_unasked(cluster: Cluster, tmp_path: Path) -> None:
    to = tmp_path / "here"
    one = Cluster(name="t", nodes=cluster.nodes[:1])
    (to / "out" / "sub").mkdir(parents=True)
    (to / "out" / "metrics.jsonl").write_text("mine\n")
    (to / "out" / "latest").write_text("mine\n")
    (to / "out" / "other").write_text("mine\n")
    result = pulled(one, to, "out")
    (failed,) = result.paths[0].nodes
    assert (failed.state, result.exit_code) == ("failed", 1)
    assert failed.words == f"{to}/out has other contents: latest, metrics.jsonl"
    assert failed.hint.splitlines() == ["put it elsewhere: --to DIR", "replace it: --overwrite"]
    assert (to / "out" / "metrics.jsonl").read_text() == "mine\n"
    assert not (to / "out" / "sub" / "model.bin").exists()
    assert states(pulled(one, to, "out", overwrite=True)) == ["pulled"]
    assert (to / "out" / "metrics.jsonl").read_text() == "{}\n"
    assert (to / "out" / "latest").is_symlink()
    assert (to / "out" / "other").read_text() == "mine\n"
    assert not (to / MARK).exists()  # the folder was there before


def test_no_link_in_the_project_leads_a_file_out_of_it(cluster: Cluster, tmp_path: Path) -> None:
    (home := tmp_path / "home").mkdir()
    (linked := tmp_path / "pulled").symlink_to(home)
    (to := tmp_path / "here").mkdir()
    (to / "out").symlink_to(home)
    with pytest.raises(ClusterError, match=f"found a link to {home}"):
        pulled(cluster, linked, "out")
    (one,) = pulled(Cluster(name="t", nodes=cluster.nodes[:1]), to, "out").paths[0].nodes
    assert (one.state, one.words) == (
        "failed", f"{to}/out: expected a folder here, found a link to {home}"
    )  # fmt: skip
    assert list(home.iterdir()) == []


def test_more_than_fits_is_refused_before_it_is_hashed(cluster: Cluster, tmp_path: Path) -> None:
    os.truncate(tmp_path / "a" / "out" / "metrics.jsonl", 1 << 43)
    (one,) = (
        pulled(Cluster(name="t", nodes=cluster.nodes[:1]), tmp_path / "here", "out").paths[0].nodes
    )
    assert one.state == "failed"
    assert "8.8 TB to write, " in one.words


def test_links_out_of_the_tree_are_named_and_not_followed(cluster: Cluster, tmp_path: Path) -> None:
    to, out = tmp_path / "here", tmp_path / "a" / "out"
    (tmp_path / "elsewhere").mkdir()
    (out / "far").symlink_to(tmp_path / "elsewhere")
    (out / "gone").symlink_to("nowhere/../../x")
    os.mkfifo(out / "pipe")
    result = pulled(Cluster(name="t", nodes=cluster.nodes[:1]), to, "out")
    (one,) = result.paths[0].nodes
    assert (one.state, one.left_out) == ("pulled", ("far", "gone", "pipe"))
    assert sorted(path.name for path in (to / "out").iterdir()) == [
        "latest",
        "metrics.jsonl",
        "sub",
    ]


def test_an_interrupted_pull_sends_only_what_is_missing(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to, model = tmp_path / "here", tmp_path / "a" / "out" / "sub" / "model.bin"
    one = Cluster(name="t", nodes=cluster.nodes[:1])

    class CutError(Exception):
        pass

    class Events(list[Event]):
        def append(self, event: Event) -> None:
            if isinstance(event, CopyProgress) and event.phase == "sending" and event.done:
                raise CutError

    take = Transfer._take_from_source

    def only_the_first_block(transfer: Transfer, item: Message | Reply) -> None:
        if not isinstance(item, Message) or not item.head.get("block"):
            take(transfer, item)

    with monkeypatch.context() as patched:
        patched.setattr(Transfer, "_take_from_source", only_the_first_block)
        with pytest.raises(CutError):
            pulled(one, to, "out/sub/model.bin", events=Events())
    assert not (to / "out" / "sub" / "model.bin").exists()
    (node,) = pulled(one, to, "out/sub/model.bin").paths[0].nodes
    assert (node.state, node.received) == ("pulled", model.stat().st_size - BLOCK)
    assert (to / "out" / "sub" / "model.bin").read_bytes() == model.read_bytes()
    assert not list(to.rglob("*partial*"))


@pytest.mark.parametrize("others", [0, 1])
def test_a_node_that_fails_gives_way_to_one_that_has_the_same(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    """A2 sees the files of a; c, if it is asked, has others."""
    (tmp_path / "c" / "out" / "metrics.jsonl").write_text("[]\n")
    nodes = (cluster.nodes[0], node("a2", tmp_path / "a"), *cluster.nodes[2:][:others])
    describe = Transfer.describe

    def fails_on_a(transfer: Transfer) -> bytes:
        if transfer.source.name == "a":
            raise ClusterError("a: its file server hangs")
        return describe(transfer)

    monkeypatch.setattr(Transfer, "describe", fails_on_a)
    result = pulled(Cluster(name="t", nodes=nodes), tmp_path / "here", "out/metrics.jsonl")
    assert states(result) == ["failed", "pulled", *["pulled"] * others]
    assert result.paths[0].nodes[0].words == "a: its file server hangs"
    brought = Path(result.paths[0].nodes[1].to)
    assert brought.read_text() == "{}\n"


def test_what_was_pulled_is_no_code(cluster: Cluster, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").touch()
    assert states(pulled(cluster, project / "pulled", "out/metrics.jsonl"))[0] == "pulled"
    assert list(read_source(project).listing) == [b"train.py"]


def test_a_dead_node_is_named_with_what_to_type(cluster: Cluster, tmp_path: Path) -> None:
    dead = Node(host="127.0.0.1", name="dead", ssh=Ssh(port=1), workdir="/w")
    cluster = Cluster(name="t", nodes=(*cluster.nodes[:1], dead))
    result = pulled(cluster, tmp_path / "here", "out/metrics.jsonl")
    assert (states(result), result.exit_code) == (["pulled", "unreachable"], 3)
    there, silent = result.paths[0].nodes
    assert there.to == str(tmp_path / "here" / "a" / "out" / "metrics.jsonl")  # dead may differ
    again = f"clusterctl pull out/metrics.jsonl --from dead --to {tmp_path}/here/dead"
    assert silent.hint.splitlines()[-1] == f"once it answers: {again}"
    result = pulled(replace(cluster, shared=(str(tmp_path), "/w")), tmp_path / "there", "out")
    there, silent = result.paths[0].nodes
    assert there.to == str(tmp_path / "there" / "out")
    assert silent.hint.endswith("once it answers: clusterctl pull out --from dead")


def test_what_two_nodes_have_does_not_mix_without_a_word(cluster: Cluster, tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name / "rs").mkdir()
        (tmp_path / name / "rs" / f"model-{name}.pt").write_text(name)
    told: list[Event] = []
    first, second = (replace(cluster, nodes=(node,)) for node in cluster.nodes[:2])
    pulled(first, tmp_path / "here", "rs", events=told)
    assert not [event for event in told if isinstance(event, Notice) and event.level == "warning"]
    pulled(second, tmp_path / "here", "rs", events=told)
    (warning,) = [event for event in told if isinstance(event, Notice) and event.level == "warning"]
    assert warning.text == f"{tmp_path}/here/rs also has what b has not: model-a.pt"
    assert warning.hint == f"to keep what is of b apart: --to {tmp_path}/here/b"


def test_what_an_earlier_pull_brought_is_named_once_the_nodes_differ(
    cluster: Cluster, tmp_path: Path
) -> None:
    for name in "ab":
        (tmp_path / name / "rs.txt").write_text("alike")
    to, told = tmp_path / "here", list[Event]()
    pulled(cluster, to, "rs.txt", events=told)
    (tmp_path / "b" / "rs.txt").write_text("other")
    assert not [event for event in told if isinstance(event, Notice) and event.level == "warning"]
    assert states(pulled(cluster, to, "rs.txt", events=told)) == ["pulled", "pulled", "absent"]
    (warning,) = [event for event in told if isinstance(event, Notice) and event.level == "warning"]
    assert warning.text.startswith(f"{to}/rs.txt is of an earlier pull")
    assert (to / "rs.txt").read_text() == (to / "a" / "rs.txt").read_text() == "alike"
    assert (to / "b" / "rs.txt").read_text() == "other"


def test_a_file_that_vanishes_meanwhile_is_named(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    describe = Transfer.describe

    def rotates(transfer: Transfer) -> bytes:
        manifest = describe(transfer)
        (tmp_path / "a" / "out" / "metrics.jsonl").unlink()
        return manifest

    monkeypatch.setattr(Transfer, "describe", rotates)
    result = pulled(replace(cluster, nodes=cluster.nodes[:1]), tmp_path / "here", "out")
    (failed,) = result.paths[0].nodes
    assert failed.state == "failed"
    path = f"{tmp_path}/a/out"
    changed = f"a: {path} changed while it was sent: {path}/metrics.jsonl: No such file"
    assert failed.words.startswith(changed)


def test_a_path_that_no_node_has_fails(cluster: Cluster, tmp_path: Path) -> None:
    result = pulled(cluster, tmp_path / "here", "nothing")
    assert (states(result), result.exit_code) == (["absent"] * 3, 1)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("out", "out"),
        ("./out/../logs/", "logs"),
        ("/w/out/step-1", "out/step-1"),
        ("/data/x/ckpt.pt", "ckpt.pt"),
        ("../ckpt.pt", "ckpt.pt"),
        ("../../../../etc", "etc"),
        ("~/runs/a", "a"),
        (".", "w"),
    ],
)
def test_where_a_path_lands(path: str, name: str) -> None:
    cluster = Cluster(name="t", nodes=(node("n", Path("/w")),))
    assert local_names(cluster, [path]) == {path: name}


@pytest.mark.parametrize("paths", [("/",), ("",), ("a\0b",), ("/data/x", "/other/x"), ("..",)])
def test_paths_that_cannot_land_are_refused(paths: tuple[str, ...]) -> None:
    with pytest.raises(UsageError):
        local_names(Cluster(name="t", nodes=(node("n", Path("/w")),)), paths)
