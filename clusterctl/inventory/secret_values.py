"""Tells a name or value of the environment that looks like a secret."""

import re

_SECRET_NAME = re.compile(
    r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|(API|ACCESS|PRIVATE|SECRET)_?KEY)"
    r"(_|$)",
    re.IGNORECASE,
)
_SECRET_VALUE = re.compile(
    r"(hf_|ghp_|github_pat_|glpat-|sk-|xox[abp]-|AKIA)[A-Za-z0-9_-]{12,}|-----BEGIN "
)


def is_secret(name: str, value: str) -> bool:
    """Tell whether a variable looks like a secret; without a name only its value counts."""
    return bool(value and (_SECRET_NAME.search(name) or _SECRET_VALUE.match(value)))
