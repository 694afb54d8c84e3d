"""Why a vendor's tool cannot list the GPUs of a node, and the remedy."""

from __future__ import annotations

from clusterctl.checks.finding import Finding, Status, finding
from clusterctl.facts.nodefacts import NodeFacts

_ASK = {"nvidia-smi": "nvidia-smi -q", "amd-smi": "amd-smi static", "rocm-smi": "rocm-smi"}
_HOLD = (
    "sudo reboot (on the node) loads the new modules; then hold the driver's packages:"
    " sudo apt-mark hold 'nvidia-*' 'libnvidia-*', or sudo dnf versionlock add 'nvidia-*'"
)
_DETACHED = (
    "restart the container: `systemctl daemon-reload` on its machine took its GPUs away; to keep"
    " them, there: sudo nvidia-ctk system create-dev-char-symlinks --create-all, or"
    " native.cgroupdriver=cgroupfs for Docker"
)
_DENIED = (
    "systemctl show -p DevicePolicy,DeviceAllow user-$(id -u).slice (on the node) shows whether"
    " systemd denies this session the GPUs; Slurm denies those that the job did not request"
)


def known_cause(node: NodeFacts) -> tuple[str, str] | None:
    """Return what the words of nvidia-smi mean, and the remedy; None for other words."""
    why = node.why_unknown("gpus")
    if "version mismatch" in why:
        return "the loaded GPU driver and its libraries have different versions", _HOLD
    if "NVML: Unknown Error" in why:
        remedy = _DENIED if node.on_systemd else _DETACHED
        return "NVIDIA's driver refuses this session its GPUs", remedy
    return None


def cannot_list(node: NodeFacts, want: str) -> Finding:
    """Return the finding on a node whose tool failed or did not answer."""
    why = node.why_unknown("gpus") or "unknown"
    ask = _ASK.get(why.partition(":")[0], _ASK["nvidia-smi"])
    message, remedy = known_cause(node) or (
        "cannot list the accelerators",
        f"{ask} (on the node); reboot it if its driver was just updated",
    )
    status: Status = "fail" if "exit code" in why else "unknown"
    return finding(status, node.node, message, wanted=want, found=why, remedy=remedy)
