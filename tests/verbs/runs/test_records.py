"""What the controller remembers of a run comes back as it was, and is nobody else's to read."""

from __future__ import annotations

import datetime as dt
import json
import re
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from clusterctl.errors import ClusterError, SeveralRuns
from clusterctl.facts.nodefacts import NodeFacts, from_document, to_document
from clusterctl.inventory.cluster import Cluster, Job, Node, Ssh, Stop
from clusterctl.model.node_run import Resumed
from clusterctl.model.run_record import RunEnd
from clusterctl.plan.options import Options
from clusterctl.verbs import resume
from clusterctl.verbs.runs import run_id
from clusterctl.verbs.runs.history import history_of
from clusterctl.verbs.runs.list_runs import runs
from clusterctl.verbs.runs.recorded_job import changed
from clusterctl.verbs.runs.records import Records, RunRecord
from clusterctl.verbs.stop import stop
from clusterctl.wire import plain
from tests.damage import as_json, damaged_json
from tests.fake_pool import FakePool
from tests.verbs.run_answers import finish

CLUSTER = Cluster(
    name="lab",
    nodes=(
        Node(host="a", name="a", ssh=Ssh(user="u", port=2200, jump="b"), gpus=8),
        Node(host="b", name="b", ssh=Ssh(via="openssh"), local=True),
    ),
    shared=("/workspace",),
    job=Job(
        launcher="direct",
        command=("-m", "train", "it's", ""),
        env=(("A", "x y"), ("B", '{"k": 1}')),
        env_from=("HF_TOKEN",),
        stop=Stop(signal=None, file="STOP", grace=5.0),
    ),
)


def record(run: str = "lab-20260101t000000-abcd", began: float = 10.0) -> RunRecord:
    return RunRecord(run=run, began=began, cluster=CLUSTER, tree="t", findings=({"check": "x"},))


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    records = Records(tmp_path / "state")
    records.write(record())
    assert records.read("lab", record().run) == record()
    assert records.find(record().run) == record()


def test_the_facts_of_a_launch_are_kept_for_this_user_alone(tmp_path: Path) -> None:
    facts = {"a": NodeFacts(node="a", kernel="6.1")}
    records = Records(tmp_path)
    folder = records.write(record(), facts=to_document(facts))

    assert from_document(records.facts(record())) == facts
    assert (folder / "facts.json").stat().st_mode & 0o777 == 0o600
    for damaged in ("", "[]"):
        (folder / "facts.json").write_text(damaged)
        assert records.facts(record()) is None


def test_the_nodes_that_were_left_out_are_kept_too(tmp_path: Path) -> None:
    records = Records(tmp_path)
    part = replace(record(), cluster=CLUSTER.with_nodes(CLUSTER.nodes[:1]))
    records.write(part)
    assert records.find(record().run) == part


def test_only_the_user_can_read_it(tmp_path: Path) -> None:
    folder = Records(tmp_path / "state").write(record(), diff="+ secret plans\n")
    assert {oct(path.stat().st_mode & 0o777) for path in folder.iterdir()} == {"0o600"}
    for made in (folder, folder.parent, folder.parent.parent):
        assert made.stat().st_mode & 0o777 == 0o700


def test_the_newest_comes_first_and_clusters_are_kept_apart(tmp_path: Path) -> None:
    records = Records(tmp_path)
    for run, began in (("lab-1", 5.0), ("lab-2", 50.0), ("lab-3", 20.0)):
        records.write(record(run, began))
    assert [one.run for one in records.all("lab")] == ["lab-2", "lab-3", "lab-1"]
    assert records.all("other") == []


