"""What programs really print when they fail: which line is shown, cause or echo, and which hint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from clusterctl.logs import known_errors
from clusterctl.logs.excerpt import without_noise

ENTRIES: list[dict[str, Any]] = yaml.safe_load(
    Path(__file__).with_name("printed_errors.yaml").read_text()
)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: str(entry["text"])[-60:])
def test_a_printed_error_is_read_as_a_person_would(entry: dict[str, Any]) -> None:
    lines = ["step 7 loss 2.31", *str(entry["text"]).split("\n")]
    for read in (lines, without_noise(lines)):
        assert known_errors.error_line(read) == entry.get("line", entry["text"])
        assert known_errors.is_secondary(read) is (entry["is"] == "echo")
        remedy = known_errors.remedy_for(read)
        assert entry["hint"] in remedy if "hint" in entry else remedy == ""
