"""Figures of a run become tables of a page; a row that failed, and an aim without one, say so."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.kafka.bench import Bench
from benchmarks.page import put_under, table
from benchmarks.report import Report, Row


def _bench() -> tuple[Bench, list[str]]:
    printed: list[str] = []
    return Bench(Report(printed.append), {}, Path(), 1.0), printed


def test_a_row_that_fails_says_so_and_the_others_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    bench, printed = _bench()

    def fails() -> None:
        raise RuntimeError("the server is gone")

    bench.attempt("g", "first", fails)
    bench.attempt("g", "second", lambda: bench.report.add(Row("g", "second", 1.0, "MB/s")))
    assert [row.verdict for row in bench.report.rows] == ["failed", ""]
    assert any("the server is gone" in line for line in printed)
    assert "RuntimeError" in capsys.readouterr().err


def test_a_group_whose_time_is_over_measures_one_round() -> None:
    bench, _ = _bench()
    bench.begin_slot(0)
    assert list(bench.rounds(5)) == [0]
    bench.begin_slot(1)
    assert list(bench.rounds(5)) == [0, 1, 2, 3, 4]


def test_a_group_gets_what_those_before_it_left_of_their_time() -> None:
    bench, _ = _bench()
    bench.begin_slot(1)
    bench.begin_slot(0)
    assert list(bench.rounds(3)) == [0, 1, 2]
    bench.begin_slot(-2)
    assert list(bench.rounds(3)) == [0]


def test_each_aim_is_a_line_of_the_page_with_its_verdict(tmp_path: Path) -> None:
    bench, _ = _bench()
    bench.meet("idle 500", 19.0)
    bench.meet("idle 5000", [2.0, 4.0, 9.0])
    bench.report.add(Row("idle", "node", 19.0, "%"))
    bench.add_aims(["idle"])
    bench.report.save(tmp_path / "run.json")
    text = table([tmp_path / "run.json"])
    aims, rows = text.split("| row |")
    assert "wait of 500 ms | 19 % of a core | ≤ 20 | reached |" in aims
    assert "wait of 5 s | 4 % of a core (2–9) | ≤ 3 | **not reached** |" in aims
    assert "memory of an idle consumer | ? KB | ≤ 20 | not measured |" in aims
    assert "idle: node" in rows
    assert text.count("Measured on 20") == 2


def test_an_aim_with_another_condition_is_reached_by_that() -> None:
    bench, _ = _bench()
    bench.meet("durable", 1.2, {"by_bare": 0.95}, is_reached=True)
    bench.add_aims(["clients"])
    assert bench.report.rows[0].verdict == "reached"


def test_tables_take_the_place_of_what_stood_under_the_heading() -> None:
    page = "# A\n\n## B\nold\n\nolder\n\n## C\nkept\n"
    assert put_under(page, "## B", "new") == "# A\n\n## B\nnew\n\n## C\nkept\n"
    assert put_under(page, "## C", "new") == "# A\n\n## B\nold\n\nolder\n\n## C\nnew\n"
    with pytest.raises(ValueError, match="0 times"):
        put_under(page, "## D", "new")
