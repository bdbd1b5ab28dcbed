"""Each case of Kafka's tests names tests that exist, or a reason; the page counts them."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
TABLE = tomllib.loads((HERE / "kafka_tests.toml").read_text())
FILES: dict[str, str] = TABLE["files"]
CASES: dict[str, dict[str, list[str] | str]] = TABLE["cases"]


def names_in(path: Path) -> set[str]:
    """The test functions and methods of a file."""
    return {
        node.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def test_every_test_that_is_named_exists() -> None:
    there = {alias: names_in(ROOT / path) for alias, path in FILES.items()}
    named = {
        test for cases in CASES.values() for tests in cases.values() for test in tests
        if isinstance(tests, list)
    }  # fmt: skip
    pairs = [(alias, name) for alias, _, name in (test.partition("::") for test in named)]
    assert {alias for alias, _ in pairs} == set(FILES)
    missing = sorted(f"{alias}::{name}" for alias, name in pairs if name not in there[alias])
    assert not missing


def test_every_case_names_tests_or_a_reason() -> None:
    for cases in CASES.values():
        for case, found in cases.items():
            assert found, case
            assert isinstance(found, list) or " " in found, f"{case}: {found} is no reason"


def test_the_page_has_the_counts() -> None:
    page = (ROOT / "docs/conformance.md").read_text()
    for name, cases in CASES.items():
        covered = sum(isinstance(found, list) for found in cases.values())
        row = f"| {name} | {len(cases)} | {covered} | {len(cases) - covered} |"
        assert row in page, f"docs/conformance.md should say {row}"
    everything = [found for cases in CASES.values() for found in cases.values()]
    covered = sum(isinstance(found, list) for found in everything)
    total = f"| all | {len(everything)} | {covered} | {len(everything) - covered} |"
    assert total in page, f"docs/conformance.md should say {total}"
