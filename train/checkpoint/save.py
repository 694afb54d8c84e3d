"""Checkpoints: written aside by all ranks, sealed, agreed on, and loaded on any number of ranks."""

from __future__ import annotations

import base64
import json
import shlex
import shutil
import sys
import threading
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.distributed.checkpoint import state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.tensor import DTensor

from train.checkpoint import manifest, room
from train.checkpoint.node_sync import copy_to_nodes, find_storage
from train.checkpoint.staging import Staging
from train.checkpoint.uploads import Uploads
from train.config.config import Config
from train.data.batches import Position
from train.data.fingerprint import nothing
from train.distributed.process_group import Ranks
from train.errors import CheckpointError, ConfigError
from train.files import Entry, measure, write_durably
from train.lifecycle import run_lock
from train.model import export
from train.model.load import base_of
from train.model.loss_scale import LossScale
from train.model.memory import size_in_words
from train.model.model import Model
from train.model.optimizer import Optimizer

T = TypeVar("T")
STATE = "state.json"
SHARDS_OF = "__{rank}_*.distcp"
COPIES = 3
"""A trained weight and its two moments, in the same precision."""
LARGE = 8 << 30
"""Bytes of a checkpoint from which sending it to every node deserves a remark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a training is, on any number of ranks."""

    step: int
    position: Position
    owes_evaluation: bool = False
    """Whether the evaluation after this step was left out because of a stop."""
    loss_scale: LossScale | None = None
    """What the next step multiplies its loss by, in float16."""

    @property
    def updates(self) -> int:
        """How many steps have changed the weights."""
        return self.step - (self.loss_scale.skipped if self.loss_scale else 0)


