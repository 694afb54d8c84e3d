"""A setting's remedy names the place that sets it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterctl.checks.software.settings import remove_from, settings_of
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.network.choice import choose_network
from tests.verbs.run_answers import CLUSTER

NODE = NodeFacts(node="a", environment=())


@pytest.mark.parametrize(
    ("origins", "remedy"),
    [
        ((), "remove NCCL_DEBUG from job.env in hosts.yaml"),
        ((("env.NCCL_DEBUG", "--env"),), "leave out --env NCCL_DEBUG"),
        (
            (("env.NCCL_DEBUG", "run lab-1"),),
            "launch without NCCL_DEBUG, which comes from run lab-1",
        ),
    ],
)
def test_a_variable_of_the_job_is_removed_where_it_was_set(
    origins: tuple[tuple[str, str], ...], remedy: str
) -> None:
    job = replace(CLUSTER.job, env=(("NCCL_DEBUG", "INFO"),))
    cluster = replace(CLUSTER, job=job, origins=origins)
    network = choose_network(cluster, {"a": NODE})
    (setting,) = settings_of(NODE, network, cluster)
    assert remove_from(setting) == remedy
