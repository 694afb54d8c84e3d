"""Determines which GPUs of a node a job selects by its own variables, if that is certain."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from clusterctl.facts.gpu.accelerators import Gpu, Gpus

VISIBLE = "CUDA_VISIBLE_DEVICES"
ORDER, BUS_ORDER = "CUDA_DEVICE_ORDER", "PCI_BUS_ID"
"""With this order CUDA counts GPUs as nvidia-smi does; CUDA's own order starts with the fastest."""

_UUID = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_INDEX = re.compile(r"0|[1-9][0-9]{0,3}")


def chosen_gpus(
    env: Mapping[str, str], env_from: Collection[str], gpus: Gpus | None
) -> tuple[Gpu, ...]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES names; empty if there are none or it is uncertain.

    `env` wins over the node's own variables, the secrets named in `env_from` win over `env`.
    """
    words = env.get(VISIBLE, "").split(",")
    if {VISIBLE, ORDER} & set(env_from) or env.get(ORDER, BUS_ORDER) != BUS_ORDER:
        return ()
    devices = gpus.devices if gpus is not None and gpus.tool == "nvidia-smi" else ()
    by_uuid = {gpu.uuid: gpu for gpu in devices if _UUID.fullmatch(gpu.uuid) and not gpu.mig}
    if len(by_uuid) < len(devices) or list(devices) != sorted(devices, key=lambda gpu: gpu.bus_id):
        return ()
    by_index = {str(index): gpu for index, gpu in enumerate(devices)}
    names = by_index if all(map(_INDEX.fullmatch, words)) else by_uuid
    known = [names[word] for word in dict.fromkeys(words) if word in names]
    return tuple(known) if len(known) == len(words) else ()
