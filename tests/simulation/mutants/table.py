"""The table of docs/simulation.md: how many seeds it takes to find each mutant."""

from __future__ import annotations

import logging
import multiprocessing
import re
from collections.abc import Sequence

from streamlog.testing.simulation.history import Failed, run_history
from tests.simulation.mutants.every import MUTANTS
from tests.simulation.mutants.mutant import Mutant, installed

_BUG = re.compile(r"(?:Type|Attribute|Name)Error\(.*")
"""The engine has changed, and the mutant's replacement does not fit any more."""
HEAD = "| mutant | the broken engine | wal | seeds | found as |\n|---|---|---|---|---|"


def seed_that_finds(mutant: Mutant, seeds: Sequence[int]) -> Failed | None:
    """The failure of the first seed that fails; None when all seeds pass."""
    with installed(mutant):
        for seed in seeds:
            try:
                run_history(seed, mutant.wal, keep_trace=False)
            except Failed as failure:
                if (bug := _BUG.search(str(failure))) is not None:
                    raise RuntimeError(
                        f"the mutant {mutant.name} is broken itself: {bug[0]}"
                    ) from failure
                return failure
    return None


def find_mutants(names: Sequence[str] | None, first: int, seeds: int, jobs: int) -> int:
    """Prints the table; 1 when a mutant was not found."""
    mutants = [m for m in MUTANTS if (m.name in names if names else not m.found_by)]
    tasks = [(mutant.name, first, seeds) for mutant in mutants]
    print(HEAD, flush=True)
    context = multiprocessing.get_context("spawn")
    missed = 0
    with context.Pool(jobs, logging.disable, (logging.CRITICAL,)) as pool:
        for mutant, (seed, how) in zip(mutants, pool.imap(_find, tasks), strict=True):
            tried = f"{seed - first + 1}" if seed is not None else f"none of {seeds}"
            missed += seed is None
            print(
                f"| {mutant.name} | {mutant.broken} | {mutant.wal} | {tried} | {how} |", flush=True
            )
    return 1 if missed else 0


def _find(task: tuple[str, int, int]) -> tuple[int | None, str]:
    name, first, seeds = task
    mutant = next(mutant for mutant in MUTANTS if mutant.name == name)
    failure = seed_that_finds(mutant, range(first, first + seeds))
    if failure is None:
        return None, ""
    cause = failure.__cause__
    text = f"{type(cause).__name__}: {cause}".splitlines()[0].replace("|", "\\|")
    return failure.seed, text if len(text) <= 110 else text[:107] + "…"
