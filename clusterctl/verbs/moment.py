"""Reads when something was, as people write it."""

import datetime as dt
import re

from clusterctl.errors import UsageError

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_DAYS_AGO = {"today": 0, "yesterday": 1}


def moment(text: str, now: float) -> float:
    """Return seconds since 1970 of `10m`, `2h`, `1d`, `yesterday` or an ISO time; local if bare.

    Raises:
        UsageError: it is none of them.
    """
    ago = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text)
    if ago:
        return now - float(ago[1]) * _SECONDS[ago[2]]
    if text in _DAYS_AGO:
        day = dt.datetime.fromtimestamp(now).astimezone().date() - dt.timedelta(
            days=_DAYS_AGO[text]
        )
        return dt.datetime.combine(day, dt.time()).timestamp()
    try:
        return dt.datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError) as error:
        raise UsageError(
            "--since: expected 90s, 10m, 2h, 1d, 1w, today, yesterday or an ISO time such as"
            f" 2026-11-20T19:00, found {text!r}"
        ) from error
