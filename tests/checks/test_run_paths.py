"""Which paths of a job's command are looked for on the nodes."""

from __future__ import annotations

import pytest

from clusterctl.checks.storage.run_paths import command_paths
from clusterctl.inventory.cluster import Cluster, Job, Node, Ssh

NODE = Node(host="a", name="a", ssh=Ssh(), workdir="/job")


@pytest.mark.parametrize(
    ("command", "paths"),
    [
        ("train.py --data /data/a.txt /data/b.txt", ("/data/a.txt", "/data/b.txt")),
        ("train.py --model=/models/x/ data/a.txt", ("/models/x",)),
        ("train.py --out /big/out --save-dir=/big/s --ckpt_path /big/c", ()),
        ("train.py --verbose=1 /data/a.txt /data/a.txt", ("/data/a.txt",)),
        ("/job/run.sh /job /jobs/x --resume /ckpt/step-1 /needed/x", ("/jobs/x",)),
        ("train.py --url s3://x --rate 1/2", ()),
    ],
)
def test_paths_that_the_program_reads_are_looked_for(command: str, paths: tuple[str, ...]) -> None:
    job = Job(command=tuple(command.split()), checkpoints="/ckpt", needs=("/needed",))

    assert command_paths(Cluster(name="lab", nodes=(NODE,), job=job), NODE) == paths


def test_in_a_container_a_path_of_the_command_is_another_file() -> None:
    job = Job(command=("train.py", "/data/a.txt"), wrap=("docker", "run", "image"))

    assert command_paths(Cluster(name="lab", nodes=(NODE,), job=job), NODE) == ()
