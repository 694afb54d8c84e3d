"""Names of users."""

from __future__ import annotations

import os
import pwd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional


def user_name(uid: Optional[int] = None) -> str:
    """Return a user's name, this user's by default; the number if there is none."""
    number = os.getuid() if uid is None else uid
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)
