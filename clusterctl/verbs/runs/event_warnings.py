"""The warnings that events of a run deserve, if its state does not show what they tell. Pure."""

from collections.abc import Mapping
from typing import Any

_SHOWN = 300
"""Characters that a warning shows of what an event says."""


def unmet_warning(event: Mapping[str, Any], *, several: bool = False) -> tuple[str, str]:
    """Return the warning and the hint for a node, or several, whose ranks met no other node's."""
    trains = event.get("kind") == "trains-alone"
    text = f"no connection of {'their' if several else 'its'} ranks to another node was seen: "
    text += "each " if several else "it "
    text += "trains alone" if trains else "may have trained alone"
    where = str(event.get("master"))[:_SHOWN]
    hint = (
        "if this is one training, leave rank and world_size out of init_process_group, and let it"
        f" meet at {where}: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set"
    )
    return text, hint


def warning_of(event: Mapping[str, Any]) -> tuple[str, str]:
    """Return the warning and the hint that an event deserves; both empty: none."""
    match event.get("kind"):
        case "trains-alone":
            return unmet_warning(event)
        case "other-world":
            found = str(event.get("message"))[:_SHOWN]
            text = f"a rank does not meet the other nodes: {found}"
            hint = "the run continues because of --force; leave it out to end such a run"
        case "leftovers-ended":
            commands = event.get("commands")
            named = "; ".join(map(str, commands)) if isinstance(commands, list) else ""
            text = f"the command had ended, and what it left running was ended: {named[:_SHOWN]}"
            hint = (
                "if that was the training: leave out nohup and &, or end the script with `wait`;"
                " to give it more time, set `leftovers` under `stop:`"
            )
        case "started-elsewhere":
            command = str(event.get("command"))[:_SHOWN]
            text = f"`{command}`: what it starts is neither seen nor stopped by clusterctl"
            hint = ""
        case "log-lost":
            text, hint = str(event.get("message"))[:_SHOWN], ""
        case _:
            return "", ""
    return text, hint