def test_keys_of_a_later_version_are_ignored_and_broken_records_are_none(tmp_path: Path) -> None:
    records = Records(tmp_path)
    file = records.write(record()) / "record.json"
    document = json.loads(file.read_text())
    document["later"] = 1
    document["cluster"]["later"] = 1
    document["cluster"]["nodes"][0]["later"] = 1
    file.write_text(json.dumps(document))
    assert records.find(record().run) == record()
    for broken in ("{", "[]", json.dumps({**document, "cluster": "lab"})):
        file.write_text(broken)
        assert records.find(record().run) is None


FULL = replace(
    record(),
    plan={
        "world_size": 2, "master_port": 29600,
        "nodes": [{"node": name, "node_rank": rank, "device": "cpu", "procs": 1}
                  for rank, name in enumerate("ab")],
    },
    options={"name": "best", "env": [["A", "x"]], "gpus": 8, "max_restarts": 1, "command": ["x"]},
    resumed=Resumed(run="lab-0", checkpoint="/c", command=("x",), step=5),
)  # fmt: skip
END = {"state": "finished", "ended_by": "job", "exit_code": 0}


@given(document=damaged_json(FULL.document()), end=damaged_json(END))
def test_a_damaged_record_is_none_or_one_that_every_verb_can_use(
    document: Any, end: Any, tmp_path: Path
) -> None:
    records = Records(tmp_path)
    folder = records.write(record())
    (folder / "record.json").write_bytes(as_json(document))
    (folder / "end.json").write_bytes(as_json(end))
    assert records.all() == [found for found in [records.find(record().run)] if found]
    kept = records.end(record()) or RunEnd()
    assert all(isinstance(text, str) for text in (kept.state, kept.ended_by))
    for found in records.all():
        pool = FakePool(found.cluster, {})
        _, stopped = finish(stop, pool, found.run, found.cluster, plan=found.plan)
        assert stopped.exit_code == 3
        history_of(found, records.with_id)
        resume._ranks(found, found.cluster, Options())
        resume._taken_over(found, Options())
        changed(found, Job(), Options(), records.with_id)
        (listed,) = runs(pool, records).runs
        json.dumps(plain(listed))


@pytest.mark.parametrize("name", ["lab-1; id", "$(id)", "-lab", "lab-2"])
def test_a_record_whose_name_is_no_runs_or_not_its_folders_is_none(
    name: str, tmp_path: Path
) -> None:
    """Its name is printed within commands to type."""
    records = Records(tmp_path)
    folder = records.write(record("lab-1"))
    text = (folder / "record.json").read_text()
    (folder / "record.json").write_text(text.replace('"lab-1"', json.dumps(name)))
    assert records.all() == []
    records.write(record(name))
    assert [one.run for one in records.all()] == (["lab-2"] if name == "lab-2" else [])


def test_a_run_is_found_by_its_id_and_else_by_the_name_it_was_given(tmp_path: Path) -> None:
    records = Records(tmp_path)
    named = replace(record("lab-1", 5.0), options={"name": "best"})
    for one in (named, record("best", 1.0), replace(named, run="lab-2", began=9.0)):
        records.write(one)
    assert [found.run for found in map(records.find, ("lab-1", "best")) if found] == [
        "lab-1",
        "best",
    ]
    assert records.find("none") is None
    records.remove("lab", "best")
    newest = records.find("best")
    assert newest is not None
    assert newest.run == "lab-2"


