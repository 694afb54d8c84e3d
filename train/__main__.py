"""The command `python -m train`: arguments in, an exit code out, the outcome in status.json."""

from __future__ import annotations

import gc
import os
import platform
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NoReturn

from train import errors, versions
from train.checkpoint import manifest
from train.config.config import Config
from train.config.parse import Arguments, parse
from train.data import hub
from train.distributed.env import RankEnv
from train.errors import ConfigError, LauncherEnvError
from train.lifecycle import run_lock, status
from train.lifecycle.signals import EarlySignals, Stopped
from train.lock import Lock


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the arguments ask for; return the exit code (see `train.errors`)."""
    try:
        arguments = parse(sys.argv[1:] if argv is None else argv)
        if arguments.mode == "train":
            return train(arguments.config(), notes=arguments.notes)
        with uncollected():
            return inspect(arguments)
    except (ConfigError, LauncherEnvError) as error:
        print(f"error: {error}", file=sys.stderr)
        return errors.USAGE


@contextmanager
def uncollected() -> Iterator[None]:
    """Import libraries without garbage collection, which takes a quarter of that time.

    What is imported stays until the process ends: later collections skip it, those at exit too.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def inspect(arguments: Arguments) -> int:
    """Print what was asked for; the reader may end early, as `| head` does."""
    try:
        if arguments.mode == "check":
            from train.preflight import main as check

            return check(arguments.config(), arguments.notes)
        if arguments.mode == "version":
            from train.checkpoint import provenance

            # A copy of train/ has no number of its own.
            found = {"python": platform.python_version(), **versions.installed()}
            packages = ", ".join(f"{name} {version}" for name, version in found.items())
            print(f"train {provenance.code()[:12]} ({Path(__file__).parent}), {packages}")
            return errors.DONE
        if arguments.mode == "show-sample":
            from train.data.show_sample import main as show

            return show(arguments.config(), arguments.sample)
        from train.tools.smoke import main as smoke

        return smoke(arguments)
    except BrokenPipeError:
        # Python would flush what is left into it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return errors.UNEXPECTED


def train(
    config: Config,
    env: RankEnv | None = None,
    *,
    rendezvous: str | None = None,
    notes: Sequence[str] = (),
) -> int:
    """Train as configured; rank 0 writes a status.json however it ends.

    This process's place and the ranks' meeting point come from the environment if None; `notes` are
    what rank 0 prints about the configuration.
    """
    output = Path(config.output_dir)
    try:
        env = env or RankEnv.from_environment()
        state = status.Status(output, rank=env.rank)
        with ExitStack() as stack:
            early_signals = stack.enter_context(
                EarlySignals(lambda name: state.set("preempted", name))
            )
            if env.rank == 0:
                stack.callback(run_lock.take(output))
                for note in notes:
                    print(note, file=sys.stderr)
            return _train(config, env, state, early_signals, rendezvous)
    except Stopped:  # before this run had the folder: no status.json
        return errors.DONE
    except (ConfigError, LauncherEnvError) as error:
        print(f"error: {error}", file=sys.stderr)
        return errors.USAGE


def _train(
    config: Config,
    env: RankEnv,
    state: status.Status,
    early_signals: EarlySignals,
    rendezvous: str | None,
) -> int:
    """Train in a folder that no other run uses."""
    state.step = last_step(config)
    try:
        # First: an earlier run's status.json must not count as this one's.
        state.set("starting")
        versions.refuse_older()
        hub.settle(config)
        # After settle: transformers reads the hub's variables when it is imported.
        with uncollected():
            from torch.distributed.elastic.multiprocessing.errors import record

            from train.run import run

        record(run)(config, env, state, early_signals, rendezvous=rendezvous)
    except Stopped as stopped:
        state.set("preempted", str(stopped))
        print(f"preempted at step {state.step}: {stopped}", flush=True)
    except ModuleNotFoundError as error:
        state.set("failed", str(error))
        package = str(error.name).partition(".")[0]
        hint = versions.install(**{package: ""})
        print(f"error: {error}: every node needs it\nhint: {hint}", file=sys.stderr)
        return errors.USAGE
    except BaseException as error:  # a second Ctrl-C too
        state.set("failed", errors.reason(error))
        code = errors.exit_code(error)
        if code is None:
            raise
        print(f"error: {error}", file=sys.stderr)
        return code
    return errors.DONE


def last_step(config: Config) -> int:
    """Return the step of the checkpoint that a run will probably resume from."""
    wanted = config.resume_from_checkpoint
    if wanted == "latest":
        return manifest.newest_step(Path(config.output_dir))
    return (wanted and manifest.step_of(Path(wanted))) or 0


def exit_with(work: Callable[[], int]) -> NoReturn:
    """Do the work and exit with its code; after a failure at once, if there are process groups.

    Python's own way out would destroy them, and NCCL then waits for ranks that wait for this one.
    """
    try:
        code = work()
    except KeyboardInterrupt:  # it has printed what is lost
        code = -signal.SIGINT
    except Exception as error:
        if not groups_exist():
            raise
        sys.excepthook(type(error), error, error.__traceback__)
        code = errors.UNEXPECTED
    if code < 0 or (code and groups_exist()):
        sys.stdout.flush()
        sys.stderr.flush()
        Lock.release_all()
        if code < 0:  # as Python itself ends after Ctrl-C: a shell then stops its script
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.raise_signal(signal.SIGINT)
        os._exit(code)
    sys.exit(code)


def groups_exist() -> bool:
    """Return whether this process belongs to process groups; after success it has left them."""
    distributed = sys.modules.get("torch.distributed")
    return bool(distributed and distributed.is_initialized())


if __name__ == "__main__":
    exit_with(main)
