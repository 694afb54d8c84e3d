"""What is refused before anything is asked of a node."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.errors import UsageError
from clusterctl.inventory.cluster import Cluster
from clusterctl.plan.effective import effective
from clusterctl.plan.options import Options
from clusterctl.verbs.events import Event, Notice, drive
from clusterctl.verbs.launch import validate_job
from tests.verbs.run_answers import CLUSTER


def cluster(**job: object) -> Cluster:
    return replace(CLUSTER, job=replace(CLUSTER.job, **job))  # type: ignore[arg-type]


def test_a_variable_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    given = cluster(env_from=("HF_TOKEN",))
    with pytest.raises(UsageError, match="HF_TOKEN"):
        validate_job.require_secrets(given)
    monkeypatch.setenv("HF_TOKEN", "")
    validate_job.require_secrets(given)


def test_what_the_command_line_sets_is_not_taken_from_the_shell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    options = Options(env=(("HF_TOKEN", "x"),))
    given = effective(cluster(env_from=("HF_TOKEN", "PATH")), options)
    validate_job.require_secrets(given)
    assert given.job.env_from == ("PATH",)


def test_a_script_that_is_not_in_the_folder_is_refused_before_its_folder_is_mirrored(
    tmp_path: Path,
) -> None:
    nodes = tuple(replace(node, workdir="/code") for node in CLUSTER.nodes)
    given = replace(cluster(command=("job.py",)), nodes=nodes)
    with pytest.raises(UsageError, match=r"the script job\.py in .*, found no such file"):
        validate_job.require_script(given, tmp_path)
    for command in (("/opt/job.py",), ("-m", "job")):
        validate_job.require_script(
            replace(given, job=replace(given.job, command=command)), tmp_path
        )
    (tmp_path / "job.py").touch()
    validate_job.require_script(given, tmp_path)


def test_a_script_without_a_folder_for_it_on_the_nodes_is_refused(tmp_path: Path) -> None:
    given = cluster(command=("job.py",))
    nodes = tuple(replace(node, workdir=None) for node in given.nodes)
    validate_job.require_script(replace(given, nodes=nodes), tmp_path)  # the nodes may have it
    (tmp_path / "job.py").touch()
    with pytest.raises(UsageError, match="workdir: expected the folder on the nodes") as caught:
        validate_job.require_script(replace(given, nodes=nodes), tmp_path)
    assert "--workdir DIR" in str(caught.value.hint)


Notices = Callable[[Cluster, Path], Generator[Event, None, None]]
NESTED = "cd src\nexport A=1\nCUDA_VISIBLE_DEVICES=0 \\\n  torchrun --nproc_per_node=1 train.py\n"


def noticed(
    given: Cluster, folder: Path, notice: Notices = validate_job.notice_launcher
) -> list[Notice]:
    said: list[Notice] = []
    drive(
        notice(given, folder),
        lambda event: said.append(event) if isinstance(event, Notice) else None,
    )
    return said


def test_a_launcher_inside_a_script_is_noticed_with_the_command_to_type(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text(NESTED)
    given = cluster(command=("bash", "train.sh", "--lr", "1"))
    (said,) = noticed(given, tmp_path)
    assert said.text.startswith("train.sh:3: every rank runs this script, and so starts torchrun")
    assert said.hint.endswith("launch --launcher direct --procs-per-node 1 -- bash train.sh --lr 1")
    assert noticed(effective(given, Options(launcher="direct", procs_per_node=1)), tmp_path) == []
    assert noticed(effective(given, Options(procs_per_node=1)), tmp_path)
    assert noticed(cluster(command=("bash", "elsewhere.sh")), tmp_path) == []


def test_a_script_that_assigns_the_rendezvous_is_noticed_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text('import os\nos.environ["MASTER_ADDR"] = "localhost"\n')
    find = validate_job.notice_rendezvous
    (said,) = noticed(cluster(command=("train.py", "--lr", "1")), tmp_path, find)
    assert said.text.startswith("train.py:2: it assigns MASTER_ADDR, which the launcher sets")
    assert said.hint == "remove the line, or use os.environ.setdefault"
    assert noticed(cluster(command=("train.py",), launcher="ray"), tmp_path, find) == []
    assert noticed(cluster(command=("-m", "train")), tmp_path, find) == []
    assert noticed(cluster(command=("elsewhere.py",)), tmp_path, find) == []


HF = "hf_abcdefghijklmnopqrstuvwxyz012345"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (Options(env=(("HF_TOKEN", "x"),)), ["--env: HF_TOKEN looks like a secret"]),
        (Options(env=(("KEY_FILE", HF),)), ["--env: KEY_FILE looks like a secret"]),
        (Options(env=(("LR", "1"),)), []),
        (Options(env=(("HF_TOKEN", ""),)), []),
        (
            Options(env=(("HF_TOKEN", "x"),), origins={"env.HF_TOKEN": "run lab-1"}),
            ["run lab-1: HF_TOKEN looks like a secret"],
        ),
        (Options(command=("train.py", f"--token={HF}")), ["command: a word looks like a secret"]),
        (Options(command=("train.py", "--token", HF)), ["command: a word looks like a secret"]),
        (Options(command=("train.py", "--token", "x")), []),
    ],
)
def test_what_would_be_recorded_in_clear_is_noticed_wherever_it_comes_from(
    options: Options, told: list[str]
) -> None:
    given = effective(cluster(env=(("API_KEY", "as the inventory has it"),)), options)
    said = list(validate_job.notice_secrets(given))
    assert [notice.text.split(",")[0] for notice in said] == told
    assert {notice.level for notice in said} <= {"warning"}
    assert HF not in repr(said)


def test_a_script_for_sbatch_is_told_from_others(tmp_path: Path) -> None:
    (tmp_path / "job.slurm").write_text("#!/bin/bash\n#SBATCH --nodes=2\nsrun python t.py\n")
    (tmp_path / "job.sh").write_text("echo '#SBATCH'\n# SBATCH\n")
    for command in (("job.slurm",), ("bash", "job.slurm", "x")):
        (notice,) = validate_job.notice_batch(cluster(command=command), tmp_path)
        assert notice.text.startswith("job.slurm:2: a script for sbatch: its #SBATCH lines")
        assert "clusterctl launch --launcher slurm" in notice.hint
        by_slurm = cluster(command=command, launcher="slurm")
        assert not list(validate_job.notice_batch(by_slurm, tmp_path))
    assert not list(validate_job.notice_batch(cluster(command=("bash", "job.sh")), tmp_path))
