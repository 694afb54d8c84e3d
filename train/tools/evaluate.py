"""Measure a model, or a base with an adapter, on data that it has not seen, and print JSON.

`python -m train.tools.evaluate MODEL DATA` has the mean loss of what a training would learn of the
data, and the model's own answers to its first prompts. `--tasks` adds those of lm-eval.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from itertools import islice
from pathlib import Path
from typing import Any

from train.config.config import Config
from train.data import dataset, tally
from train.data.encoding import Sample
from train.errors import DONE, USAGE, ConfigError
from train.tools.generate import OTHER_BASE, continued, require_own_base
from train.tools.merge import load_adapter, load_base, load_tokenizer, loaded


def main(argv: Sequence[str] | None = None) -> int:
    """Print what was measured."""
    parser = argparse.ArgumentParser(prog="python -m train.tools.evaluate", description=__doc__)
    parser.add_argument("model", help="a model's folder, or a hub id")
    parser.add_argument("data", nargs="?", help="as dataset_path of a training has it")
    parser.add_argument("--adapter", type=Path, help="folder of a trained adapter")
    parser.add_argument("--other-base", action="store_true", help=OTHER_BASE)
    parser.add_argument("--seq-len", type=int, default=1024, metavar="N", help="longest sample")
    parser.add_argument("--limit", type=int, default=1000, metavar="N", help="samples (1000)")
    parser.add_argument("--answers", type=int, default=3, metavar="N", help="generated answers (3)")
    parser.add_argument("--max-new-tokens", type=int, default=60, metavar="N", help="of each (60)")
    parser.add_argument("--tasks", help="tasks of lm-eval, with commas")
    options = parser.parse_args(argv)
    if not (options.data or options.tasks):
        parser.error("expected DATA, --tasks, or both")
    found: dict[str, Any] = {
        "model": options.model,
        "adapter": options.adapter,
        "data": options.data,
    }
    try:
        if options.adapter and not options.other_base:
            require_own_base(options.adapter, options.model)
        if options.tasks:  # first: it may not be there
            found["tasks"] = on_tasks(options)
        if options.data:
            found |= on_data(options)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return USAGE
    print(json.dumps(found, indent=1, default=str))
    return DONE


def on_data(options: argparse.Namespace) -> dict[str, Any]:
    """Return the loss over the samples of the data, and answers to the first prompts."""
    import torch

    config = Config(name_or_path=options.model, dataset_path=options.data, seq_len=options.seq_len)
    device_map = "auto" if torch.cuda.is_available() else None
    wanted = "model: expected a causal language model"
    tokenizer = loaded(lambda: load_tokenizer(options.model), wanted)
    tokenizer.model_max_length = 1 << 30  # no warnings: --seq-len decides
    reasons: list[str] = []
    samples = list(islice(_samples(config, tokenizer, reasons), options.limit))
    if not samples:
        problem = f"{options.data}: expected samples to learn from, found none"
        raise ConfigError(*reasons[: tally.SHOWN], problem)
    model = loaded(lambda: load_base(options.model, device_map=device_map), wanted)
    if options.adapter:
        base, wanted = model, f"--adapter: expected an adapter of {options.model}"
        model = loaded(lambda: load_adapter(base, options.adapter), wanted)
    total, right, count = (sum(column) for column in zip(*_losses(model, samples), strict=True))
    return {
        "samples": len(samples),
        "unusable_lines": len(reasons),
        "tokens": count,
        "loss": total / count,
        "perplexity": math.exp(min(total / count, 700.0)),
        "accuracy": right / count,
        "answers": [
            _answer(model, tokenizer, sample, options.max_new_tokens)
            for sample in samples[: options.answers]
        ],
    }


def _samples(config: Config, tokenizer: Any, reasons: list[str]) -> Iterator[Sample]:
    """Yield the samples of the data, and note why lines have none."""
    for located in dataset.locate(config):
        for line in dataset.preview(config, located, tokenizer):
            reasons += [f"{line.line.where}: {line.reason}"] if line.reason else []
            yield from (sample for sample in line.samples if sample.ids)


def _losses(model: Any, samples: Sequence[Sample]) -> Iterator[tuple[float, int, int]]:
    """Yield of each sample the loss, the tokens that the model says itself, and all of them."""
    import torch
    from torch.nn.functional import cross_entropy

    model.eval()
    for sample in samples:
        ids = torch.tensor([sample.ids], device=model.device)
        learned = torch.tensor(sample.loss_mask[1:], device=model.device)
        with torch.no_grad():
            logits = model(input_ids=ids, use_cache=False).logits[0, :-1][learned].float()
        wanted = ids[0, 1:][learned]
        loss = cross_entropy(logits, wanted, reduction="sum")
        yield float(loss), int((logits.argmax(-1) == wanted).sum()), len(wanted)


def _answer(model: Any, tokenizer: Any, sample: Sample, most: int) -> dict[str, str]:
    """Return what the model says after a sample's first prompt, and what the data says."""
    begin = max(1, sample.loss_mask.index(True))
    end = next((at for at in range(begin, len(sample.ids)) if not sample.loss_mask[at]), None)
    return {
        "prompt": tokenizer.decode(sample.ids[:begin]),
        "answer": continued(model, tokenizer, sample.ids[:begin], most),
        "expected": tokenizer.decode(sample.ids[begin:end], skip_special_tokens=True),
    }


def on_tasks(options: argparse.Namespace) -> dict[str, Any]:
    """Return lm-eval's results."""
    if importlib.util.find_spec("lm_eval") is None:
        raise ConfigError("--tasks: expected lm-eval, found none", hint="pip install lm_eval")
    import lm_eval  # type: ignore[import-not-found]
    import torch

    arguments = {"pretrained": options.model, "dtype": "auto"}
    arguments |= {"peft": str(options.adapter)} if options.adapter else {}
    how = {"model": "hf", "model_args": arguments, "tasks": options.tasks.split(",")}
    # Without a name lm-eval takes a GPU that is not there.
    device = "cuda" if torch.cuda.is_available() else "cpu"
    wanted = f"--tasks: expected lm-eval's results of {options.tasks}"
    with redirect_stdout(sys.stderr):  # it prints, too
        found = loaded(
            lambda: lm_eval.simple_evaluate(**how, batch_size="auto", device=device), wanted
        )
    return dict(found["results"])


if __name__ == "__main__":
    sys.exit(main())
