"""Record what TRL's DPOTrainer and ORPOTrainer compute, for test_preference.py.

Run it where TRL is installed, in the clone: `python -m tests.train.trl_numbers`. It trains the
same pairs from the same adapter as the test, and writes trl_numbers.json next to this file.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.train import preference_loop as loop
from tests.train.independent_loop import END

NAMES = ("loss", "rewards/accuracies", "rewards/chosen", "rewards/rejected")
BETA, RATE, STEPS, COUNT = 0.2, 5e-3, 4, 7


def main() -> None:
    """Write the numbers of each step."""
    import trl  # type: ignore[import-not-found]
    from datasets import Dataset  # type: ignore[import-not-found]
    from peft import PeftModel
    from transformers import AutoModelForCausalLM
    from trl.experimental.orpo import (  # type: ignore[import-not-found]
        ORPOConfig,
        ORPOTrainer,
    )

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokenizer = loop.make_model(folder / "base")
        tokenizer.pad_token = tokenizer.eos_token
        tokenizer.eos_token = END  # as of a chat model: ORPOTrainer appends it where it lacks
        rows = loop.write_pairs(folder / "pairs.jsonl", COUNT, 1)
        words = ["--learning-rate", "0", "--max-steps", "1", "--seq-len", "128"]
        words += ["--name-or-path", f"{folder}/base", "--dataset-path", f"{folder}/pairs.jsonl"]
        words += ["--output-dir", f"{folder}/start", "--objective", "dpo"]
        subprocess.run([sys.executable, "-m", "train", *words], check=True)
        how: dict[str, Any] = {
            "output_dir": str(folder / "output"), "per_device_train_batch_size": COUNT,
            "max_steps": STEPS, "learning_rate": RATE, "lr_scheduler_type": "constant",
            "logging_steps": 1, "beta": BETA, "max_length": 128, "report_to": "none",
            "save_strategy": "no", "use_cpu": True, "gradient_checkpointing": False, "bf16": False,
        }  # fmt: skip
        found: dict[str, Any] = {"trl": trl.__version__}
        for objective, trainer, config in (
            ("dpo", trl.DPOTrainer, trl.DPOConfig(**how)),
            ("orpo", ORPOTrainer, ORPOConfig(**how)),
        ):
            base = AutoModelForCausalLM.from_pretrained(folder / "base")
            model = PeftModel.from_pretrained(base, folder / "start/adapter", is_trainable=True)
            data = Dataset.from_list([loop.as_messages(row) for row in rows])
            run = trainer(model=model, args=config, train_dataset=data, processing_class=tokenizer)
            run.train()
            steps = [entry for entry in run.state.log_history if "rewards/chosen" in entry]
            found[objective] = [[step[name] for name in NAMES] for step in steps]
            if objective == "orpo":  # its loss counts the prompt too: only the first step compares
                found["log_odds_ratio"] = steps[0]["log_odds_ratio"]
                del found[objective][1:]
    Path(__file__).with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
