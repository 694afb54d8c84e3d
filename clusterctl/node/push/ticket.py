"""What a sender shows a receiver: a secret of the two, derived from the receiver's own."""

from __future__ import annotations

import hashlib
import hmac


def ticket(token: str, number: int) -> bytes:
    """Return what may connect once to the node that has this token.

    The numbers grow: a sender that was replaced cannot come back.
    """
    shown = b"%08x" % number
    return shown + hmac.new(token.encode(), shown, hashlib.sha256).hexdigest().encode()
