"""Which variables of a job look like a secret."""

from __future__ import annotations

import pytest

from clusterctl.inventory.secret_values import is_secret

SIXTEEN = "Ab0-_" * 4


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("HF_TOKEN", "x", True),
        ("hf_token", "x", True),
        ("WANDB_API_KEY", "x", True),
        ("AWS_SECRET_ACCESS_KEY", "x", True),
        ("SSH_PRIVATE_KEY", "x", True),
        ("DB_PASSWORD", "x", True),
        ("HF_TOKEN", "", False),
        ("TOKENIZERS_PARALLELISM", "false", False),
        ("MAX_TOKENS", "512", False),
        ("KEY", "x", False),
        ("MONKEY", "x", False),
        *(
            ("", start + SIXTEEN, True)
            for start in ("hf_", "ghp_", "github_pat_", "glpat-", "sk-", "xoxb-", "AKIA")
        ),
        ("", "-----BEGIN OPENSSH PRIVATE KEY-----\nb3Blbn", True),
        ("", "hf_" + SIXTEEN + " and more", True),
        ("", "hf_short", False),
        ("", "see hf_" + SIXTEEN, False),
        ("X", "/data/model", False),
    ],
)
def test_a_secret_is_told_by_its_name_or_its_value(name: str, value: str, *, secret: bool) -> None:
    assert is_secret(name, value) == secret
