"""Reads when something was, as people write it."""

import datetime as dt
import re

from clusterctl.errors import UsageError

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_DAYS_AGO = {"today": 0, "yesterday": 1}


def length_of_time(text: str) -> float | None:
    """Return the seconds of `90s`, `10m`, `2h`, `3d` or `1w`; None: it is none of them."""
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)([smhdw])", text)
    return float(found[1]) * _SECONDS[found[2]] if found else None


def moment(text: str, now: float) -> float:
    """Return seconds since 1970 of `10m`, `2h`, `1d`, `yesterday` or an ISO time; local if bare."""
    ago = length_of_time(text)
    if ago is not None:
        return now - ago
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
