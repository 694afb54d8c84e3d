"""Only a run that this machine launched has a proof; what nodes claim steers nothing that runs."""

from __future__ import annotations

import hmac
import io
import json
import os
import stat
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from clusterctl.errors import ClusterError, UsageError
from clusterctl.inventory.cluster import Cluster, Job
from clusterctl.model.from_json import from_json
from clusterctl.model.node_run import Launched, Resumed
from clusterctl.plan.options import Options
from clusterctl.report.console import Screen, make_console
from clusterctl.report.runs import show_runs
from clusterctl.verbs import resume
from clusterctl.verbs.events import ignore
from clusterctl.verbs.launch.options import LaunchOptions
from clusterctl.verbs.runs.history import unrecorded
from clusterctl.verbs.runs.list_runs import RunList, runs
from clusterctl.verbs.runs.proof import KEY_FILE, prove, proven_record
from clusterctl.verbs.runs.records import Records, RunRecord
from clusterctl.wire import Message, plain
from tests.fake_pool import FakePool
from tests.verbs.run_answers import CLUSTER, PLAN, RUN, part
from tests.verbs.test_resume import CHECKPOINT

JOB = Job(
    command=("train.py", "a b"),
    env=(("LR", "1"),),
    env_from=("TOKEN",),
    env_init="module load x",
    resume_args=("--from", "{checkpoint}"),
    checkpoints="out",
)
LAUNCHED = RunRecord(
    run=RUN,
    began=7.0,
    cluster=replace(CLUSTER, job=JOB, origins=(("gpus", "--gpus"),)),
    source="/home/u/code",
    tree="abc",
    commit="def",
    plan=plain(PLAN),
    options={"name": "mine", **plain(Options(gpus=2))},
    resumed=Resumed(run="lab-1", checkpoint="/c", command=("x",), step=3),
)
EVIL = ("bash", "-c", "echo PWNED \x1b[2J\n; true {checkpoint}")
INVENTORY = replace(CLUSTER, job=replace(JOB, command=("honest.py",)))


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return Records(tmp_path / "state")


def kept(proof: dict[str, Any] | None) -> Launched | None:
    """Return a proof as a node gives it back."""
    value: Launched | None = from_json(Launched | None, proof, "launched")
    return value


def test_what_an_earlier_version_proved_is_proven(records: Records) -> None:
    prove(LAUNCHED, PLAN, records.root)
    (records.root / KEY_FILE).write_bytes(b"k" * 32)
    text = json.dumps(json.loads(prove(LAUNCHED, PLAN, records.root)["record"]))
    known = hmac.digest(b"k" * 32, b"clusterctl launch\n" + text.encode(), "sha256").hex()
    earlier = kept({"record": text, "proof": known})
    assert proven_record(earlier, RUN, INVENTORY, records.root) is not None


def test_a_record_comes_back_with_its_job_and_options(records: Records) -> None:
    proof = prove(LAUNCHED, PLAN, records.root)
    assert "/home/u" not in proof["record"]
    proven = proven_record(kept(proof), RUN, INVENTORY, records.root)
    assert proven is not None
    names = ("run", "began", "tree", "commit", "dirty", "options", "resumed", "discovered")
    assert {n: getattr(proven, n) for n in names} == {n: getattr(LAUNCHED, n) for n in names}
    assert (proven.cluster.job, proven.cluster.origins) == (JOB, LAUNCHED.cluster.origins)
    assert [node.name for node in proven.cluster.nodes] == ["a", "b"]
    assert (proven.plan["world_size"], len(proven.plan["nodes"])) == (2, 1)


def longer(proof: dict[str, str]) -> dict[str, str]:
    return {**proof, "record": proof["record"] + " "}


FORGERIES: dict[str, Callable[[dict[str, str]], Any]] = {
    "none": lambda _proof: None,
    "empty": lambda _proof: {},
    "no proof": lambda proof: {**proof, "proof": None},
    "empty proof": lambda proof: {**proof, "proof": ""},
    "not ASCII": lambda proof: {**proof, "proof": "ü" * 64},
    "no Unicode": lambda proof: {**proof, "proof": "\ud800", "record": "\ud800"},
    "longer": longer,
    "another command": lambda proof: {**proof, "record": proof["record"].replace("train", "evil")},
}


@pytest.mark.parametrize("forged", FORGERIES)
def test_what_a_node_changed_has_no_proof(records: Records, forged: str) -> None:
    proof = prove(LAUNCHED, PLAN, records.root)
    assert proven_record(kept(FORGERIES[forged](proof)), RUN, INVENTORY, records.root) is None
    assert proven_record(kept(proof), RUN, INVENTORY, records.root) is not None


