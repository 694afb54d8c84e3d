"""Lightning on several nodes: `num_nodes` and `devices` come from the launcher's variables."""

from __future__ import annotations

import argparse
import os

import lightning
import torch


class Model(lightning.LightningModule):
    """A linear model."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        """Return the loss of a batch."""
        inputs, wanted = batch
        return ((self.layer(inputs) - wanted) ** 2).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.SGD(self.parameters(), lr=0.01)


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--resume", help="a checkpoint to start from")
    given = parser.parse_args()

    rows = [(torch.ones(4) * i / 64, torch.ones(1)) for i in range(64)]
    trainer = lightning.Trainer(
        accelerator="auto" if torch.cuda.is_available() else "cpu",
        num_nodes=int(os.environ["NNODES"]),
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        strategy="ddp",
        max_epochs=given.epochs,
        logger=False,
        enable_progress_bar=False,
        callbacks=[lightning.pytorch.callbacks.ModelCheckpoint(dirpath="out", save_top_k=-1)],
    )
    data = torch.utils.data.DataLoader(rows, batch_size=4)
    trainer.fit(Model(), data, ckpt_path=given.resume)
    if trainer.is_global_zero:
        print(f"ended at epoch {trainer.current_epoch} on {trainer.world_size} ranks", flush=True)


if __name__ == "__main__":
    main()
