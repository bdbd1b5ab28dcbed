"""Exactly once, whatever fails: seeded runs of the sink over an engine that is killed."""

from __future__ import annotations

import pytest

from tests.spark.chaos import chaos

RUNS = 200
KINDS = {
    "abort refused",
    "abort: answer lost",
    "commit arrives late, driver gives up",
    "commit arrives, driver gives up",
    "commit never arrives",
    "commit repeated by a second driver",
    "commit: answer lost",
    "commit: came twice",
    "commit: node killed meanwhile",
    "driver killed after the commit",
    "driver killed before the abort",
    "driver killed before the commit",
    "late commit found its objects dropped",
    "stage refused",
    "stage: answer lost",
    "stage: came twice",
    "stage: node killed meanwhile",
    "status: answer lost",
    "task failed, what it staged is dropped",
    "task killed, what it staged stays",
    "two attempts ended, one counts",
}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_writes_lose_and_double_no_row() -> None:
    report = chaos(RUNS, seed=1)
    assert report.is_good, report.to_json()
    assert report.runs == RUNS
    assert report.rows > 10 * RUNS
    assert set(report.faults) >= KINDS


TRANSACTION_KINDS = {
    "addpartitions: answer lost",
    "addpartitions: came twice",
    "addpartitions: node killed meanwhile",
    "attach: answer lost",
    "attach: came twice",
    "commit arrives late, driver gives up",
    "commit arrives, driver gives up",
    "commit never arrives",
    "commit repeated by a second driver",
    "driver killed after the commit",
    "driver killed before the abort",
    "driver killed before the commit",
    "endtransaction: answer lost",
    "endtransaction: came twice",
    "initproducerid: answer lost",
    "late end was refused",
    "stage: answer lost",
    "stage: node killed meanwhile",
}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_writes_that_transactions_commit_lose_and_double_no_row() -> None:
    report = chaos(RUNS, seed=1, transactions=True)
    assert report.is_good, report.to_json()
    assert report.runs == RUNS
    assert report.rows > 10 * RUNS
    assert set(report.faults) >= TRANSACTION_KINDS, report.to_json()


def test_a_writer_that_is_another_one_at_each_attempt_is_found_out() -> None:
    report = chaos(15, seed=1, writer_ids=lambda run, attempt: f"query-{run}-{attempt}")
    assert report.twice > 0


def test_without_faults_there_is_nothing_to_find() -> None:
    report = chaos(3, seed=1, faults=0)
    assert report.is_good
    assert not report.faults
