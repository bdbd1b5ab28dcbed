"""A report of more findings than it keeps."""

from __future__ import annotations

from streamlog.repair.findings import FINDINGS_MAX, Finding, FindingKind, RepairReport, Severity


def test_a_report_keeps_its_errors_behind_any_number_of_notes() -> None:
    report = RepairReport()
    for number in range(FINDINGS_MAX + 1):
        report.add(Finding(FindingKind.STAGED, Severity.NOTE, f"object {number} was staged"))
    error = Finding(FindingKind.TOPIC, Severity.ERROR, "a topic is lost")
    report.add(error)
    assert report.findings[-1] is error
    assert len(report.findings) == FINDINGS_MAX + 1
    assert report.by_kind[FindingKind.STAGED] == FINDINGS_MAX + 1
