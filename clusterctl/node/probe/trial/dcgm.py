"""DCGM's own short diagnostic, where it is installed: `dcgmi diag -r 1 -j`, and what it said.

DCGM 3 calls the outermost key `DCGM GPU Diagnostic` and the GPU `gpu_id` or `gpu_ids`; DCGM 4
says `DCGM Diagnostic`, and `entity_group` with `entity_id`. Lines of text may surround the JSON.
"""

from __future__ import annotations

import json
import signal
import subprocess
from typing import Any, Callable, Dict, Iterator, List

TITLES = ("DCGM Diagnostic", "DCGM GPU Diagnostic")
NO_ENGINE = "unable to connect to host engine"
CONFIGURATION = 5
"""The severity of an error that the machine's settings cause, such as persistence mode."""
GRACE_SECONDS = 3.0
OUTPUT_LIMIT = 1 << 20


def diagnose(limit_s: float, before: Callable[[], None]) -> Dict[str, Any]:
    """Run the diagnostic; `before` is called in its process."""
    try:
        # At SIGTERM dcgmi also ends the diagnostic that the host engine runs for it.
        process = subprocess.Popen(
            ["dcgmi", "diag", "-r", "1", "-j"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            preexec_fn=before,  # noqa: PLW1509  (one thread)
        )
    except FileNotFoundError:
        return {"state": "absent"}
    except OSError as error:
        return {"state": "error", "words": str(error)}
    try:
        output, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
        try:
            process.communicate(timeout=GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
        return {"state": "timeout", "words": "no answer within %g s" % limit_s}
    return parse(output[:OUTPUT_LIMIT].decode("utf-8", "replace"), process.returncode)


def parse(text: str, exit_code: int) -> Dict[str, Any]:
    """Return the state, DCGM's version, the tests, and its words where there are no tests."""
    start, end = text.find("{"), text.rfind("}")
    try:
        document = json.loads(text[start : end + 1]) if start >= 0 else {}
    except (ValueError, RecursionError):
        document = {}
    body: Dict[str, Any] = next(
        (document[title] for title in TITLES if _is_dict(document.get(title))), {}
    )
    tests = list(_tests(body))
    if tests:
        metadata = document.get("metadata")
        version = (metadata if isinstance(metadata, dict) else body).get("version", "")
        return {"state": "ok", "version": str(version), "tests": tests}
    words = str(body.get("runtime_error") or "") or _last_line(text)
    state = "no-hostengine" if NO_ENGINE in text.lower() else "error"
    return {"state": state, "words": words or "exit code %d, without output" % exit_code}


def is_broken(found: Dict[str, Any]) -> bool:
    """Tell whether a test failed for another reason than the machine's settings."""
    return any(t["status"] == "fail" and not t["setting"] for t in found.get("tests", ()))


def _tests(body: Dict[str, Any]) -> Iterator[Dict[str, Any]]:
    """Yield one entry for each test's result: DCGM gives one per GPU, or one for all."""
    for category in _dicts(body.get("test_categories")):
        for test in _dicts(category.get("tests")):
            for result in _dicts(test.get("results")):
                warnings = _list(result.get("warnings"))
                severities = [w.get("error_severity") for w in warnings if _is_dict(w)]
                words = [str(w.get("warning", "") if _is_dict(w) else w) for w in warnings]
                yield {
                    "name": str(test.get("name", "")),
                    "status": str(result.get("status", "")).lower()[:4],  # fail, pass, skip, warn
                    "gpus": _gpus(result),
                    "words": "; ".join(words),
                    "setting": bool(severities) and set(severities) == {CONFIGURATION},
                }


def _gpus(result: Dict[str, Any]) -> List[int]:
    if str(result.get("entity_group", "GPU")).upper() != "GPU":
        return []
    named = str(result.get("entity_id", result.get("gpu_id", result.get("gpu_ids", ""))))
    return [int(number) for number in named.split(",") if number.strip().isdigit()]


def _is_dict(value: object) -> bool:
    return isinstance(value, dict)


def _list(value: object) -> List[Any]:
    return value if isinstance(value, list) else []


def _dicts(value: object) -> List[Dict[str, Any]]:
    return [item for item in _list(value) if isinstance(item, dict)]


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else ""
