"""Which lines of a script take the rendezvous from the launcher, and which do not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.plan.command.entry_script import (
    assigns_local,
    local_endpoints,
    local_rank_flag,
    own_launches,
    rendezvous_assignments,
    submits_jobs,
)

TUTORIAL = """\
import os
import torch.distributed as dist

def setup(rank, world_size):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ['MASTER_PORT'] = '12355'
    dist.init_process_group("nccl", rank=rank, world_size=world_size)

if __name__ == "__main__":
    os.environ.update({"RANK": "0", "OMP_NUM_THREADS": "1"}, WORLD_SIZE="1")
"""


def test_the_lines_of_examples_for_one_machine_are_found() -> None:
    assert rendezvous_assignments(TUTORIAL) == (
        (5, "MASTER_ADDR"),
        (6, "MASTER_PORT"),
        (10, "RANK"),
        (10, "WORLD_SIZE"),
    )


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ('environ["LOCAL_RANK"] = str(args.local_rank)', "LOCAL_RANK"),
        ('os.putenv("MASTER_PORT", "29500")', "MASTER_PORT"),
        ('os.environ |= {"RANK": "0"}', "RANK"),
        ('with lock:\n    os.environ["RANK"] = "0"', "RANK"),
        ('try:\n    os.environ["RANK"] = "0"\nfinally:\n    pass', "RANK"),
        ('try:\n    pass\nfinally:\n    os.environ["RANK"] = "0"', "RANK"),
    ],
)
def test_each_way_to_assign_is_found(line: str, name: str) -> None:
    assert [found for _, found in rendezvous_assignments(line)] == [name]


@pytest.mark.parametrize(
    "line",
    [
        'os.environ.setdefault("MASTER_ADDR", "localhost")',
        'os.environ["MASTER_ADDR"] = os.environ.get("MASTER_ADDR", "localhost")',
        'os.environ["RANK"] = os.getenv("RANK", "0")',
        'if "RANK" not in os.environ:\n    os.environ["RANK"] = "0"',
        'if args.single:\n    x = 1\nelse:\n    os.environ["RANK"] = "0"',
        'try:\n    r = os.environ["RANK"]\nexcept KeyError:\n    os.environ["RANK"] = "0"',
        'os.environ["NCCL_DEBUG"] = "INFO"',
        'config["MASTER_ADDR"] = "localhost"',
        'address = os.environ["MASTER_ADDR"]',
        'x = {"RANK": 0}',
        'os.environ[name] = "0"',
        "this is no Python",
        "\0",
    ],
)
def test_what_keeps_the_launcher_s_value_is_left_alone(line: str) -> None:
    assert rendezvous_assignments(line) == ()


@pytest.mark.parametrize(
    ("line", "endpoint"),
    [
        ('dist.init_process_group("nccl", "tcp://localhost:23456")', "tcp://localhost:23456"),
        ('init_process_group(init_method="tcp://127.0.0.1:1", rank=r)', "tcp://127.0.0.1:1"),
        ('dist.init_process_group(init_method=f"tcp://localhost:{port}")', "tcp://localhost"),
        (
            'p.add_argument("--dist-url", default="tcp://127.0.0.1:2", help="x")',
            "tcp://127.0.0.1:2",
        ),
        ('dist.init_process_group("nccl", init_method="env://")', ""),
        ('dist.init_process_group("nccl", init_method=args.dist_url)', ""),
        ('p.add_argument("--dist-url", default="tcp://10.0.0.1:23456")', ""),
        ('p.add_argument("--given", default="tcp://127.0.0.1:2")', ""),
        ('p.add_argument(\n    "--given",\n    default="tcp://127.0.0.1:2",\n)', ""),
        ('init_process_group(\n    "nccl",\n    "tcp://[::1]:2",\n)', "tcp://[::1]:2"),
        ('print("tcp://localhost:1")', ""),
        ('dist.init_process_group("nccl")', ""),
        ("this is no Python", ""),
    ],
)
def test_an_endpoint_at_localhost_is_found(line: str, endpoint: str) -> None:
    found = local_endpoints(f"\n{line}", ["--given=env://", "--lr"])
    assert found == (((2, endpoint),) if endpoint else ())


DEEP = "init_process_group('x', " + " + ".join(["'tcp://'"] * 900) + ")"


@given(st.text() | st.sampled_from(["(" * 10_000, "-" * 10_000 + "1", "a." * 10_000 + "a", DEEP]))
def test_no_text_breaks_it(text: str) -> None:
    rendezvous_assignments(text)
    local_endpoints(text)


@pytest.mark.parametrize(
    ("line", "local"),
    [
        ('os.environ["MASTER_ADDR"] = "localhost"', True),
        ("os.environ.update(MASTER_ADDR='127.0.0.1', RANK=str(r))", True),
        ('os.environ |= {"MASTER_ADDR": "::1"}', True),
        ('os.environ["MASTER_ADDR"] = "10.0.0.1"', False),
        ('os.environ["MASTER_ADDR"] = host or "localhost"', False),
        ('os.environ["MASTER_ADDR"] = HOST  # not "localhost"', False),
    ],
)
def test_an_address_of_each_nodes_own_is_told_from_others(line: str, *, local: bool) -> None:
    assert assigns_local(f"import os\n{line}\n", 2) is local


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("LaunchConfig(1, 1, 8)", "--nnodes=1"),
        ("LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=8)", "--nnodes=1"),
        ("LaunchConfig(min_nodes=n, max_nodes=1, nproc_per_node=8)", "--nnodes=1"),
        ("LaunchConfig(1, 4, 8)", "--nnodes=1:4"),
        ("LaunchConfig(n, n, 8, rdzv_backend='c10d')", "--rdzv-endpoint=localhost"),
        ("LaunchConfig(n, n, 8, rdzv_endpoint=f'localhost:{p}')", "--rdzv-endpoint=localhost:"),
        ("LaunchConfig(n, n, 8, rdzv_backend='c10d', rdzv_endpoint=e)", "--rdzv-endpoint=$"),
        ("LaunchConfig(**options)", ""),
        ("notebook_launcher(f, num_processes=8)", "--nnodes=1 --master-addr=127.0.0.1"),
        ("notebook_launcher(f, **options)", ""),
        ("torch.distributed.run.main(['--standalone', x])", "--standalone $"),
    ],
)
def test_how_a_program_starts_ranks_itself_is_found(line: str, words: str) -> None:
    text = f"import os\ndef main():\n    x = {line}\n    if debug:\n        LaunchConfig(1, 1, 1)"
    ((number, _, found),) = own_launches(text)
    assert (number, " ".join(found)) == (3, words)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a('--local_rank', type=int)\ndevice = args.local_rank\n", 1),
        ("\na('--local-rank')\nset_device(args.local_rank)\n", 2),
        ("a('--local_rank')\nos.environ['LOCAL_RANK']; args.local_rank\n", 0),
        ("a('--local_rank')\nargs.local_rank = rank()\n", 0),
        ("a('--local_rank')\n", 0),  # what it imports may read LOCAL_RANK
    ],
)
def test_a_flag_that_torchrun_does_not_give_is_found(text: str, line: int) -> None:
    assert local_rank_flag(text) == line


def test_a_script_that_submits_jobs_is_found() -> None:
    assert submits_jobs("import submitit\nexecutor.submit(f)\n") == 2
    assert submits_jobs("executor.submit(f)  # of concurrent.futures\n") == 0
