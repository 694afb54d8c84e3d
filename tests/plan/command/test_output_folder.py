"""The folder that a command names for its output."""

from __future__ import annotations

import pytest

from clusterctl.inventory.cluster import Job
from clusterctl.plan.command.output_folder import own_folder
from clusterctl.plan.run_names import fill_job


@pytest.mark.parametrize(
    ("command", "folder"),
    [
        ("t.py --out out/a", "out/a"),
        ("t.py --output_dir=./out/a/", "out/a"),
        ("-m t hydra.x=1 save_dir=out/a/b", "out/a/b"),
        ("t.py --ckpt-dir out/a --out-dir out/a", "out/a"),
        ("t.py --out 'out/{run}'", "out/lab-1"),
        # No folder, or none below the job's, or more than one.
        ("t.py --out out", "out"),
        ("t.py --out other/out/a", "out"),
        ("t.py --out output/a", "out"),
        ("t.py --out out/log.txt", "out"),
        ("t.py --checkpoint out/a/step_20 --save out/epoch3", "out"),
        ("t.py --resume out/a --data out/b", "out"),
        ("t.py --out-dir out/logs --ckpt-dir out/a", "out"),
        ("t.py --out", "out"),
        ("t.py --save all", "out"),
    ],
)
def test_a_run_has_the_folder_of_its_own_that_its_command_names(command: str, folder: str) -> None:
    words = tuple(command.replace("'", "").split())
    assert fill_job(Job(command=words, checkpoints="out"), "lab-1", "").checkpoints == folder
    assert own_folder(Job(command=words)) is None
