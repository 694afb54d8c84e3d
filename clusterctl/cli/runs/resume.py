"""`clusterctl resume`: launch a run's job again from a checkpoint that is verified first."""

import argparse
import shlex
from functools import partial
from pathlib import Path

from clusterctl.api.flags import launch_options
from clusterctl.api.session import Session
from clusterctl.cli.runs.launch import refusals, start
from clusterctl.cli.shared.following import make_display
from clusterctl.cli.shared.hint_commands import with_run
from clusterctl.cli.shared.launch_options import add_options, launch_flags, warn_of_flags
from clusterctl.cli.shared.run_option import (
    WHICH_TO_CHANGE,
    add_word,
    known_cluster,
    own_cluster,
    to_resume,
)
from clusterctl.cli.shared.submit import submit_and_follow, submits
from clusterctl.inventory.load import DEFAULT
from clusterctl.verbs.events import Notice
from clusterctl.verbs.resume import planned
from clusterctl.verbs.runs.records import Records


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_word(parser, WHICH_TO_CHANGE, omitted="the newest")
    parser.add_argument(
        "--checkpoint",
        required=True,
        metavar="PATH|latest",
        help="the checkpoint to resume from; of train/ also a URL, such as s3://bucket/run/latest",
    )
    add_options(parser)
    parser.epilog = (
        "A command after -- replaces the job's; {checkpoint} in it is the checkpoint's path,\n"
        "{checkpoint_step} its step. Without one of them, job.resume_args are added to it."
    )


def run(args: argparse.Namespace) -> int:
    """Launch again; exit codes as `launch`."""
    warn_of_flags(args.command)
    display = make_display(as_json=args.json)
    flags = launch_flags(args, display.quiet)
    with refusals(display):
        records = Records()
        own = own_cluster(args) if args.run else known_cluster(args, records).name
        before = records.to_resume(args.run, own)
        here = str(Path.cwd())
        if before.source not in {"", here} and Path(DEFAULT).exists():
            which = "" if args.run else " is the newest run of the cluster; it"
            text = f"{before.run}{which} was launched in {before.source}"
            hint = "another run: clusterctl runs"
            if args.run and not args.no_sync:
                text += f", and gets the code of {here} now"
                hint = f"cd {shlex.quote(before.source)}, or --no-sync for the code on the nodes"
            display.show(Notice(text=text, hint=hint, level="warning"))
        cluster = to_resume(args, before)
        if submits(args, cluster):
            # Hours later the word, or none, may mean another run.
            args.words = with_run(args.words, args.run, before.run)
            options = launch_options(args.command, flags)
            judge = partial(
                planned, before, launch=options, checkpoint=args.checkpoint, emit=lambda _: None
            )
            return submit_and_follow(args, cluster, options.overrides, judge)
        with Session(cluster, accept_new=args.accept_new, fanout=args.fanout) as session:
            run = before.run if args.run else None  # then the nodes are asked for a later one
            which, command = args.checkpoint, args.command
            plan = partial(session.plan, command, run=run, checkpoint=which, **flags)
            launch = partial(session.resume, run, checkpoint=which, command=command, **flags)
            return start(args, display, plan, launch)
