"""Turns pytest's report and two exit codes into the last line of a run and its exit code.

A missing or broken report (pytest died, nothing was collected) counts as one failed check, and so
does a failed lint: the line never says "0 failed" when the exit code is not 0. A skipped test
counts as one, too: where CI runs, all that a test needs is installed, so a skip hides a test.
"""

from __future__ import annotations

import argparse
import sys
import xml.etree.ElementTree as ET
from pathlib import Path


def count(report: Path) -> tuple[int, int, list[str]]:
    """Passed and failed (errors too) tests of a JUnit report, and the names of skipped ones."""
    passed = failed = 0
    skipped: list[str] = []
    for case in ET.parse(report).getroot().iter("testcase"):
        kinds = {child.tag for child in case}
        if kinds & {"failure", "error"}:
            failed += 1
        elif "skipped" in kinds:
            skipped.append(f"{case.get('classname', '')}::{case.get('name', '')}: {_reason(case)}")
        else:
            passed += 1
    return passed, failed, skipped


def _reason(case: ET.Element) -> str:
    found = case.find("skipped")
    return "" if found is None else found.get("message", "")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", type=Path)
    parser.add_argument("--lint", type=int, required=True, help="exit code of lint")
    parser.add_argument("--test", type=int, required=True, help="exit code of pytest")
    args = parser.parse_args(argv)
    try:
        passed, failed, skipped = count(args.report)
    except (OSError, ET.ParseError) as error:
        print(f"no test report: {error}")
        passed, failed, skipped = 0, 0, []
    if failed == 0 and (args.test != 0 or passed == 0):
        print(f"pytest's exit code is {args.test} with {passed} passed tests: counted as a failure")
        failed += 1
    for name in skipped:
        print(f"skipped, counted as a failure: {name}")
    failed += len(skipped)
    if args.lint != 0:
        print("lint failed: counted as a failure")
        failed += 1
    print(f"{passed} passed, {failed} failed, {len(skipped)} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
