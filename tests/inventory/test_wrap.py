"""`job.wrap`: where a container's options end, and what it may not be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.inventory.wrap import mount_targets, read_container, wrap_problems


@pytest.mark.parametrize(
    ("words", "image"),
    [
        ("docker run trainer:1", "trainer:1"),
        ("docker run --rm --gpus all trainer:1", "trainer:1"),
        ("docker run --gpus=all -v /a:/a -e A=1 trainer:1 entry", "trainer:1"),
        ("docker --context far run -iv /a:/a trainer:1", "trainer:1"),
        ("/usr/bin/docker run --privileged --name x trainer:1", "trainer:1"),
        ("podman run --tls-verify=false trainer:1", "trainer:1"),
        ("apptainer exec --nv /images/trainer.sif", "/images/trainer.sif"),
        ("docker run --gpus", ""),
    ],
)
def test_the_image_is_the_first_word_that_belongs_to_no_option(words: str, image: str) -> None:
    container = read_container(words.split())
    assert container is not None
    assert container.image == image


def test_other_programs_are_no_containers() -> None:
    assert read_container(["nsys", "profile"]) is None
    assert read_container([]) is None
    assert list(wrap_problems(["nsys", "profile", "--detach"])) == []


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("docker run -it trainer:1", "--tty"),
        ("docker run --detach trainer:1", "--detach"),
        ("docker run -dv /a:/a trainer:1", "--detach"),
        ("docker exec trainer", "trainer"),
        ("docker run --gpus all", "none"),
        ("apptainer exec", "none"),
        ("apptainer run trainer.sif", "trainer.sif"),
        ("apptainer exec --cleanenv trainer.sif", "--cleanenv"),
    ],
)
def test_what_cannot_carry_a_job_is_a_problem_of_the_inventory(words: str, found: str) -> None:
    assert [each for _, each in wrap_problems(words.split())] == [found]


def test_paths_that_the_options_mount() -> None:
    words = "docker run -v /a:/in:ro --volume=/b --mount type=bind,src=/c,dst=/d/ trainer:1"
    container = read_container(words.split())
    assert container is not None
    assert mount_targets(container) == {"/in", "/b", "/d"}


@given(st.lists(st.sampled_from(["-", "--", "-it", "--gpus", "all", "--env=A", "-e", "image", ""])))
def test_any_words_after_run_are_read(words: list[str]) -> None:
    container = read_container(["docker", "run", *words])
    assert container is not None
    assert container.after == tuple(words)
    list(wrap_problems(["docker", "run", *words]))
