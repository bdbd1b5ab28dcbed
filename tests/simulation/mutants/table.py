"""The table of docs/simulation.md: how many seeds it takes to find each mutant, or which test."""

from __future__ import annotations

import logging
import multiprocessing
import re
import subprocess
import sys
from collections.abc import Sequence

from streamlog.testing.simulation.history import Failed
from streamlog.testing.simulation.many import run_planned
from tests.simulation.mutants.every import MUTANTS
from tests.simulation.mutants.mutant import Mutant, installed
from tests.support.command import ROOT

_BUG = re.compile(r"(?:Type|Attribute|Name)Error[(:].*")
"""The engine has changed, and the mutant's replacement does not fit any more."""
_TEST_FAILED = re.compile(r"^E {3}(.*)", re.MULTILINE)
TEST_S_MAX = 300
HEAD = "| mutant | the broken engine | wal | seeds | found as |\n|---|---|---|---|---|"


def seed_that_finds(mutant: Mutant, seeds: Sequence[int]) -> Failed | None:
    """The failure of the first seed that fails; None when all seeds pass."""
    with installed(mutant):
        for seed in seeds:
            try:
                run_planned(seed, mutant.wal, mutant.plan, keep_trace=False)
            except Failed as failure:
                if (bug := _BUG.search(str(failure))) is not None:
                    raise RuntimeError(
                        f"the mutant {mutant.name} is broken itself: {bug[0]}"
                    ) from failure
                return failure
    return None


def failure_of_test(mutant: Mutant) -> str:
    """How the test `found_by` fails on the mutant; "" if it passes."""
    command = (
        *(sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"),
        *("-p", "tests.simulation.mutants.plugin", "--mutant", mutant.name, mutant.found_by),
    )
    ran = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=TEST_S_MAX, check=False
    )
    if ran.returncode == 0:
        return ""
    failed = _TEST_FAILED.search(ran.stdout)
    if failed is None or _BUG.match(failed[1].strip()):
        raise RuntimeError(f"the mutant {mutant.name} is broken itself: {ran.stdout}{ran.stderr}")
    return failed[1].strip()


def find_mutants(names: Sequence[str] | None, first: int, seeds: int, jobs: int) -> int:
    """Prints the table; 1 when a mutant was not found.

    Without `names` of all mutants, first of those that tests find. With `names` histories look for
    each of them.
    """
    print(HEAD, flush=True)
    missed = 0
    for mutant in MUTANTS if not names else ():
        if mutant.found_by:
            how = failure_of_test(mutant)
            missed += not how
            print(
                f"| {mutant.name} | {mutant.broken} | {mutant.wal} | `{mutant.found_by}` | "
                f"{_short(how)} |",
                flush=True,
            )
    mutants = [m for m in MUTANTS if (m.name in names if names else not m.found_by)]
    tasks = [(mutant.name, first, seeds) for mutant in mutants]
    context = multiprocessing.get_context("spawn")
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
    return failure.seed, _short(f"{type(cause).__name__}: {cause}")


def _short(text: str) -> str:
    line = text.split("\n", 1)[0].replace("|", "\\|")
    return line if len(line) <= 110 else line[:107] + "…"
