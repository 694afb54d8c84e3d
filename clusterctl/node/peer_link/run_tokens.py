"""The secrets that are derived from a run's token; only the controller and the master have that."""

from __future__ import annotations


def node_token(run_token: str, node: str) -> str:
    """Return the token by which a node shows the master that it is this node and no other."""
    return _derive(run_token, "node " + node)


def ray_token(run_token: str) -> str:
    """Return the token of the run's Ray, the same on every node."""
    return _derive(run_token, "ray")


def _derive(run_token: str, purpose: str) -> str:
    import hmac  # noqa: PLC0415  (start-up counts)

    return hmac.new(run_token.encode(), purpose.encode(), "sha256").hexdigest()