class Checkpoints:
    """The checkpoints of one run's folder."""

    def __init__(self, config: Config, ranks: Ranks, base: Path, about: Mapping[str, Any]) -> None:
        """Find out how the nodes see the folder; `about` is what state.json keeps of the run."""
        self.about = about
        self._config = config
        self._ranks = ranks
        self._base = base
        self._mark = ranks.broadcast(uuid.uuid4().hex[:8])
        self._pending: tuple[int, Future[str]] | None = None
        self._staging = Staging()
        self._pruning = threading.Lock()
        self.output = Path(config.output_dir)
        self.output.mkdir(parents=True, exist_ok=True)
        self.shared = find_storage(ranks, self.output, config.checkpoint_storage)
        """Whether all nodes see one folder; each has its own otherwise."""
        self.writes = ranks.is_first if self.shared else ranks.is_leader
        """Whether this rank writes what exists once a folder."""
        self.settled = False
        """Whether it is known which history continues."""
        self.adapter: Mapping[str, Any] = {}
        """The adapters' configuration as PEFT saves it, once there is a model."""
        self.last_step: int | None = None
        """The newest step that is known to be on disk, whole."""
        self.resumed: tuple[int, Path] | None = None
        """The checkpoint that this run resumed from."""
        self.uploads: Uploads | None = None
        """What copies whole checkpoints to a store; on rank 0, which has all files."""
        self._release = self._own()
        if self.writes:
            manifest.sweep(self.output)
        ranks.barrier(ranks.storage)  # what is removed there may be much, and its disk slow

    def remarks(self, model: Model) -> tuple[str, ...]:
        """Warn of nodes that have to send each other much with every checkpoint."""
        size = sum(t.numel() * t.element_size() for t in model.trained.values()) * COPIES
        if self.shared or size < LARGE:
            return ()
        found = f"every checkpoint sends {size_in_words(size)} to each node"
        return (
            f"checkpoint_storage: {found}, as each has a folder of its own: a shared one is faster",
        )

    def close(self) -> None:
        """Let other runs use the folder; a removal that is under way ends by itself."""
        self._release()

    def _own(self) -> Callable[[], None]:
        """Own the folders of the other nodes too, if each has one; rank 0 owns its own."""
        release, problem = nothing, None
        if self.writes and not self._ranks.is_first:
            try:
                release = run_lock.take(self.output)
            except ConfigError as error:
                problem = error
        rows = self._ranks.gather((problem.problems, problem.hint) if problem else None)
        for rank, said in enumerate(rows):
            if said:
                where = tuple(f"{self._ranks.hosts[rank]}: {text}" for text in said[0])
                raise ConfigError(*where, hint=said[1])
        return release

    def save(self, progress: Progress, model: Model, optimizer: Optimizer) -> None:
        """Start to write a checkpoint; with async_save off, also end it.

        With async_save what is trained is copied first, so training continues at once. A
        checkpoint that cannot be written is reported and leaves the ones before it as they were.
        """
        self.wait()
        state = trained_state(model, optimizer)
        if self._config.async_save:
            state = self._staging.copy(state)
        rng = random_state(self._ranks.device)
        # In a thread in both cases: a signal's exception must not end one rank's part of it.
        self._pending = progress.step, _in_background(lambda: self._write(state, progress, rng))
        if not self._config.async_save:
            self.wait()

    def wait(self) -> None:
        """Wait for the checkpoint that is being written, if any; `last_step` says if it was."""
        if self._pending is None:
            return
        step, written = self._pending
        self._pending = None
        problem = written.result()
        if not problem:
            self.last_step = step
        elif self._ranks.is_first:
            print(f"checkpoint not written: {problem}", file=sys.stderr)

    def newest(self) -> tuple[int, str]:
        """Return the newest whole checkpoint's step, and what to resume from to have it."""
        if not self.settled:
            return 0, ""
        if self.last_step is None and self.resumed:
            step, folder = self.resumed
            return step, str(folder)
        return self.last_step or 0, "latest"

    def set_aside(self, after: int) -> tuple[str, ...]:
        """Rename what belongs to another history: checkpoints of later steps, and their export.

        Returns:
            Remarks: what was renamed, and how much there is of it by now.
        """
        moved: list[Path] = []
        problem = ""
        target = self._exported()
        try:
            if self.writes and target.exists() and not manifest.is_export(target):
                problem = f"{target}, which no training has written"
            elif self.writes:
                moved = manifest.set_aside(self.output, after, self._mark, self._base)
        except OSError as error:
            problem = str(error)
        if problems := self._ranks.problems(problem):
            message = "output_dir: expected to set another history's checkpoints aside, found "
            raise CheckpointError(f"{message}{problems}\nhint: choose another output_dir")
        remarks = [f"set aside: {path} is not of this history" for path in moved]
        count, size = manifest.ever_set_aside(self.output) if self._ranks.is_first else (0, 0)
        if count:
            remove = f"rm -r {shlex.quote(str(self.output))}/*.aside-*"
            remarks.append(
                f"set aside in {self.output} by now: {count} files and folders, "
                f"{size_in_words(size)}; to remove them: {remove}"
            )
        return tuple(remarks)

    def folder(self, step: int) -> Path:
        """Return where the checkpoint of a step lies."""
        return self.output / manifest.folder_name(step)

    def export(self, step: int, model: Model | None = None) -> Path:
        """Export what was trained to `adapter/`, or to `model/` for all weights; return where.

        The weights are those of the step's checkpoint, or of `model` if that does not have them.
        If it fails, every rank raises a CheckpointError.
        """
        checkpoint = self.folder(step)
        held = gathered(model, keep=self.writes) if model else {}
        final = self._exported()
        aside = final.with_name(f"{final.name}.tmp-{self._mark}")
        problem = ""
        try:
            if self.writes:
                named = held or export.weights(checkpoint)
                if self._config.method == "lora":
                    export.export(named, aside, **self._adapter(step))
                    export.copy_tokenizer(self._base, aside)
                else:
                    trust = self._config.trust_remote_code
                    export.export_model(named, self._base, aside, trust_remote_code=trust)
                manifest.publish(aside, final)
        except (Exception, CheckpointException) as error:  # noqa: BLE001  (whatever it is, all end)
            problem = room.words(error)
            shutil.rmtree(aside, ignore_errors=True)
        if problems := self._ranks.problems(problem):
            whole = "" if model else f"{checkpoint} is whole, but "
            message = f"{whole}what was trained could not be exported to {final}: {problems}"
            raise CheckpointError(message)
        return final

    def _exported(self) -> Path:
        return self.output / ("adapter" if self._config.method == "lora" else "model")

    def export_bytes(self, model: Model) -> int:
        """Return about how many bytes an export takes."""
        dtype = None if model.adapter else base_of(model.network).config.dtype
        held = (model.trained | model.buffers).values()
        return sum(t.numel() * (dtype.itemsize if dtype else t.element_size()) for t in held)

    def _adapter(self, step: int) -> dict[str, Any]:
        return {"shape": self.adapter, "about": {**self.about, "step": step}}

    def _write(self, state: Mapping[str, Any], progress: Progress, rng: dict[str, str]) -> str:
        """Write, seal and publish a checkpoint; return what went wrong, the same on every rank."""
        name = manifest.folder_name(progress.step)
        folder = self.output / f"{name}.tmp-{self._mark}"
        files: dict[str, Entry] = {}
        files, problems = self._attempt(
            lambda: self._write_own(folder, state, progress, rng), files
        )
        if not problems:
            files, problems = self._attempt(lambda: self._complete(folder, progress, files), files)
        if not problems:
            # Only now: no node seals what another one lacks.
            _, problems = self._attempt(lambda: self._publish(folder, progress, files), None)
        if problems:
            lack = ""
            if self.writes:
                shutil.rmtree(folder, ignore_errors=True)
                needed = checkpoint_bytes(state, adapter=self._config.method == "lora")
                lack = room.lack(self.output, needed)
            lacks = self._ranks.problems(lack)
            problems = f"{lacks} ({problems})" if lacks else problems
        elif self.writes:
            # A slow disk removes for minutes: only the end of the program waits for that.
            threading.Thread(target=self._prune, name="prune", daemon=False).start()
        if self.uploads and not problems:
            self.uploads.add(self.folder(progress.step))
        return problems

    def _prune(self) -> None:
        """Remove old checkpoints, once the removal before has ended."""
        with self._pruning:
            try:
                spared = self.uploads.current if self.uploads else None
                manifest.prune(self.output, self._config.save_total_limit, spared)
            except OSError as error:
                print(f"{self.output}: old checkpoints remain: {error}", file=sys.stderr)

    def _write_own(
        self, folder: Path, state: Mapping[str, Any], progress: Progress, rng: dict[str, str]
    ) -> dict[str, Entry]:
        """Write this rank's shards and small files, and hash them."""
        if self._ranks.device.type == "cuda":
            torch.cuda.set_device(self._ranks.device)  # a thread begins with the first GPU
        state_dict_saver.save(
            dict(state),
            storage_writer=FileSystemWriter(folder, sync_files=True),
            process_group=self._ranks.storage,
        )
        rank = self._ranks.env.rank
        folder.mkdir(exist_ok=True)
        own = [f"rng-{rank:05d}.json"]
        write_durably(folder / own[0], json.dumps(rng))
        own += sorted(path.name for path in folder.glob(SHARDS_OF.format(rank=rank)))
        if self._ranks.is_first:
            own += [STATE, ".metadata"]
            about = {**self.about, **asdict(progress)}
            if progress.position.stream is None:
                del about["position"]["stream"]
            write_durably(folder / STATE, json.dumps(about, indent=1) + "\n")
        return {name: measure(folder / name) for name in own}

    def _complete(
        self, folder: Path, progress: Progress, own: dict[str, Entry]
    ) -> dict[str, Entry]:
        """Give each node all files if nodes have folders of their own; return all of them."""
        ranks = self._ranks
        rows = ranks.gather(own, ranks.storage)
        files = {name: entry for row in rows for name, entry in row.items()}
        if not self.shared:
            owners = {n: ranks.leader_of(r) for r, row in enumerate(rows) for n in row}
            copy_to_nodes(ranks, folder, files, owners)
        if self.writes and self._config.method == "lora":
            named = export.weights(folder)
            exported = export.export(named, folder, **self._adapter(progress.step))
            files |= {name: measure(folder / name) for name in exported}
        return files

    def _publish(self, folder: Path, progress: Progress, files: dict[str, Entry]) -> None:
        """Seal a folder that every node has whole, and give it its name."""
        if self.writes:
            manifest.seal(folder, progress.step, files)
            manifest.publish(folder, self.folder(progress.step))

    def _attempt(self, work: Callable[[], T], otherwise: T) -> tuple[T, str]:
        """Do a part of a checkpoint; return what came of it, and what went wrong on any rank."""
        done, problem = otherwise, ""
        try:
            done = work()
        except CheckpointException as error:  # on every rank, wherever it went wrong
            mine = error.failures.get(self._ranks.env.rank)
            problem = room.words(mine[0]) if mine else ""
        except Exception as error:  # noqa: BLE001  (a full disk must not end the training)
            problem = room.words(error)
        return done, self._ranks.problems(problem)


