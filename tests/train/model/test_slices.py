"""The base is read in slices: each rank reads its own rows once, and gets what others would."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.train.families import COMMON, FAMILIES
from tests.train.outcome import close
from tests.train.tiny import VOCABULARY
from tests.train.world import World, context
from train.config.config import Config
from train.distributed.env import RankEnv

pytestmark = pytest.mark.torch

FEW_EXPERTS = FAMILIES["glm4_moe"] | {"n_routed_experts": 2}
JOINED_ROWS = {"layer_types": ["linear_attention", "full_attention"], "linear_key_head_dim": 8}
"""transformers joins the convolutions of q, k and v of OLMo Hybrid in one parameter."""
SPLIT_ROWS = {"num_key_value_heads": 4}
"""transformers splits what HRM has in one tensor: gate and up, and q, k and v."""


def never_read_whole(_rank: int) -> None:
    """Refuse to load the base whole."""
    from train.model import slices

    def loaded(*_: Any) -> None:
        raise AssertionError("the base was read whole")

    vars(slices)["load_whole"] = loaded


# test_quantized.py has one with a head of its own.
@pytest.mark.parametrize("name", [pytest.param("model", marks=pytest.mark.soak), "tied"])
def test_no_rank_reads_the_whole_base(world: World, tiny: Path, name: str) -> None:
    how: dict[str, Any] = {"name_or_path": str(tiny / name), "max_steps": 2, "method": "full"}
    how |= {"before": never_read_whole}
    alone = world.run(**how)
    sliced = world.run(**how, nodes=(2, 1), parallel="fsdp")
    assert close(alone.losses(), sliced.losses())
    assert "read whole" not in sliced.said()


def test_ddp_reads_no_base_whole_on_one_rank_either(world: World) -> None:
    world.run(nodes=(2,), parallel="ddp", max_steps=1, before=never_read_whole)


class CountedFile:
    """A safetensors file that counts the numbers read from it."""

    read: ClassVar[list[int]] = []
    """A count for each reading; several threads add to it."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def keys(self) -> Any:
        """Return the names of the tensors."""
        return self._file.keys()

    def get_slice(self, key: str) -> Any:
        """Return a tensor that is read when it is indexed."""
        return CountedTensor(self._file.get_slice(key))


class CountedTensor:
    """A tensor of such a file."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tensor, name)

    def __getitem__(self, rows: Any) -> Any:
        found = self._tensor[rows]
        CountedFile.read.append(found.numel())
        return found


def fill(env: RankEnv, folder: Path, layout: str) -> None:
    """Be one rank that fills a model, compares it with transformers' and writes what it read."""
    import torch
    from torch.distributed.tensor import DTensor
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    from train.distributed.process_group import Ranks
    from train.model import slices
    from train.model.load import make_on_meta
    from train.model.parallelize import shard

    torch.set_num_threads(1)
    disable_progress_bar()
    ranks = Ranks.join(env, timeout=60, rendezvous=f"file://{folder / 'rendezvous'}")
    config = Config(name_or_path=str(folder), dataset_path="-", method="full")
    network: Any = make_on_meta(config, folder, torch.float32)
    shard(network, ranks.mesh(layout), config, torch.float32)
    network.to_empty(device="cpu")
    network.tie_weights()
    real = vars(slices)["safe_open"]
    vars(slices)["safe_open"] = lambda *a, **k: Opened(real(*a, **k))
    slices.load_into(network, config, folder)
    whole: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for name, wanted in (whole.state_dict() | dict(whole.named_buffers())).items():
        found = network.get_parameter_or_buffer(name)
        found = found.full_tensor() if isinstance(found, DTensor) else found
        assert torch.equal(found, wanted), name
    empty = sum(not p.to_local().numel() for p in network.parameters())
    about = {"read": sum(CountedFile.read), "empty": empty}
    (folder / f"read-{env.rank}.json").write_text(json.dumps(about))
    ranks.leave()


class Opened:
    """What `safe_open` gives, counted."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager

    def __enter__(self) -> CountedFile:
        return CountedFile(self._manager.__enter__())

    def __exit__(self, *error: object) -> None:
        self._manager.__exit__(*error)


def filled(folder: Path, family: str, shape: dict[str, Any], nodes: tuple[int, ...]) -> list[Any]:
    """Fill a model on such ranks; return what each read."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **COMMON | shape)
    network: Any = AutoModelForCausalLM.from_config(config)
    network.save_pretrained(folder)
    processes = []
    for rank in range(sum(nodes)):
        env = RankEnv(
            rank=rank,
            world_size=sum(nodes),
            local_rank=rank % nodes[0],
            local_world_size=nodes[0],
            node_rank=rank // nodes[0],
            nodes=len(nodes),
            launched=True,
        )
        layout = "hsdp" if len(nodes) > 1 else "fsdp"
        processes.append(context().Process(target=fill, args=(env, folder, layout), daemon=True))
        processes[-1].start()
    for process in processes:
        process.join(100)
    assert {process.exitcode for process in processes} == {0}
    return [json.loads((folder / f"read-{rank}.json").read_text()) for rank in range(sum(nodes))]


def numbers(folder: Path) -> int:
    """Return how many numbers the files of a model hold."""
    from safetensors import safe_open

    with safe_open(folder / "model.safetensors", framework="np") as file:
        return sum(file.get_tensor(key).size for key in file.keys())  # noqa: SIM118  (no dict)


def test_hsdp_reads_the_base_once_a_node(tmp_path: Path) -> None:
    read = filled(tmp_path, "glm4_moe", FAMILIES["glm4_moe"], (2, 2))
    router_bias = (
        2 * FAMILIES["glm4_moe"]["n_routed_experts"]
    )  # a buffer, of which no rank has part
    whole = numbers(tmp_path)
    for node in (read[:2], read[2:]):
        assert sum(rank["read"] for rank in node) == whole + router_bias
    assert max(rank["read"] for rank in read) < 0.52 * whole


def test_ranks_without_an_expert_of_their_own_read_none(tmp_path: Path) -> None:
    read = filled(tmp_path, "glm4_moe", FEW_EXPERTS, (3,))
    assert [bool(rank["empty"]) for rank in read] == [False, False, True]
    assert sum(rank["read"] for rank in read) == numbers(tmp_path) + 2 * 2 * 2


@pytest.mark.parametrize(
    ("family", "shape"), [("olmo_hybrid", JOINED_ROWS), ("hrm_text", SPLIT_ROWS)]
)
def test_rows_that_transformers_mixes_are_read_whole(
    tmp_path: Path, family: str, shape: dict[str, Any]
) -> None:
    read = filled(tmp_path, family, shape, (2,))
    assert numbers(tmp_path) < sum(rank["read"] for rank in read) < 2 * numbers(tmp_path)


def test_a_model_inside_another_computes_its_own_buffers(tmp_path: Path) -> None:
    shape = {
        "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCABULARY,
        "layer_types": ["sliding_attention", "full_attention"], "intermediate_size": [64, 64],
        "num_kv_shared_layers": 0, "laurel_rank": 4, "altup_num_inputs": 2,
        "activation_sparsity_pattern": None,
    }  # fmt: skip
    filled(tmp_path, "gemma3n_text", shape, (2,))


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
def test_masks_that_are_in_no_file_are_computed(tmp_path: Path) -> None:
    filled(tmp_path, "gpt_bigcode", {"max_position_embeddings": 1024}, (2,))
