"""What tests of faults share."""

from __future__ import annotations

from collections.abc import Generator

import pytest
from tests.support.system import show_logs


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Function) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that fails on a shared stack shows what the services said."""
    report = yield
    show_logs(report, item.funcargs.get("system"))
    return report
