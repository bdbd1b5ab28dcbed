"""`python -m tests.simulation --mutants | --coverage`: what the simulator finds and reaches."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from tests.simulation.coverage import measure
from tests.simulation.mutants.every import MUTANTS
from tests.simulation.mutants.table import find_mutants

MUTANT_SEEDS = 2000
COVERAGE_SEEDS = 100


def main(arguments: list[str] | None = None) -> int:
    """Returns 1 if a mutant is not found, or a line that is not listed is not reached."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument(
        "--mutants",
        action="store_true",
        help="break the engine in every known way; print which seed or test found it",
    )
    asked.add_argument(
        "--mutant",
        action="append",
        metavar="NAME",
        choices=[mutant.name for mutant in MUTANTS],
        help="only this mutant, by histories",
    )
    asked.add_argument(
        "--coverage",
        action="store_true",
        help="print lines and branches of commit, recovery and deletion that no seed reached",
    )
    parser.add_argument(
        "--seeds",
        type=int,
        help=f"how many histories ({MUTANT_SEEDS} per mutant, {COVERAGE_SEEDS} for coverage)",
    )
    parser.add_argument("--first", type=int, default=0, help="seed of the first history (0)")
    parser.add_argument("--jobs", type=int, default=1, help="processes (1)")
    parser.add_argument(
        "--coverage-data",
        type=Path,
        metavar="FILE",
        help="data of `coverage run --branch` of other tests: what they reach counts as reached",
    )
    options = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)
    if options.coverage:
        seeds = range(options.first, options.first + (options.seeds or COVERAGE_SEEDS))
        return measure(seeds, options.jobs, also=options.coverage_data)
    return find_mutants(options.mutant, options.first, options.seeds or MUTANT_SEEDS, options.jobs)


if __name__ == "__main__":
    sys.exit(main())
