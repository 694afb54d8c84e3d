"""Whether each node can start the job's container, from the same image."""

import re
import shlex
from collections.abc import Iterator

from clusterctl.checks.finding import Finding, fail, warn
from clusterctl.checks.others import other_version, outliers
from clusterctl.checks.registry import Check, Facts
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.inventory.cluster import Cluster
from clusterctl.inventory.wrap import Container, read_container

_NO_IMAGE = re.compile(r"no such image|image not known|not found", re.IGNORECASE)


@Check(
    "job.container",
    title="each node has the image of the job's container, in one version",
    why="A container starts on a node only from an image that is there. Ranks from different images"
    " hang or exchange wrong tensors.",
    fix="Pull or load the same image on all nodes, and name it by its digest.",
    source="https://docs.docker.com/reference/cli/docker/image/pull/",
    required_facts=("image",),
    applies=lambda _node, cluster: _container(cluster) is not None,
)
def container(facts: Facts, cluster: Cluster) -> Iterator[Finding]:
    """Look for the image on each node, and compare its ids."""
    wrapped = _container(cluster)
    if wrapped is None:
        return
    program, image = wrapped.program, shlex.quote(wrapped.image)
    pull = f"{program} pull {image} (on the node)"
    for node in facts.values():
        if node.image is None or node.image.id:
            continue
        lacks = _NO_IMAGE.search(node.image.problem)
        yield fail(
            node.node,
            f"the node has no image {image}" if lacks else f"{program} cannot be used on the node",
            wanted=f"{program} and the image {image}",
            found=node.image.problem or f"no program {program}",
            remedy=pull if lacks else _make_usable(node, program),
        )
    ids = {node.node: node.image.id for node in facts.values() if node.image and node.image.id}
    for name, found, usual in outliers(ids):
        yield other_version("fail", name, "the image", found, usual, pull)


@Check(
    "job.container-gpus",
    title="a reload of systemd leaves the container its GPUs",
    why="If systemd manages the container's cgroup, any `systemctl daemon-reload` sets its devices"
    " again, also one by apt. GPUs without a link in /dev/char are lost then: `Failed to initialize"
    " NVML: Unknown Error`, hours after the start.",
    fix="Create the links after each boot, by the udev rule on NVIDIA's page.",
    source="https://github.com/NVIDIA/nvidia-container-toolkit/issues/48",
    explained_by=("job.container",),
    blocks=False,
    applies=lambda node, cluster: bool(
        node.image is not None and node.image.id and cluster.node(node.node).gpus_wanted != 0
    ),
)
def container_gpus(node: NodeFacts, cluster: Cluster) -> Iterator[Finding]:
    """Judge the driver of the cgroups, and the links."""
    lost = node.image is not None and node.image.revoked
    if lost and cluster.node(node.node).gpus_wanted != 0:
        yield warn(
            node.node,
            "a reload of systemd would take the GPUs from the running container",
            wanted="links such as /dev/char/195:255, or cgroups that systemd does not manage",
            found="the cgroup driver systemd, and no such links",
            remedy="sudo nvidia-ctk system create-dev-char-symlinks --create-all (on the node)",
        )


def _make_usable(node: NodeFacts, program: str) -> str:
    if node.image is None or not node.image.installed:
        return f"install {program} on the node"
    if "denied" in node.image.problem:
        return f"sudo usermod -aG {program} {shlex.quote(node.user or '$USER')} (on the node)"
    return f"sudo systemctl start {program} (on the node)"


def _container(cluster: Cluster) -> Container | None:
    """Return the container, if its image is not a file."""
    found = read_container(cluster.job.wrap)
    return found if found is not None and found.docker_like else None
