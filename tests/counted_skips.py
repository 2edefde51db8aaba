"""A pytest plugin: what was skipped is counted and named, and is a failure where everything is required.

Loaded by `tests/suite.sh` with `-p counted_skips`; `STEPBOX_TEST_REQUIRE=all` makes a skip fail.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

EVERYTHING_REQUIRED = os.environ.get("STEPBOX_TEST_REQUIRE") == "all"


def _skipped(config: pytest.Config) -> list[Any]:
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    return list(reporter.stats.get("skipped", [])) if reporter else []


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    reports = _skipped(config)
    if not reports:
        return
    terminalreporter.section(f"{len(reports)} skipped", red=EVERYTHING_REQUIRED, yellow=not EVERYTHING_REQUIRED)
    for report in reports:
        # A skip's text is (file, line, reason).
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        terminalreporter.write_line(f"SKIPPED {report.nodeid}: {reason}")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if EVERYTHING_REQUIRED and _skipped(session.config) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
