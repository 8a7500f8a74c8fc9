"""What tests cost in CPU seconds, their processes' included: wall times mislead on a machine that others use.

    PYTHONPATH=tests .venv/bin/python -m pytest -p support.cpu_time tests/runs

ends with the dearest tests and files. The first test that needs a fixture of the session or module pays for it, and the
first that imports a module for that.
"""

import os
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

TICKS = os.sysconf("SC_CLK_TCK")
SHOWN = 40
spent = []


def used(pid=None):
    """CPU seconds of a process and of all that it started: those that live, and those that were waited for."""
    pid = pid or os.getpid()
    seconds = 0.0
    with suppress(OSError):  # it has ended, or one of its threads
        seconds = sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15])) / TICKS
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                seconds += sum(used(int(child)) for child in (task / "children").read_text().split())
    return seconds


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Each phase's report tells what was used since the one before."""
    report = yield
    now = used()
    report.cpu_seconds, item.config.cpu_seconds = now - getattr(item.config, "cpu_seconds", 0.0), now
    return report


def pytest_runtest_logreport(report):
    spent.append((getattr(report, "cpu_seconds", 0.0), report.when, report.nodeid))  # a crash has none


def pytest_terminal_summary(terminalreporter):
    files = Counter()
    for seconds, _, test in spent:
        files[test.partition("::")[0]] += seconds
    terminalreporter.write_sep("=", f"{sum(files.values()):.0f} CPU seconds")
    for seconds, when, test in sorted(spent, reverse=True)[:SHOWN]:
        terminalreporter.write_line(f"{seconds:7.2f}  {when:8}  {test}")
    for test, seconds in files.most_common(SHOWN):
        terminalreporter.write_line(f"{seconds:7.2f}  {test}")
