"""The command that starts a container around the job: what `job.wrap` says, and what a run needs.

The node replaces `{workdir}`, `{home}`, `{uid}` and `{gid}`. Variables pass by their names only,
so that no secret is in an argument.
"""

import itertools
import posixpath
from collections.abc import Iterator, Sequence

from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.inventory.cluster import Cluster
from clusterctl.inventory.wrap import Container, mount_targets, read_container
from clusterctl.plan.run_names import before_names

RUN_LABEL = "clusterctl.run"
NODE_LABEL = "clusterctl.node"
_RANK_VARIABLES = ("RANK", "LOCAL_RANK", "ROLE_RANK")
_STAMPS = ("CLUSTERCTL_RUN_ID", "CLUSTERCTL_NODE", "CLUSTERCTL_LOCK", "CLUSTERCTL_ATTEMPT")
_SESSION_VARIABLES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
"""What the node's own session may say about its GPUs."""


def run_words(
    container: Container,
    facts: NodeFacts,
    *,
    run: str,
    node: str,
    gpus: bool,
    folders: Sequence[str],
    variables: Sequence[str],
) -> tuple[str, ...]:
    """Return the words in front of a command of a run.

    Args:
        container: what the inventory says; its own options win.
        facts: of the node.
        run: the run's id, by which its containers are found.
        node: the node's name.
        gpus: the run uses GPUs.
        folders: what must be there at the same path, besides the working folder.
        variables: names of what the job's environment has.
    """
    names = dict.fromkeys((*_STAMPS, *_RANK_VARIABLES, *_SESSION_VARIABLES, *variables))
    vendor = _vendor(facts) if gpus else ""
    mounts = tuple(_missing(container, folders))
    if not container.docker_like:
        options = _apptainer_options(container, vendor, mounts)
        return (*container.before, *options, *container.after)
    return (
        *container.before,
        *_docker_options(container, facts, vendor),
        f"--label={RUN_LABEL}={run}",
        f"--label={NODE_LABEL}={node}",
        *(() if container.has("--workdir") else ("--workdir={workdir}",)),
        *map(_mount, mounts),
        *(f"--env={name}" for name in names),
        *container.after,
    )


def question_words(container: Container, vendor: str = "") -> tuple[str, ...]:
    """Return the words in front of a question to the job's interpreter.

    `vendor`: of the GPUs that it must see, `nvidia` or `amd`; empty: it needs none.
    """
    if not container.docker_like:
        return (*container.before, *_apptainer_gpus(container, vendor), *container.after)
    options = (*_always(container), *_gpu_options(container, vendor))
    return (*container.before, *options, *container.after)


def trial_words(cluster: Cluster, facts: NodeFacts, variables: Sequence[str]) -> tuple[str, ...]:
    """Return the words in front of what `check` tries on a node as the job would run it."""
    container = read_container(cluster.job.wrap)
    if container is None:
        return ()
    return run_words(
        container,
        facts,
        run="check",
        node=facts.node,
        gpus=True,
        folders=folders_of(cluster),
        variables=variables,
    )


def image_words(container: Container) -> tuple[str, ...]:
    """Return what prints the id of the image, by which nodes are compared."""
    if not container.docker_like:
        return ()
    words = ("image", "inspect", "--format", "{{.Id}}", container.image)
    return (*container.before[:-1], *words)


def folders_of(cluster: Cluster, *others: str) -> tuple[str, ...]:
    """Return what a job expects at the same path inside: shared paths, its data, and others.

    Relative paths are below the working folder. Of a pattern it is the folder before it.
    """
    job = cluster.job
    written = [before_names(job.checkpoints)] if job.checkpoints else []
    paths = (*cluster.shared, *job.needs, *written, *others)
    whole = (path.replace("~", "{home}", 1) if path.startswith("~/") else path for path in paths)
    return tuple(_before_pattern(path) for path in whole if path.startswith(("/", "{home}/")))


def _before_pattern(path: str) -> str:
    parts = path.split("/")
    kept = itertools.takewhile(lambda part: not set(part) & set("*?["), parts)
    return "/".join(kept) or "/"


def _vendor(facts: NodeFacts) -> str:
    if facts.gpus is None or not facts.gpus.devices:
        return ""
    return "amd" if facts.gpus.tool == "amd-smi" else "nvidia"


def _docker_options(container: Container, facts: NodeFacts, vendor: str) -> Iterator[str]:
    yield from _always(container)
    # NCCL and Gloo need the node's addresses; ranks of a node share memory; and the supervisor
    # knows a rank by the pid that the node sees.
    for names in (("--network", "--net"), ("--ipc",), ("--pid",)):
        if not container.has(*names):
            yield f"{names[0]}=host"
    if facts.uid and container.program != "podman" and not container.has("--user", "-u"):
        # Else it would leave files of root behind. Podman without root maps its own user.
        yield from ("--user={uid}:{gid}", "--env=HOME={workdir}")
    yield from _gpu_options(container, vendor)
    if vendor and facts.rdma and not container.has("--device"):
        yield from ("--device=/dev/infiniband", "--ulimit=memlock=-1", "--cap-add=IPC_LOCK")


def _always(container: Container) -> Iterator[str]:
    if not container.has("--rm"):
        yield "--rm"
    if not container.has("--pull"):
        yield "--pull=never"  # a node that pulls gigabytes looks like one that hangs


def _gpu_options(container: Container, vendor: str) -> Iterator[str]:
    if not vendor or container.has("--gpus", "--runtime", "--device"):
        return
    if vendor == "amd":
        yield from ("--device=/dev/kfd", "--device=/dev/dri")
    else:
        yield "--device=nvidia.com/gpu=all" if container.program == "podman" else "--gpus=all"


def _apptainer_options(container: Container, vendor: str, mounts: Sequence[str]) -> Iterator[str]:
    if not {"--pwd", "--cwd"} & set(container.after):
        yield from ("--pwd", "{workdir}")
    for path in mounts:
        yield from ("--bind", path)
    yield from _apptainer_gpus(container, vendor)


def _apptainer_gpus(container: Container, vendor: str) -> Iterator[str]:
    flag = {"nvidia": "--nv", "amd": "--rocm"}.get(vendor)
    if flag and not {flag, "--nvccli"} & set(container.after):
        yield flag


def _missing(container: Container, folders: Sequence[str]) -> Iterator[str]:
    """Yield what is to be mounted: no path that the options mount, and none inside another."""
    there = mount_targets(container)
    wanted = {posixpath.normpath(path) for path in folders} - there
    yield "{workdir}"
    for path in sorted(wanted):
        if not any(path != other and path.startswith(f"{other}/") for other in wanted):
            yield path


def _mount(path: str) -> str:
    """Return the option for one path; unlike `--volume`, it makes no folder that is missing."""
    # The option is a line of CSV, so a path with a comma or a quote needs quotes.
    fields = (f"source={path}", f"target={path}")
    quoted = (
        '"' + field.replace('"', '""') + '"' if {",", '"'} & set(field) else field
        for field in fields
    )
    return f"--mount=type=bind,{','.join(quoted)}"