def _in_background(work: Callable[[], str]) -> Future[str]:
    """Run work in a thread that the end of the program does not wait for."""
    future: Future[str] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001  (it is raised where the result is asked for)
            future.set_exception(error)

    threading.Thread(target=run, name="checkpoint", daemon=True).start()
    return future


def trained_state(model: Model, optimizer: Optimizer) -> dict[str, Tensor]:
    """Return what a checkpoint holds, by name: trained weights, buffers, AdamW's moments."""
    held = model.trained | model.buffers
    weights = {f"{export.MODEL}{name}": tensor.detach() for name, tensor in held.items()}
    return weights | {f"adamw.{name}": moment for name, moment in optimizer.state().items()}


def gathered(model: Model, *, keep: bool) -> dict[str, Tensor]:
    """Return what is exported, whole and in this machine's memory; all ranks must call this.

    Only ranks with `keep` get it; the others take part.
    """
    found: dict[str, Tensor] = {}
    for name, tensor in (model.trained | model.buffers).items():
        whole = tensor.detach()
        whole = whole.full_tensor() if isinstance(whole, DTensor) else whole
        if keep:
            found[name] = whole.cpu()
    return found


def checkpoint_bytes(state: Mapping[str, Tensor], *, adapter: bool) -> int:
    """Return how many bytes the tensors of a checkpoint take, an adapter's weights twice."""
    return sum(
        tensor.numel() * tensor.element_size() * (1 + (adapter and name.startswith(export.MODEL)))
        for name, tensor in state.items()
    )


def random_state(device: torch.device) -> dict[str, str]:
    """Return where this rank's random numbers are."""
    found = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        found["cuda"] = torch.cuda.get_rng_state(device)
    return {
        name: base64.b64encode(state.numpy().tobytes()).decode() for name, state in found.items()
    }
