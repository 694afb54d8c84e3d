"""The settings of libraries that the ranks of a node will see, each with where it comes from.

From weak to strong: NCCL's files, the session, what clusterctl chooses, `env_init`, `job.env`.
"""

import shlex
from collections.abc import Mapping

from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.facts.software.settings import IN_IMAGE, Setting
from clusterctl.inventory.cluster import Cluster
from clusterctl.network.choice import Network
from clusterctl.network.choice import environment as chosen_environment

JOB_ENV = "job.env"
FLAG = "--env"
ENV_INIT = "env_init"
ETC = "/etc/environment"
SESSION = "the session (~/.bashrc, ~/.profile or sshd)"


def settings_of(node: NodeFacts, network: Network, cluster: Cluster) -> tuple[Setting, ...]:
    """Return the settings of the node's ranks by name, without those that clusterctl chooses."""
    session = dict(node.environment or ())
    found = {conf.name: conf for conf in node.nccl_conf if _is_read(conf, session)}
    for name, value in session.items():
        origin = ETC if name in node.etc_environment else SESSION
        found[name] = Setting(name=name, value=value, origin=origin)
    place = network.nodes.get(node.node)
    for variable in chosen_environment(place, node) if place else ():
        found.pop(variable.name, None)
    for name, value in node.job_environment or ():
        if session.get(name) != value:
            found[name] = Setting(name=name, value=value, origin=ENV_INIT)
    for name, value in cluster.job.env:
        origin = cluster.origin(f"env.{name}", JOB_ENV)
        found[name] = Setting(name=name, value=value, origin=origin)
    return tuple(found[name] for name in sorted(found))


def _is_read(conf: Setting, session: dict[str, str]) -> bool:
    """Tell whether NCCL reads the file: NCCL_CONF_FILE replaces ~/.nccl.conf (`initEnvFunc`)."""
    return conf.origin.startswith("/etc/nccl.conf") or not session.get("NCCL_CONF_FILE")


def tcp_by_choice(settings: Mapping[str, Setting]) -> Setting | None:
    """Return the setting that makes NCCL use TCP although there may be RDMA; None: no one does."""
    off, network = settings.get("NCCL_IB_DISABLE"), settings.get("NCCL_NET")
    if network is not None and network.value.strip().lower() == "socket":
        return network
    return off if off is not None and off.value.strip() not in {"", "0"} else None


def remove_from(setting: Setting) -> str:
    """Return the remedy that takes a setting away."""
    name = shlex.quote(setting.name)
    if setting.origin in {JOB_ENV, ENV_INIT}:
        return f"remove {name} from {setting.origin} in hosts.yaml"
    if setting.origin == FLAG:
        return f"leave out {FLAG} {name}"
    if setting.origin == SESSION:
        return f"remove {name} from ~/.bashrc or ~/.profile of the node"
    if setting.origin.startswith("run "):  # `resume` keeps its variables
        return f"launch without {name}, which comes from {setting.origin}"
    if IN_IMAGE in setting.origin:
        return f"remove {name} from {setting.origin}, or set it in {JOB_ENV}, which wins"
    return f"remove {name} from {shlex.quote(setting.origin)} of the node"