def test_a_proof_is_of_one_run_one_cluster_and_one_machine(
    records: Records, tmp_path: Path
) -> None:
    proof = prove(LAUNCHED, PLAN, records.root)
    other = replace(INVENTORY, name="other")
    assert proven_record(kept(proof), "lab-20260101t000000-zzzz", INVENTORY, records.root) is None
    assert proven_record(kept(proof), RUN, other, records.root) is None
    assert proven_record(kept(proof), RUN, INVENTORY, tmp_path / "never-launched") is None
    prove(LAUNCHED, PLAN, tmp_path / "another")
    assert proven_record(kept(proof), RUN, INVENTORY, tmp_path / "another") is None


def test_the_key_is_made_once_and_is_nobody_elses_to_read(records: Records) -> None:
    proofs: list[str] = []

    def launches() -> None:
        proofs.append(prove(LAUNCHED, PLAN, records.root)["proof"])

    threads = [threading.Thread(target=launches) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(proofs), len(set(proofs))) == (16, 1)
    (path,) = records.root.iterdir()
    assert (path.name, path.stat().st_size) == (KEY_FILE, 32)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_bytes().hex() not in json.dumps(prove(LAUNCHED, PLAN, records.root))


def test_a_folder_where_all_files_have_one_mode_is_used_with_a_warning(
    records: Records, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    proof = prove(LAUNCHED, PLAN, records.root)
    stat_of = os.fstat

    def fstat(descriptor: int) -> os.stat_result:
        seen = stat_of(descriptor)
        return os.stat_result((seen.st_mode | 0o755, *seen[1:]))

    monkeypatch.setattr("clusterctl.verbs.runs.proof.os.fstat", fstat)
    assert prove(LAUNCHED, PLAN, records.root) == proof
    assert "others may be able to read" in caplog.text


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda path: path.chmod(0o644), "expected a file of mode 0600, found 0644"),
        (lambda path: path.chmod(0o640), "expected a file of mode 0600, found 0640"),
        (lambda path: path.write_bytes(b"short"), "expected 32 bytes, found 5"),
        (lambda path: path.rename(path.with_name("k")) and path.symlink_to("k"), "symbolic"),
    ],
)
def test_a_key_that_others_could_know_is_not_used(
    records: Records, spoil: Callable[[Path], object], why: str
) -> None:
    proof = prove(LAUNCHED, PLAN, records.root)
    path = records.root / KEY_FILE
    spoil(path)
    for use in (
        lambda: prove(LAUNCHED, PLAN, records.root),
        lambda: proven_record(kept(proof), RUN, INVENTORY, records.root),
    ):
        with pytest.raises(ClusterError, match=why) as caught:
            use()
        assert caught.value.hint == f"mv {path} {path}.old"


def nodes_with(**answers: Any) -> FakePool:
    """Return nodes of which each has this part of the run."""
    listed = {name: [Message({"runs": [one]})] for name, one in answers.items()}
    checkpoints = [Message({"candidates": [CHECKPOINT]})]
    return FakePool(
        INVENTORY, {name: {"runs": one, "checkpoints": checkpoints} for name, one in listed.items()}
    )


def rebuilt(pool: FakePool, records: Records) -> tuple[RunRecord, RunList]:
    listed = runs(pool, records, rebuild=True)
    record = records.read("lab", RUN)
    assert record is not None
    return record, listed


def shown(listed: RunList) -> str:
    stream = io.StringIO()
    console = make_console(stream)
    show_runs(Screen(console, console), listed)
    return stream.getvalue()


LIES: dict[str, Any] = {
    "command": list(EVIL), "name": "mine", "workdir": "/root", "launcher": "evil", "wrap": ["evil"],
    "env": [["LD_PRELOAD", "x"]], "stop": {"file": "/etc/nologin"},
    "resumed": {"run": RUN, "checkpoint": "/evil", "command": list(EVIL), "step": 1},
}  # fmt: skip


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_one_lying_node_does_not_change_a_record_that_another_proves(
    records: Records, order: str
) -> None:
    proof = prove(LAUNCHED, PLAN, records.root)
    given = {
        "a": part("a", command=["train.py"], launched=proof),
        "b": part("b", **LIES, launched={**proof, "record": proof["record"].replace("7", "9")}),
    }
    record, listed = rebuilt(nodes_with(**{name: given[name] for name in order}), records)
    assert (record.cluster.job, record.began, record.discovered) == (JOB, 7.0, False)
    (line,) = listed.runs
    assert (line.command, line.verified, line.name) == (JOB.command, True, "mine")
    assert "unverified" not in shown(listed)


def test_proofs_are_asked_of_few_nodes_and_only_for_what_is_missing(records: Records) -> None:
    proof = prove(LAUNCHED, PLAN, records.root)
    pool = nodes_with(a=part("a", launched=proof), b=part("b", launched=proof))
    rebuilt(pool, records)
    asked = [request.args.get("launched") for _, request in pool.requests]
    assert [one for one in asked if one is not None] == [[RUN], [RUN]]
    before = len(pool.requests)
    runs(pool, records, rebuild=True)
    assert not any("launched" in request.args for _, request in pool.requests[before:])


