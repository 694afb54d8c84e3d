"""What the folder here holds for the nodes is known before a sync brings it."""

from __future__ import annotations

import io
import os
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.facts.software.python import Python
from clusterctl.facts.storage.storage import PathFacts
from clusterctl.inventory.cluster import Cluster, Job, Node, Ssh
from clusterctl.node.agent.call_channel import CallChannel
from clusterctl.node.mirror.manifest import Manifest
from clusterctl.node.mirror.sync_diff import compare_tree
from clusterctl.sync import digests
from clusterctl.sync.source import read_source
from clusterctl.transport.interface import Request
from clusterctl.verbs.events import ignore
from clusterctl.verbs.preflight import source_folder
from clusterctl.verbs.preflight.job_check import run_job_check
from clusterctl.verbs.preflight.source_folder import other_code, with_local_needs
from clusterctl.wire import Message
from tests.fake_pool import FakePool

CLUSTER = Cluster(
    name="lab",
    nodes=tuple(Node(host=n, name=n, ssh=Ssh(), gpus=0, workdir="/code") for n in "ab"),
    job=Job(check=("chk.py",), needs=("data", "/code/out.bin", "/models/m", "none")),
)


def known() -> dict[str, NodeFacts]:
    python = Python(asked="python3", found=True, executable="/usr/bin/python3")
    paths = ("/code", "/code/data", "/code/out.bin", "/models/m", "/code/none")
    places = tuple(PathFacts(path=path, exists=True, folder=True) for path in paths)
    return {name: NodeFacts(node=name, python=python, paths=places) for name in "ab"}


def write(folder: Path) -> None:
    (folder / "data").mkdir()
    for name in ("chk.py", "data/x", "out.bin"):
        (folder / name).write_text(name)
    (folder / ".clusterctlignore").write_text("out.bin\n")


def test_of_each_need_in_workdir_it_is_known_if_the_sync_brings_it(tmp_path: Path) -> None:
    write(tmp_path)
    for facts in with_local_needs(CLUSTER, known(), tmp_path).values():
        here = {path.path: path.here for path in facts.paths}
        assert here == {
            "/code": "", "/code/data": "synced", "/code/out.bin": "ignored",
            "/models/m": "", "/code/none": "absent",
        }  # fmt: skip


def test_a_need_of_which_a_sync_leaves_out_a_part_is_left_to_what_the_nodes_have(
    tmp_path: Path,
) -> None:
    write(tmp_path)
    (tmp_path / ".clusterctlignore").write_text("data/*\n!data/keep\n")
    (tmp_path / "data/keep").touch()
    for facts in with_local_needs(CLUSTER, known(), tmp_path).values():
        assert facts.path("/code/data") == PathFacts(path="/code/data", exists=True, folder=True)


def test_code_that_is_there_without_a_sync_is_the_same_code(tmp_path: Path) -> None:
    """As where workdir is the folder itself, or the nodes have a clone of it."""
    write(tmp_path)
    here = replace(CLUSTER, nodes=(replace(CLUSTER.nodes[0], workdir=str(tmp_path)),))
    channel = CallChannel(io.BytesIO(), -1)

    def compare(request: Request) -> list[Message]:
        return [compare_tree(dict(request.args), request.body, channel)]

    pool = FakePool(here, {"a": {"sync-compare": compare}})
    assert other_code(pool, here, here.nodes, tmp_path) == set()
    own = tmp_path / ".clusterctl"
    own.mkdir()
    Manifest(os.fsencode(tmp_path)).write("of another tree", {})
    assert other_code(pool, here, here.nodes, tmp_path) == {"a"}


def test_a_check_does_not_read_what_takes_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path)
    monkeypatch.setattr(source_folder, "MUCH_READ", 3)
    monkeypatch.setattr(digests, "digest_of", None)
    assert with_local_needs(CLUSTER, known(), tmp_path) != known()
    assert other_code(FakePool(CLUSTER, {}), CLUSTER, CLUSTER.nodes, tmp_path) == set()


def test_a_folder_that_no_sync_could_take_tells_nothing(tmp_path: Path) -> None:
    assert with_local_needs(CLUSTER, known(), tmp_path) == known()


def test_the_own_check_knows_on_which_nodes_it_ran_on_other_code(tmp_path: Path) -> None:
    write(tmp_path)
    tree = read_source(tmp_path).tree

    def compare(request: Request) -> list[Message]:
        assert request.args["tree"] == tree
        return [Message({"equal": True})]

    pool = FakePool(
        CLUSTER,
        {
            "a": {"sync-compare": compare, "read": [Message({"answers": []})]},
            "b": {
                "sync-compare": [Message({"equal": False, "placed": True})],
                "read": [Message({"answers": []})],
            },
        },
    )
    found = run_job_check(CLUSTER, pool, known(), source=tmp_path, emit=ignore)
    results = {name: facts.job_check for name, facts in found.items()}
    assert {name: one and one.other_code for name, one in results.items()} == {
        "a": False,
        "b": True,
    }
    nobody = replace(CLUSTER, job=Job())
    run_job_check(nobody, FakePool(nobody, {}), known(), source=tmp_path, emit=ignore)
