"""Engines with one promise broken on purpose: histories find each of them.

Mutants that take many seeds are tried by `python -m tests.simulation --mutants`.
"""

from __future__ import annotations

import pytest

from tests.simulation.mutants.every import MUTANTS
from tests.simulation.mutants.mutant import Mutant, Patch
from tests.simulation.mutants.table import failure_of_test, seed_that_finds

SEEDS = 60

QUICK = [mutant for mutant in MUTANTS if mutant.is_quick]
FOUND_BY_TESTS = [mutant for mutant in MUTANTS if mutant.found_by]


@pytest.mark.slow
@pytest.mark.parametrize("mutant", QUICK, ids=lambda mutant: mutant.name)
def test_a_mutant_is_found(mutant: Mutant) -> None:
    assert seed_that_finds(mutant, range(SEEDS)) is not None


@pytest.mark.slow
@pytest.mark.parametrize("mutant", FOUND_BY_TESTS, ids=lambda mutant: mutant.name)
def test_a_mutant_that_no_history_finds_is_found_by_its_test(mutant: Mutant) -> None:
    assert failure_of_test(mutant)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_replaces_existing_attributes_and_restores_them(mutant: Mutant) -> None:
    replaced: list[tuple[object, str, object]] = []

    class Noted(Patch):
        def set(self, owner: object, name: str, value: object) -> object:
            old = super().set(owner, name, value)
            replaced.append((owner, name, old))
            return old

    patch = Noted()
    mutant.install(patch)
    assert replaced
    for owner, name, old in replaced:
        assert vars(owner)[name] is not old
    patch.undo()
    for owner, name, old in replaced:
        assert vars(owner)[name] is old
