"""What changed since a checkpoint was written, and which of it no training can resume with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from train.config.config import NOT_THE_NUMBERS
from train.errors import CheckpointError

SHAPE = (
    "method", "lora_r", "lora_alpha", "lora_target_modules", "lora_target_parameters",
    "lora_rank_pattern", "lora_alpha_pattern", "lora_use_rslora", "lora_use_dora",
    "lora_modules_to_save",
)  # fmt: skip
"""Keys that weights of another shape or meaning follow from."""

SHOWN = 3
"""Most files of the base that a message names."""


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what changed since a checkpoint was written."""
    if then["base"] != now["base"]:
        files, found = then.get("base_files", {}), now.get("base_files", {})
        edited = sorted(name for name in files | found if files.get(name) != found.get(name))
        more = f" and {len(edited) - SHOWN} more" if len(edited) > SHOWN else ""
        names = f" ({', '.join(edited[:SHOWN])}{more} changed since)" if files and edited else ""
        message = (
            f"checkpoint: expected base model {now['base'][:12]}, found that it was trained on "
            f"{then['base'][:12]}{names}\nhint: set name_or_path to "
            f"{then['config']['name_or_path']} as it was then"
        )
        raise CheckpointError(message)
    changed = {
        key: (then["config"].get(key), value)
        for key, value in now["config"].items()
        if key not in NOT_THE_NUMBERS and (then["config"].get(key) or None) != (value or None)
    }
    if fixed := [key for key in SHAPE if key in changed]:
        was, is_now = changed[fixed[0]]
        message = f"{fixed[0]}: expected {was} as in the checkpoint, found {is_now}"
        raise CheckpointError(message)
    remarks = [f"{key} was {was}, is {is_now}" for key, (was, is_now) in changed.items()]
    for problem, hint, remark in _orders(then, now):
        if then["position"]["consumed"]:
            message = (
                f"{problem}: in the middle of an epoch some samples would come twice and others "
                f"never\nhint: {hint}, or resume from a checkpoint at the end of an epoch "
                "(save_epochs: 1)"
            )
            raise CheckpointError(message)
        remarks += (remark,) if remark else ()
    if then["corpus"] == now["corpus"]:
        pass
    elif then.get("train_corpus") == now["train_corpus"]:
        remarks.append("the evaluation data changed since, the training data did not")
    else:
        remarks.append("the data changed since: the position counts samples of the new data")
    if then["code"] != now["code"]:
        remarks.append("the code changed since")
    return tuple(remarks)


def _orders(
    then: Mapping[str, Any], now: Mapping[str, Any]
) -> Iterator[tuple[str, str, str | None]]:
    """Yield what gives an epoch other rows, or another order: problem, hint, and a remark."""
    was, found = (about["config"] for about in (then, now))
    if was.get("seed") != found.get("seed"):
        problem = f"seed: expected {was.get('seed')} as in the checkpoint, found {found['seed']}"
        yield problem, f"add --seed {was.get('seed')} to the command", None
    packed = [config.get("batching") == "packed" for config in (was, found)]
    keys = ["eval_split", "overlong", "stream", *(["stream_window"] if found.get("stream") else [])]
    for key in (*keys, *(["seq_len"] if all(packed) else [])):
        before, after = was.get(key, found.get(key)), found.get(key)
        if before != after:
            flag = key.replace("_", "-")
            problem = f"{key}: expected {before} as in the checkpoint, found {after}"
            yield problem, f"add --{flag} {before} to the command", None
    if packed[0] != packed[1]:
        kept = was.get("batching")
        problem = f"batching: expected {kept} as in the checkpoint, found {found['batching']}"
        yield problem, f"add --batching {kept} to the command", None
    elif all(packed) and then.get("packing", 1) != now["packing"]:
        problem = (
            f"batching: expected samples packed by version {now['packing']}, found "
            f"{then.get('packing', 1)} in the checkpoint"
        )
        hint = "resume with the version of train/ that wrote it"
        yield problem, hint, "samples are packed in other rows since"
    if (was_cut := _shares(then)) != (is_cut := _shares(now)):
        before, after = (", ".join(f"{share:.0%}" for share in cut) for cut in (was_cut, is_cut))
        problem = (
            f"node_data: expected the nodes' shares as in the checkpoint ({before}), found {after}"
        )
        hint = (
            "resume with as many nodes and ranks as then (with node_data: whole, any number of "
            "nodes resumes)"
        )
        yield problem, hint, f"the nodes' shares of the samples were {before}, are {after}"


def _shares(about: Mapping[str, Any]) -> list[float]:
    """Return how the samples are divided among nodes that have samples of their own."""
    counts = about.get("ranks_of_nodes", [1])
    if about["config"].get("node_data") != "strided":
        counts = [1]
    return [count / sum(counts) for count in counts]
