"""Programs written for other launchers run unchanged on two hosts, are stopped and resumed."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import yaml

from tests.cli.conftest import MakeProject
from tests.conftest import MakeSandbox
from tests.waiting import BUSY

# tests/node/checkpoints has the layout of Trainer, test_resume.py a script of a person's own.
pytestmark = [pytest.mark.netns, pytest.mark.torch, pytest.mark.soak]

TRAINER = """
import argparse, time, torch
from transformers import (
    LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments,
)

parser = argparse.ArgumentParser()
parser.add_argument("--resume")
given = parser.parse_args()
torch.manual_seed(0)
model = LlamaForCausalLM(LlamaConfig(
    hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4,
    num_key_value_heads=4, vocab_size=128,
))
rows = [[(7 * i + j) % 128 for j in range(16)] for i in range(64)]
data = [{"input_ids": row, "labels": row} for row in rows]

class Slow(TrainerCallback):
    def on_step_end(self, args, state, control, **more):
        print("step", state.global_step, "of", args.world_size, "ranks", flush=True)
        time.sleep(0 if given.resume else 1)

args = TrainingArguments(
    "out", max_steps=60 if given.resume else 600, save_steps=2, report_to=[], use_cpu=True,
    per_device_train_batch_size=2, ddp_backend="gloo", disable_tqdm=True,
)
trainer = Trainer(model=model, args=args, train_dataset=data, callbacks=[Slow()])
trainer.train(resume_from_checkpoint=given.resume)
print("ended at", trainer.state.global_step, flush=True)
"""

TUTORIAL = """
import os, sys, time, torch
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

class Trainer:
    def __init__(self, model, data, optimizer, path):
        self.rank, self.data = int(os.environ["RANK"]), data
        self.optimizer, self.path = optimizer, path
        self.begin = 0
        if os.path.exists(path):
            snapshot = torch.load(path)
            model.load_state_dict(snapshot["MODEL_STATE"])
            self.begin = snapshot["EPOCHS_RUN"]
        self.model = DistributedDataParallel(model)

    def train(self, epochs):
        for epoch in range(self.begin + 1, epochs + 1):
            self.data.sampler.set_epoch(epoch)
            for x, y in self.data:
                self.optimizer.zero_grad()
                torch.nn.functional.mse_loss(self.model(x), y).backward()
                self.optimizer.step()
            if self.rank == 0:
                state = {"MODEL_STATE": self.model.module.state_dict(), "EPOCHS_RUN": epoch}
                torch.save(state, self.path)
            print("step", epoch, "of", os.environ["WORLD_SIZE"], "ranks", flush=True)
            time.sleep(0 if epochs < 100 else 1)
        print("ended at", epoch, flush=True)

init_process_group(backend="gloo")
model = torch.nn.Linear(20, 1)
rows = [(torch.rand(20), torch.rand(1)) for _ in range(256)]
data = DataLoader(rows, batch_size=32, sampler=DistributedSampler(rows))
os.makedirs("out", exist_ok=True)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
Trainer(model, data, optimizer, "out/snapshot.pt").train(int(sys.argv[1]))
destroy_process_group()
"""

LIGHTNING = """
import sys, time, torch, lightning

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, _):
        x, y = batch
        return ((self.layer(x) - y) ** 2).mean()

    def on_train_epoch_end(self):
        ended = self.current_epoch + 1
        print("step", ended, "of", self.trainer.world_size, "ranks", flush=True)
        time.sleep(0 if len(sys.argv) > 1 else 1)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

rows = [(torch.ones(4) * i / 32, torch.ones(1)) for i in range(32)]
trainer = lightning.Trainer(
    accelerator="cpu", num_nodes=2, devices=1, strategy="ddp", logger=False,
    max_epochs=60 if len(sys.argv) > 1 else 600, enable_progress_bar=False,
    callbacks=[lightning.pytorch.callbacks.ModelCheckpoint(dirpath="out", save_top_k=-1)],
)
data = torch.utils.data.DataLoader(rows, batch_size=4)
trainer.fit(Model(), data, ckpt_path=sys.argv[1] if len(sys.argv) > 1 else None)
print("ended at", trainer.current_epoch, flush=True)
"""


ENDS_AT = 60


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program, and how it is told where to go on."""

    text: str
    words: tuple[str, ...] = ()
    resume_args: tuple[str, ...]
    needs: str = "torch"


PROGRAMS = {
    "Trainer": Program(
        text=TRAINER, resume_args=("--resume", "{checkpoint}"), needs="transformers"
    ),
    "tutorial": Program(text=TUTORIAL, words=("600",), resume_args=()),
    "Lightning": Program(text=LIGHTNING, resume_args=("{checkpoint}",), needs="lightning"),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_runs_is_stopped_and_goes_on_from_its_checkpoint(
    name: str, make_sandbox: MakeSandbox, make_project: MakeProject
) -> None:
    program = PROGRAMS[name]
    pytest.importorskip(program.needs)
    project = make_project(make_sandbox(nodes=2))
    (project.folder / "program.py").write_text(program.text)
    document = yaml.safe_load(project.inventory.read_text())
    document["job"] = {
        "command": ["program.py", *program.words],
        "env": {"OMP_NUM_THREADS": "1"},
        "checkpoints": "out",
        "resume_args": list(program.resume_args),
    }
    project.inventory.write_text(yaml.safe_dump(document, sort_keys=False))
    launched = project.run("launch", "--detach", seconds=2 * BUSY)
    assert launched.returncode == 0, launched.stderr
    project.wait_for_text("step 4 of 2 ranks")
    assert project.run("stop", "--grace", "5").returncode == 0
    before = project.status()
    assert before["checkpoint"] is not None
    again = ("--", "program.py", "60", "{checkpoint}") if name == "tutorial" else ()
    resumed = project.run("resume", "--checkpoint", "latest", *again, seconds=2 * BUSY)
    assert resumed.returncode == 0, resumed.stderr
    lines = project.run("logs", "--raw").stdout.splitlines()
    assert lines.count(f"ended at {ENDS_AT}") == 2
    assert "step 1 of 2 ranks" not in lines
