"""`status` on real hosts: of several live runs all are shown, each with its own checkpoints."""

from __future__ import annotations

import re
import shlex

import pytest

from tests.cli.runs import Project, checkpoint

pytestmark = pytest.mark.netns


@pytest.mark.soak  # test_status_and_stop.py, test_notice_sharing.py
def test_status_without_a_name_shows_every_live_run_and_what_it_printed(project: Project) -> None:
    project.inventory.write_text(project.inventory.read_text() + "job:\n  checkpoints: ckpt\n")
    words = ("--detach", "--no-check", "--env", "STEPS=6000")
    launched = []
    for node in ("node1", "node2"):
        launched.append(project.launch(*words, "--nodes", node, "--", "job.py"))
        project.wait_for(launched[-1].stdout.strip(), "running")
    runs = [answer.stdout.strip() for answer in launched]
    warning = f"{runs[0]} is running, and writes its checkpoints to ckpt, too"
    assert [warning in " ".join(answer.stderr.split()) for answer in launched] == [False, True]
    shown = project.run("status")
    assert shown.returncode == 0, shown.stderr
    assert all(run in shown.stdout for run in runs)
    assert shown.stdout.count("  command  job.py") == 2
    assert re.search(r"printed  \d+ s ago.*: \[node\d:0\] rank 0 step \d", shown.stdout)
    assert re.search(r"progress step \d", shown.stdout)

    # Both nodes see one folder, and neither knows of the other's run.
    (project.placed / "ckpt").mkdir()
    (project.placed / "ckpt" / "step-5.safetensors").write_bytes(b"\x02" + bytes(7) + b"{}")
    assert [project.status(run)["checkpoint"] for run in runs] == [None, None]
    checkpoint(project.placed / "ckpt", 7, runs[0])
    first, second = (project.status(run)["checkpoint"] for run in runs)
    assert (first["step"], first["run"], second) == (7, runs[0], None)
    refused = project.run(
        "resume", runs[1], "--checkpoint", "latest", "--", "job.py", "{checkpoint}"
    )
    assert f"step-000007: {runs[1]} did not write it ({runs[0]} wrote it)" in refused.stderr

    for typed, last in ((["status", "--json"], []), (["stop", "--grace", "1"], ["--all"])):
        verb, *flags = typed
        refused = project.run(*typed)
        assert refused.returncode == 2
        named = [each.removeprefix("hint: ") for each in refused.stderr.splitlines()[1:]]
        assert sorted(named) == sorted(
            f"clusterctl {shlex.join((verb, each, *flags))}" for each in (*runs, *last)
        )
        for hint in named:
            assert project.run(*shlex.split(hint)[1:]).returncode == 0
