"""The protocol holds in every interleaving of the small budgets; every seeded fault is found."""

from __future__ import annotations

import pytest

from tests.model import mutants, scenarios
from tests.model.explorer import explore


@pytest.mark.parametrize("name", scenarios.BY_NAME)
def test_the_protocol_holds(name: str) -> None:
    outcome = explore(scenarios.BY_NAME[name].model())
    assert outcome.violation is None, outcome.trace
    assert outcome.is_exhausted
    assert outcome.states > 1000


@pytest.mark.parametrize(
    ("name", "mutant"),
    [(name, mutant) for name, found in mutants.BY_SCENARIO.items() for mutant in found],
)
def test_a_seeded_fault_is_found(name: str, mutant: str) -> None:
    outcome = explore(scenarios.BY_NAME[name].model(mutant))
    assert outcome.violation is not None
    assert len(outcome.trace) == outcome.depth


@pytest.mark.parametrize(("name", "mutant"), mutants.SAFE)
def test_the_protocol_holds_without_this_rule(name: str, mutant: str) -> None:
    assert explore(scenarios.BY_NAME[name].model(mutant)).violation is None
