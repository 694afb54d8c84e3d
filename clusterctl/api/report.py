"""What a check found, as Python and notebooks print it."""

import io

from clusterctl.values import dataclass
from clusterctl.verbs.preflight.check import CheckResult


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport(CheckResult):
    """What `check` found: prints as a table, in a notebook too; `document()` is it as JSON."""

    @property
    def ok(self) -> bool:
        """Nothing failed, and nothing is unknown."""
        return self.exit_code == 0

    def __repr__(self) -> str:
        from clusterctl.report.check import summary

        return f"<CheckReport {self.cluster}: {summary(self)}>"

    def __str__(self) -> str:
        """Return what `clusterctl check` prints."""
        from clusterctl.report.check import print_check
        from clusterctl.report.console import make_console

        stream = io.StringIO()
        print_check(make_console(stream), self)
        return stream.getvalue().rstrip("\n")

    def _repr_html_(self) -> str:
        from clusterctl.report.html.check import html_part

        return html_part(self)
