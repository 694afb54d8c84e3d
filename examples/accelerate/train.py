"""A script for `accelerate launch`: the Accelerator finds ranks and devices by itself."""

from __future__ import annotations

import argparse

import torch
from accelerate import Accelerator


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    given = parser.parse_args()

    accelerator = Accelerator()
    torch.manual_seed(0)
    rows = [torch.randn(16) for _ in range(32 * given.steps * accelerator.num_processes)]
    model = torch.nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.utils.data.DataLoader(rows, batch_size=32)
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    step = 0
    for inputs in data:
        step += 1
        loss = torch.nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        if step % 10 == 0:
            tell(accelerator, f"step {step}, loss {loss.item():.4f}")
    tell(accelerator, f"ended at step {step} on {accelerator.num_processes} ranks")
    accelerator.end_training()


def tell(accelerator: Accelerator, text: str) -> None:
    """Print on rank 0; `accelerator.print` would print once on each node."""
    if accelerator.is_main_process:
        print(text, flush=True)


if __name__ == "__main__":
    main()
