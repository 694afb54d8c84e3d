"""What a sender shows a receiver: a secret of the two, derived from the receiver's own."""

from __future__ import annotations

import hashlib
import hmac


def ticket(token: str, number: int) -> bytes:
    """Return what may connect once to this token's node; numbers grow, so no old one serves."""
    shown = b"%08x" % number
    return shown + hmac.new(token.encode(), shown, hashlib.sha256).hexdigest().encode()