def test_a_machine_that_launched_nothing_asks_for_no_proofs(records: Records) -> None:
    pool = nodes_with(a=part("a"), b=part("b"))
    rebuilt(pool, records)
    assert not any("launched" in request.args for _, request in pool.requests)


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_without_a_proof_nothing_that_a_node_claims_is_launched(
    records: Records, order: str
) -> None:
    given = {"a": part("a", command=["train.py"]), "b": part("b", **LIES)}
    pool = nodes_with(**{name: given[name] for name in order})
    record, listed = rebuilt(pool, records)
    assert record.discovered
    assert record.cluster.job == replace(INVENTORY.job, command=())
    assert (record.options, record.resumed) == ({}, None)
    assert records.find("mine") is None
    (line,) = listed.runs
    assert not line.verified
    assert listed.document()["runs"][0]["verified"] is False
    assert "unverified: " in shown(listed)
    assert runs(pool, records, rebuild=True).rebuilt == ()
    cluster, launch = resumed(record, INVENTORY, pool)
    assert cluster.job == replace(
        INVENTORY.job, command=("honest.py", "--from", CHECKPOINT["path"])
    )
    assert "evil" not in json.dumps(plain(launch.overrides)).lower()
    typed = Options(command=("typed.py", "{checkpoint}"))
    cluster, _ = resumed(record, replace(INVENTORY, job=Job()), pool, typed)
    assert cluster.job.command == ("typed.py", CHECKPOINT["path"])


def resumed(
    record: RunRecord, cluster: Cluster, pool: FakePool, typed: Options | None = None
) -> tuple[Cluster, LaunchOptions]:
    return resume.resume(
        record,
        cluster,
        cast("Any", pool),
        LaunchOptions(overrides=typed or Options()),
        checkpoint=CHECKPOINT["path"],
        history=unrecorded(RUN),
        needs_secrets=False,
        emit=ignore,
    )


def test_without_a_command_of_ones_own_resume_refuses_and_shows_the_claims(
    records: Records,
) -> None:
    pool = nodes_with(a=part("a", command=["train.py", "x y"]), b=part("b", **LIES))
    record, _ = rebuilt(pool, records)
    asked = len(pool.requests)
    for cluster in (replace(INVENTORY, job=Job()), record.cluster):
        with pytest.raises(UsageError) as caught:
            resumed(record, cluster, pool)
        assert caught.value.exit_code == 2
        first, *claims = str(caught.value).splitlines()
        assert f"{RUN} is unverified" in first
        assert claims == [
            "a: train.py 'x y'",
            r"b: bash -c 'echo PWNED \x1b[2J\n; true {checkpoint}'",
        ]
        hint = caught.value.hint or ""
        assert hint.startswith("type the command that you trust: -- COMMAND '{checkpoint}'\n")
        assert "PWNED" not in hint
    assert len(pool.requests) == asked


def test_the_ancestor_of_an_unverified_run_is_what_all_its_nodes_agree_on(records: Records) -> None:
    taken = {"run": "lab-20260101t000000-zzzz", "checkpoint": "/c", "step": 3}
    claim = {**taken, "command": list(EVIL), "tree": "t"}
    record, listed = rebuilt(
        nodes_with(a=part("a", resumed=claim), b=part("b", resumed=claim)), records
    )
    assert record.resumed == Resumed(run="lab-20260101t000000-zzzz", checkpoint="/c", step=3)
    assert listed.runs[0].checkpoint == "/c"


def test_a_record_that_an_earlier_version_took_from_the_nodes_is_unverified(
    records: Records,
) -> None:
    earlier = replace(
        LAUNCHED, discovered=True, cluster=replace(CLUSTER, job=replace(JOB, command=EVIL))
    )
    records.write(earlier)
    record = records.read("lab", RUN)
    assert record is not None
    assert record.cluster.job.command == ()
    assert record.options == {}
    assert record.resumed == Resumed(run="lab-1", checkpoint="/c", step=3)
    with pytest.raises(UsageError, match="no node claims a command"):
        resumed(record, record.cluster, nodes_with())


def test_an_unverified_record_is_rebuilt_once_there_is_a_proof(records: Records) -> None:
    record, _ = rebuilt(nodes_with(a=part("a", command=["train.py"])), records)
    assert record.discovered
    proof = prove(LAUNCHED, PLAN, records.root)
    record, listed = rebuilt(nodes_with(a=part("a", launched=proof)), records)
    assert (record.cluster.job, listed.rebuilt) == (JOB, (RUN,))
    evil, listed = rebuilt(nodes_with(a=part("a", **LIES)), records)
    assert (evil, listed.rebuilt) == (record, ())
