"""What a resume takes over from the run before, and where the checkpoint goes."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from clusterctl.errors import UsageError
from clusterctl.inventory.cluster import Cluster, Job, Restart
from clusterctl.plan.effective import effective
from clusterctl.plan.options import Options
from clusterctl.verbs import resume
from clusterctl.verbs.checkpoints import stored
from clusterctl.verbs.events import Emit, Event, Notice, ignore
from clusterctl.verbs.launch.options import LaunchOptions
from clusterctl.verbs.runs.history import history_of
from clusterctl.verbs.runs.records import Claim, RunRecord
from clusterctl.wire import Message, plain
from tests.fake_pool import FakePool
from tests.verbs.run_answers import CLUSTER, RUN

if TYPE_CHECKING:
    from clusterctl.transport.pool import Pool

BEFORE = RunRecord(
    run=RUN,
    began=1.0,
    cluster=CLUSTER,
    options=plain(
        Options(launcher="direct", gpus=4, env=(("A", "1"),), command=("old",), master_port=1)
    ),
)


def test_the_launchs_options_are_taken_over_where_nothing_else_is_said() -> None:
    taken = resume._taken_over(BEFORE, Options(gpus=2, origins={"gpus": "--gpus"}))
    assert (taken.launcher, taken.gpus, taken.env) == ("direct", 2, (("A", "1"),))
    assert taken.origin("launcher") == f"run {RUN}"
    assert taken.origin("gpus") == "--gpus"


@pytest.mark.parametrize(("given", "name"), [("", "base"), ("other", "other")])
def test_the_name_is_inherited_unless_another_is_given(given: str, name: str) -> None:
    named = replace(BEFORE, options={**BEFORE.options, "name": "base"})
    answer = [Message({"candidates": [CHECKPOINT], "knows": True})]
    pool = FakePool(CLUSTER, {node.name: {"checkpoints": answer} for node in CLUSTER.nodes})
    cluster = replace(CLUSTER, job=replace(CLUSTER.job, resume_args=("--from", "{checkpoint}")))
    before = replace(named, cluster=cluster)
    _, launch = resumed(before, cluster, pool, LaunchOptions(name=given))
    assert launch.name == name


def test_none_of_a_thing_is_a_choice_too() -> None:
    cpus = replace(BEFORE, options=plain(Options(gpus=0, max_restarts=3)))
    assert resume._taken_over(cpus, Options()).gpus == 0
    taken = resume._taken_over(cpus, Options(max_restarts=0))
    assert (taken.max_restarts, taken.origin("max_restarts")) == (0, "--max-restarts")


CHECKPOINT: dict[str, Any] = {
    "complete": True, "why": "", "part": None, "hash": "h", "step": 7, "format": "file",
    "path": "/out/step-7", "doubts": [], "name": "step-7", "time": 7.0,
}  # fmt: skip


def resumed(
    before: RunRecord,
    cluster: Cluster,
    pool: FakePool,
    launch: LaunchOptions | None = None,
    checkpoint: str = "/out/step-7",
    *,
    emit: Emit = ignore,
) -> tuple[Cluster, LaunchOptions]:
    """Resume a run of which only this record is known."""
    return resume.resume(
        before,
        cluster,
        cast("Pool", pool),
        launch or LaunchOptions(),
        checkpoint=checkpoint,
        history=history_of(before, lambda _run: None),
        emit=emit,
    )


@pytest.mark.parametrize(
    ("said", "command", "origin"),
    [
        ((), ("-m", "train", "--from", "/out/step-7"), f"run {RUN}"),
        (("new.py", "{checkpoint}"), ("new.py", "/out/step-7"), "after `--`"),
    ],
)
def test_the_command_is_said_to_be_whose_it_is(
    said: tuple[str, ...], command: tuple[str, ...], origin: str
) -> None:
    before = replace(
        BEFORE,
        cluster=replace(CLUSTER, job=replace(CLUSTER.job, resume_args=("--from", "{checkpoint}"))),
    )
    answer = [Message({"candidates": [CHECKPOINT]})]
    pool = FakePool(CLUSTER, {node.name: {"checkpoints": answer} for node in CLUSTER.nodes})
    launch = LaunchOptions(overrides=Options(command=said))
    again, wanted = resumed(before, CLUSTER, pool, launch)
    assert wanted.overrides.command == command
    assert (again.job.command, again.origin("command", "")) == (command, origin)


def test_the_port_is_kept_and_the_command_is_not() -> None:
    taken = resume._taken_over(BEFORE, Options())
    assert (taken.command, taken.master_port) == ((), 1)


def test_variables_are_merged_by_name() -> None:
    before = replace(BEFORE, options=plain(Options(env=(("LR", "1"), ("DATA", "/d")))))
    taken = resume._taken_over(before, Options(env=(("LR", "2"),), origins={"env": "--env"}))
    assert dict(taken.env) == {"LR": "2", "DATA": "/d"}
    asked = dict(effective(CLUSTER, taken).origins)
    assert (asked["env.LR"], asked["env.DATA"]) == ("--env", f"run {RUN}")


def test_another_launcher_is_not_asked_for_the_restarts_of_the_one_before() -> None:
    before = replace(BEFORE, options=plain(Options(max_restarts=3)))
    assert resume._taken_over(before, Options(launcher="direct")).max_restarts is None
    before = replace(BEFORE, options=plain(Options(launcher_args=("--tee", "3"))))
    assert resume._taken_over(before, Options()).launcher_args == ("--tee", "3")
    assert resume._taken_over(before, Options(launcher_args=())).launcher_args == ()
    assert resume._taken_over(before, Options(launcher="direct")).launcher_args is None


def test_the_inventorys_arguments_of_a_launcher_come_back_with_it() -> None:
    job = replace(CLUSTER.job, launcher_args=("--tee", "3"), resume_args=("{checkpoint}",))
    direct = Options(launcher="direct")
    ran = effective(replace(CLUSTER, job=job), direct)
    before = replace(BEFORE, cluster=ran, options=plain(direct))
    answer = [Message({"candidates": [CHECKPOINT]})]
    pool = FakePool(CLUSTER, {node.name: {"checkpoints": answer} for node in CLUSTER.nodes})
    for given, args in ((Options(launcher="torchrun"), ("--tee", "3")), (Options(), ())):
        launch = LaunchOptions(overrides=given)
        again, _ = resumed(before, CLUSTER, pool, launch)
        assert again.job.args == args


@pytest.mark.parametrize("command", [("-m", "train"), ("-m", "train", "--at={checkpoint}")])
def test_a_resumed_run_is_resumed_with_one_checkpoint(command: tuple[str, ...]) -> None:
    job = replace(CLUSTER.job, command=command, resume_args=("--from", "{checkpoint}"))
    before = replace(BEFORE, cluster=replace(CLUSTER, job=job))
    answer = [Message({"candidates": [CHECKPOINT]})]
    pool = FakePool(CLUSTER, {node.name: {"checkpoints": answer} for node in CLUSTER.nodes})
    commands = []
    for _ in range(2):
        ran, wanted = resumed(before, CLUSTER, pool)
        commands.append(ran.job.command)
        before = replace(before, cluster=ran, resumed=wanted.resumed)
    assert commands[0] == commands[1]
    assert " ".join(commands[1]).count("/out/step-7") == 1


@pytest.mark.parametrize(
    ("spares", "given", "left"), [(1, None, "a"), (1, None, "ab"), (1, 1, "ab"), (0, None, "ab")]
)
def test_spares_take_the_places_of_nodes_that_are_left_out(
    spares: int, given: int | None, left: str
) -> None:
    job = replace(CLUSTER.job, resume_args=("--from", "{checkpoint}"), restart=Restart(max=1))
    third = replace(CLUSTER.nodes[1], name="c", host="c")
    whole = replace(CLUSTER, job=job, nodes=(*CLUSTER.nodes, third))
    options = {**BEFORE.options, "spares": spares}
    before = replace(BEFORE, cluster=effective(whole, Options(spares=spares)), options=options)
    nodes = tuple(node for node in whole.nodes if node.name in left)
    cluster = whole.with_nodes(nodes)
    answer = [Message({"candidates": [CHECKPOINT], "knows": True})]
    pool = FakePool(cluster, {node.name: {"checkpoints": answer} for node in nodes})
    again, _ = resumed(before, cluster, pool, LaunchOptions(overrides=Options(spares=given)))
    assert [node.name for node in again.spares] == ([nodes[-1].name] if given else [])
    assert [node.name for node in again.nodes] == [node.name for node in nodes]


@pytest.mark.parametrize(
    ("command", "resume_args", "expected"),
    [
        (("a",), ("--from", "{checkpoint}"), ("a", "--from", "{checkpoint}")),
        (("a", "--x={checkpoint}"), ("--from", "{checkpoint}"), ("a", "--x={checkpoint}")),
        (("a", "--x={checkpoint_step}"), ("--from", "b"), ("a", "--x={checkpoint_step}")),
        (("a",), ("--init_from=resume",), ("a", "--init_from=resume")),  # it finds its own
    ],
)
def test_where_the_checkpoint_goes(
    command: tuple[str, ...], resume_args: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    job = Job(command=command, resume_args=resume_args)
    assert resume._template(job, "latest", Path()) == expected


def test_a_job_that_cannot_be_told_is_an_error() -> None:
    with pytest.raises(UsageError, match="resume_args") as caught:
        resume._template(CLUSTER.job, "latest", Path())
    assert "{checkpoint}" in (caught.value.hint or "")
    assert (caught.value.hint or "").endswith("only its flag; if it has none, launch it again")


@pytest.mark.parametrize(
    ("command", "flags", "shown"),
    [
        (("t.py",), "('--resume', default='')", '[--resume, "{checkpoint}"]'),
        (
            ("python", "t.py"),
            "('--no-resume-opt')\nadd_argument(\n  '--resume', '-r')",
            "[--resume, ",
        ),
        (("-m", "t"), "('--resume-from-step', type=int)", '-step, "{checkpoint_step}"]'),
        (("t.py",), "('--resume', action='store_true')", "resume_args: [--resume]}"),
        (("t.py",), "('--lr')", "in place of --resume-from-checkpoint, write the flag"),
    ],
)
def test_the_hint_has_the_flag_that_the_script_adds(
    command: tuple[str, ...], flags: str, shown: str, tmp_path: Path
) -> None:
    (tmp_path / "t.py").write_text(f"parser.add_argument{flags}\n")
    with pytest.raises(UsageError) as caught:
        resume._template(replace(CLUSTER.job, command=command), "latest", tmp_path)
    assert shown in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("folder", "given", "expected"),
    [
        ("out", "latest", "type it now: -- "),
        ("", "/c/1", "type it now: -- "),
        ("", "latest", "with its path for PATH: --checkpoint PATH -- "),
    ],
)
def test_the_hint_asks_for_a_path_where_latest_has_no_folder(
    folder: str, given: str, expected: str
) -> None:
    with pytest.raises(UsageError) as caught:
        resume._template(replace(CLUSTER.job, checkpoints=folder), given, Path())
    assert (caught.value.hint or "").startswith(expected)


def test_the_ranks_of_each_node_are_those_of_the_run_if_nothing_else_is_asked_for() -> None:
    plan = {"nodes": [{"node": "b", "procs": 2}, {"node": "a", "procs": 1}]}
    before = replace(BEFORE, plan=plan, options=plain(Options(gpus=2)))
    ranks = resume._ranks(before, CLUSTER, Options(gpus=2))
    assert ranks == {"a": range(1), "b": range(1, 3)}
    assert resume._ranks(before, CLUSTER, Options(gpus=1)) == {}
    for changed in (
        replace(CLUSTER, job=replace(CLUSTER.job, procs_per_node=4)),
        replace(CLUSTER, job=replace(CLUSTER.job, env=(("CUDA_VISIBLE_DEVICES", "0"),))),
        CLUSTER.with_nodes(tuple(replace(node, procs=3) for node in CLUSTER.nodes)),
    ):
        assert resume._ranks(before, changed, Options(gpus=2)) == {}
    assert resume._ranks(BEFORE, CLUSTER, Options(gpus=4)) == {}


@pytest.mark.parametrize("claimed", [("old.py",), ("-m", "train"), ("-m", "train", "--lr", "1")])
def test_another_command_than_the_nodes_claim_is_no_secret(claimed: tuple[str, ...]) -> None:
    now = replace(CLUSTER, job=replace(CLUSTER.job, resume_args=("--from", "{checkpoint}")))
    claims = tuple(Claim(node=node.name, command=claimed) for node in CLUSTER.nodes)
    before = replace(BEFORE, discovered=True, claims=claims)
    answer = [Message({"candidates": [CHECKPOINT]})]
    pool = FakePool(CLUSTER, {node.name: {"checkpoints": answer} for node in CLUSTER.nodes})
    seen: list[Event] = []
    resumed(before, now, pool, emit=seen.append)
    said = [event.text for event in seen if isinstance(event, Notice)]
    wanted = [] if claimed == CLUSTER.job.command else [f"a,b: {shlex.join(claimed)}"]
    assert [text.splitlines()[-1] for text in said] == wanted


@pytest.mark.parametrize("asked", [(), ("job.resume_args",)])
def test_what_was_added_is_said(asked: tuple[str, ...]) -> None:
    args = ("--from", "{checkpoint}")
    job = replace(CLUSTER.job, resume_args=() if asked else args)
    before = replace(BEFORE, cluster=replace(CLUSTER, job=job))
    now = replace(CLUSTER, job=replace(CLUSTER.job, resume_args=args))
    answer = [Message({"candidates": [CHECKPOINT]})]
    pool = FakePool(CLUSTER, {node.name: {"checkpoints": answer} for node in CLUSTER.nodes})
    seen: list[Event] = []
    resumed(before, now, pool, emit=seen.append)
    said = [event.text for event in seen if isinstance(event, Notice)]
    whose = "taken from the inventory, because the run was launched without them"
    assert said == [f"{name}: {whose}" for name in asked]


def test_a_word_that_is_no_checkpoint_is_refused_before_anyone_is_asked() -> None:
    pool = FakePool(CLUSTER, {})
    job = replace(CLUSTER.job, resume_args=("--from", "{checkpoint}"))
    before = replace(BEFORE, cluster=replace(CLUSTER, job=job))
    with pytest.raises(UsageError, match="found an empty word"):
        resumed(before, CLUSTER, pool, checkpoint=" ")
    assert pool.requests == []


def test_a_url_goes_to_a_training_that_verifies_it_and_is_looked_at_before_the_start() -> None:
    url = "s3://bucket/run/step-000120"
    job = replace(
        CLUSTER.job, command=("-m", "train"), resume_args=("--from", "{checkpoint}"),
        check=("-m", "train", "--check"),
    )  # fmt: skip
    before = replace(BEFORE, cluster=replace(CLUSTER, job=job), options={})
    again, wanted = resumed(before, CLUSTER, FakePool(CLUSTER, {}), checkpoint=url)
    assert again.job.command == ("-m", "train", "--from", url)
    assert wanted.resumed
    assert (wanted.resumed.checkpoint, wanted.resumed.step) == (url, 120)
    assert again.job.check == job.check, "what is recorded names no checkpoint"
    looked = stored.with_look(again.job, wanted.resumed)
    assert looked.check == ("-m", "train", "--from", url, "--check")
    local = replace(wanted.resumed, checkpoint="/out/step-7")
    assert stored.with_look(again.job, local) == again.job


@pytest.mark.parametrize(
    ("command", "url", "words"),
    [
        (("train.py",), "s3://bucket/run/latest", "expected a job that downloads and verifies it"),
        (("-m", "train"), "s3://key:secret@bucket/run", "without a user and password"),
    ],
)
def test_a_url_for_a_job_that_cannot_verify_it_is_refused(
    command: tuple[str, ...], url: str, words: str
) -> None:
    job = replace(CLUSTER.job, command=command, resume_args=())
    before = replace(BEFORE, cluster=replace(CLUSTER, job=job), options={})
    with pytest.raises(UsageError, match=words) as caught:
        resumed(before, before.cluster, FakePool(CLUSTER, {}), checkpoint=url)
    assert "secret" not in f"{caught.value} {caught.value.hint}"


@pytest.mark.parametrize(
    ("name", "args", "warned"),
    [
        ("step20_rank0.pt", ("--from", "{checkpoint}"), True),
        ("step20_rank0.pt", ("--step", "{checkpoint_step}"), False),
        ("step20.pt", ("--from", "{checkpoint}"), False),
    ],
)
def test_the_file_of_one_rank_is_warned_of_where_each_rank_gets_its_path(
    name: str, args: tuple[str, ...], *, warned: bool
) -> None:
    cluster = replace(CLUSTER, job=replace(CLUSTER.job, resume_args=args))
    found = {**CHECKPOINT, "name": name, "path": f"/out/{name}"}
    answer = [Message({"candidates": [found], "knows": True})]
    pool = FakePool(CLUSTER, {node.name: {"checkpoints": answer} for node in CLUSTER.nodes})
    events: list[Event] = []
    before = replace(BEFORE, cluster=cluster)
    resumed(before, cluster, pool, checkpoint=f"/out/{name}", emit=events.append)
    told = [one for one in events if isinstance(one, Notice) and "file of one rank" in one.text]
    assert bool(told) is warned


def test_variables_from_the_shell_are_taken_over_by_name() -> None:
    before = replace(BEFORE, options=plain(Options(env_from=("HF_TOKEN",))))
    taken = resume._taken_over(before, Options(env_from=("KEY", "HF_TOKEN")))
    assert taken.env_from == ("HF_TOKEN", "KEY")
