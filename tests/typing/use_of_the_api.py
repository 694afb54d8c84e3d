"""What a person writes, as type checkers see it: mypy reads this file, nobody runs it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_type

import clusterctl
from clusterctl import CheckReport, ClusterError, Event, LogLine, Run, Session


def heard(event: Event) -> None:
    print(event)


def use() -> None:
    with clusterctl.Session("hosts.yaml") as session:
        assert_type(session, Session)
        report = session.check(nodes="gpu[01-04]", only="network", on_event=heard)
        assert_type(report, CheckReport)
        assert_type(report.ok, bool)
        run = session.launch(["train.py"], gpus=4, env={"LR": "1"}, launcher="direct")
        assert_type(run, Run)
        assert_type(run.logs(follow=True), Iterator[LogLine])
        assert_type(run.wait(timeout=3.0).exit_code, int)
        cause = run.status().first_cause
        if cause is not None:
            assert_type(cause.node, str)
        assert_type(session.resume(checkpoint="latest", max_restarts=1), Run)
        assert_type([one.run for one in session.runs()], list[str])


def misuse(session: Session) -> None:
    session.launch(["train.py"], gpu=4)  # type: ignore[call-arg]
    session.launch(["train.py"], gpus="4")  # type: ignore[arg-type]
    session.launch(["train.py"], launcher="horovod")  # type: ignore[arg-type]
    session.resume()  # type: ignore[call-arg]
    clusterctl.Sesion  # type: ignore[attr-defined]  # noqa: B018


def catch(error: clusterctl.LaunchRefused) -> ClusterError:
    return error
