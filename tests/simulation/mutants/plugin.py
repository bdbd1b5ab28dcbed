"""A pytest plugin that breaks the engine: `-p tests.simulation.mutants.plugin --mutant NAME`."""

from __future__ import annotations

import pytest

from tests.simulation.mutants.every import MUTANTS
from tests.simulation.mutants.mutant import Patch


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--mutant", required=True, choices=[mutant.name for mutant in MUTANTS])


def pytest_configure(config: pytest.Config) -> None:
    name = config.getoption("--mutant")
    next(mutant for mutant in MUTANTS if mutant.name == name).install(Patch())
