"""Submit a launch or a resume: Slurm runs the same command line inside of the job."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from clusterctl.errors import ClusterError, UsageError
from clusterctl.inventory.cluster import Cluster
from clusterctl.own_files import make_private
from clusterctl.state_folder import ANOTHER_FOLDER
from clusterctl.values import dataclass
from clusterctl.verbs.batch import slurm
from clusterctl.verbs.batch.job import INVENTORY, SCRIPT, SCRIPT_FILE, BatchJob, BatchJobs
from clusterctl.verbs.preflight.source_folder import read_folder
from clusterctl.verbs.runs import run_id
from clusterctl.verbs.runs.records import Records, write_private

RUN_FLAG = "--run-id"
"""The flag by which clusterctl inside of the job learns the run's id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A job that is about to be submitted."""

    run: str
    folder: Path
    argv: tuple[str, ...]
    """The call of sbatch."""
    nodes: str
    """How many it asks for, such as `2` or `2-4`; empty: only their names are given."""


def plan_submission(
    cluster: Cluster,
    words: Sequence[str],
    records: Records,
    *,
    nodes: int | None = None,
    exclude: str | None = None,
) -> Submission:
    """Return the call of sbatch. Pure but for the run's new id.

    Args:
        cluster: its job has the options.
        words: of clusterctl's command line, the verb first.
        records: they know the run's folder.
        nodes: how many, instead of the inventory's number.
        exclude: names of nodes that it must not get, besides those of the inventory.
    """
    options = dict(cluster.job.slurm)
    if nodes is not None:
        options["nodes"] = str(nodes)
    if exclude:
        options["exclude"] = ",".join(filter(None, (options.get("exclude"), exclude)))
    if not options.keys() & {"nodes", "nodelist"}:
        raise UsageError(
            "job.slurm.nodes: expected the number of nodes, found none",
            hint="add `slurm: {nodes: 2}` to job: in the inventory, or type --nodes 2",
        )
    run = run_id.make_run_id(cluster.name)
    folder = records.folder(cluster.name, run)
    given = [f"--{name}" + (f"={value}" if value else "") for name, value in options.items()]
    argv = (
        "sbatch",
        "--parsable",
        f"--job-name={options.pop('job-name', cluster.name)}",
        # One clusterctl starts all ranks itself: Slurm must not start it again by itself.
        "--no-requeue",
        f"--chdir={Path.cwd()}",
        f"--output={folder}/out",
        f"--error={folder}/err",
        *(word for word in given if not word.startswith("--job-name=")),
        str(folder / SCRIPT_FILE),
        str(folder),
        *(sys.executable, "-u", "-m", "clusterctl", words[0], RUN_FLAG, run, *words[1:]),
    )
    return Submission(run=run, folder=folder, argv=argv, nodes=options.get("nodes", ""))


def sharing(cluster: Cluster, records: Records, jobs: BatchJobs, source: Path) -> list[str]:
    """Return the live runs that have other code in the workdir, which the job will change there.

    On a filesystem that all nodes share, none of the job's own nodes tells of them.
    """
    all_jobs = jobs.all(cluster.name)
    live = [batch.run for batch in all_jobs if jobs.started(batch) and jobs.live(batch)]
    now = read_folder(cluster, source) if live else None
    workdirs = {node.workdir for node in cluster.nodes}
    known = [record for run in live if (record := records.with_id(run)) and record.tree]
    return [
        record.run
        for record in known
        if now is not None
        and record.tree != now.tree
        and workdirs & {node.workdir for node in record.cluster.nodes}
    ]


def submit(
    cluster: Cluster,
    submission: Submission,
    jobs: BatchJobs,
    inventory: bytes,
    *,
    command: Sequence[str],
    name: str,
) -> BatchJob:
    """Write the script, submit it, and keep what was submitted; the inventory as it is now."""
    folder = submission.folder
    script, kept = folder / SCRIPT_FILE, folder / INVENTORY
    try:
        make_private(folder.parent.parent, folder.parent, folder)
        write_private(script, SCRIPT)
        write_private(kept, inventory.decode("utf-8", "surrogateescape"))
    except OSError as error:
        hint = getattr(error, "hint", "") or ANOTHER_FOLDER
        raise ClusterError(f"cannot write {folder}: {error.strerror}", hint=hint) from error
    try:
        job = slurm.submit(submission.argv)
    except ClusterError:
        script.unlink()
        kept.unlink()
        folder.rmdir()
        raise
    batch = BatchJob(
        run=submission.run,
        cluster=cluster.name,
        job=job,
        began=time.time(),
        command=tuple(command),
        name=name,
    )
    jobs.write(batch)
    return batch
