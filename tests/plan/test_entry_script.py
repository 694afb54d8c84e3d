"""Which lines of a script take the rendezvous from the launcher, and which do not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.plan.entry_script import local_endpoints, rendezvous_assignments

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
        ('print("tcp://localhost:1")', ""),
        ('dist.init_process_group("nccl")', ""),
        ("this is no Python", ""),
    ],
)
def test_an_endpoint_at_localhost_is_found(line: str, endpoint: str) -> None:
    found = local_endpoints(f"\n{line}", ["--given=env://", "--lr"])
    assert found == (((2, endpoint),) if endpoint else ())


@given(st.text() | st.sampled_from(["(" * 10_000, "-" * 10_000 + "1", "a." * 10_000 + "a"]))
def test_no_text_breaks_it(text: str) -> None:
    rendezvous_assignments(text)
    local_endpoints(text)