@pytest.fixture
def read_whole(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the runs whose records are read whole, as they are."""
    seen: list[str] = []
    read = Records.read

    def noted(self: Records, cluster: str, run: str) -> RunRecord | None:
        seen.append(run)
        return read(self, cluster, run)

    monkeypatch.setattr(Records, "read", noted)
    return seen


def test_of_other_clusters_a_whole_name_or_the_end_of_an_id_counts(tmp_path: Path) -> None:
    records = Records(tmp_path)
    own, other = "lab-20260101t000000-abcd", "pod-20260101t000001-67sp"
    for run, name in ((own, "base"), (other, "base")):
        cluster = replace(record(run).cluster, name=run[:3])
        records.write(replace(record(run, 10.0), cluster=cluster, options={"name": name}))

    def found(word: str) -> str:
        one = records.find(word, prefer="lab")
        return one.run if one else ""

    assert [found(word) for word in ("base", "bas", "ab")] == [own] * 3
    assert [found(word) for word in (other, "67sp")] == [other] * 2
    assert [records.to_resume(word, "lab").run for word in ("base", other, "67sp")] == [
        own,
        other,
        other,
    ]
    shutil.rmtree(records.folder("lab", own))
    with pytest.raises(ClusterError, match="expected a run of lab called base, found only") as no:
        records.to_resume("base", "lab")
    assert f"by its id: clusterctl resume {other} --checkpoint latest" in (no.value.hint or "")
    assert records.to_resume("base", "").run == other
    assert found("base") == other
    assert [found(word) for word in ("sp", "67s", "pod")] == [""] * 3
    anywhere = records.find("sp")
    assert anywhere is not None
    assert anywhere.run == other


def test_a_part_of_an_id_or_a_name_is_enough_and_reads_one_record(
    tmp_path: Path, read_whole: list[str]
) -> None:
    records = Records(tmp_path)
    ids = [f"lab-20260101t00000{n}-{end}" for n, end in enumerate(("abcd", "efgh", "jkmn"))]
    for number, run in enumerate(ids):
        one = record(run, 10.0 + number)
        records.write(replace(one, options={"name": "baseline"}) if number else one)
    found = [records.find(word) for word in ("abcd", "000001-ef", ids[2], "baseline", "basel")]
    assert [one.run for one in found if one] == [ids[0], ids[1], ids[2], ids[2], ids[2]]
    assert read_whole == [one.run for one in found if one]
    assert records.find("none") is None
    with pytest.raises(SeveralRuns) as caught:
        records.find("lab")
    assert caught.value.choices == tuple(reversed(ids))
    assert "jkmn (baseline)" in str(caught.value)
    assert records.with_id("abcd") is None


def test_the_newest_record_is_found_without_reading_the_others(
    tmp_path: Path, read_whole: list[str]
) -> None:
    records = Records(tmp_path)
    for number, run in enumerate(("lab-1", "lab-2", "lab-3")):
        records.write(record(run, 10.0 + number))
    (tmp_path / "lab" / "lab-3" / "record.json").write_text('{"began": 99.0}')
    assert records.to_resume(None, "lab").run == "lab-2"
    assert read_whole == ["lab-3", "lab-2"]


def test_the_end_is_kept_once_seen(tmp_path: Path) -> None:
    records = Records(tmp_path)
    records.write(record())
    assert records.end(record()) is None
    records.write_end(record(), {"state": "finished", "ended": 20.5})
    assert records.end(record()) == RunEnd(state="finished", ended=20.5)
    records.write_end(record(), {"state": "failed", "ended": 1.0, "exit_code": -11})
    assert records.end(record()) == RunEnd(state="failed", ended=1.0, exit_code=-11)
    records.write_end(record(), {"state": "finished"})
    end = records.end(record())
    assert end is not None
    assert end.ended == pytest.approx(time.time(), abs=600)


def test_a_record_that_cannot_be_written_is_an_error_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ClusterError) as caught:
        Records(tmp_path / "file" / "state").write(record())
    assert "CLUSTERCTL_STATE" in (caught.value.hint or "")


def test_a_runs_name_says_its_cluster_and_its_second() -> None:
    moment = dt.datetime(2026, 11, 20, 20, 5, 1, tzinfo=dt.timezone(dt.timedelta(hours=1)))
    run = run_id.make_run_id("lab-2", moment)
    assert re.fullmatch(r"lab-2-20261120t190501-[a-z0-9]{4}", run)
    assert run_id.cluster_of(run) == "lab-2"
    assert run_id.cluster_of("something") is None
    assert run_id.make_run_id("lab-2", moment) != run
