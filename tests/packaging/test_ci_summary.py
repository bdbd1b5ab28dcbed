"""The last line of a CI run says what happened, whatever happened to pytest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SUMMARY = Path(__file__).resolve().parents[2] / ".ci" / "summary.py"

REPORT = """<testsuites><testsuite>
<testcase name="a"/><testcase name="b"/>
{more}
</testsuite></testsuites>"""


def _summary(report: Path, *, lint: int = 0, test: int = 0) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, SUMMARY, report, "--lint", str(lint), "--test", str(test)],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("more", "lint", "test", "code", "line"),
    [
        ("", 0, 0, 0, "2 passed, 0 failed, 0 skipped"),
        ('<testcase name="d"><failure/></testcase>', 0, 1, 1, "2 passed, 1 failed, 0 skipped"),
        ('<testcase name="d"><error/></testcase>', 0, 1, 1, "2 passed, 1 failed, 0 skipped"),
        ('<testcase name="c"><skipped/></testcase>', 0, 0, 1, "2 passed, 1 failed, 1 skipped"),
        ("", 0, 3, 1, "2 passed, 1 failed, 0 skipped"),
        ("", 2, 0, 1, "2 passed, 1 failed, 0 skipped"),
    ],
)
def test_last_line_and_exit_code(
    tmp_path: Path, more: str, lint: int, test: int, code: int, line: str
) -> None:
    report = tmp_path / "report.xml"
    report.write_text(REPORT.format(more=more))
    assert _summary(report, lint=lint, test=test) == (code, line)


def test_no_tests_and_no_report_are_failures(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    assert _summary(report, test=5) == (1, "0 passed, 1 failed, 0 skipped")
    report.write_text("<testsuites")
    assert _summary(report) == (1, "0 passed, 1 failed, 0 skipped")
    report.write_text("<testsuites/>")
    assert _summary(report) == (1, "0 passed, 1 failed, 0 skipped")
