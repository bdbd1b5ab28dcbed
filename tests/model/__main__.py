"""Explores scenarios and mutants and prints the tables of docs/protocol.md.

python -m tests.model [--full] [--trace] [SCENARIO ...]
"""

from __future__ import annotations

import argparse

from tests.model import mutants, scenarios
from tests.model.explorer import Outcome, explore


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenario", nargs="*", metavar="SCENARIO", help="default: all")
    parser.add_argument("--full", action="store_true", help="the large budgets (minutes)")
    parser.add_argument("--trace", action="store_true", help="the steps to each mutant's violation")
    args = parser.parse_args()
    names = args.scenario or list(scenarios.BY_NAME)
    is_right = _explore_scenarios(names, args.full)
    return 0 if _explore_mutants(names, args.full, args.trace) and is_right else 1


def _explore_scenarios(names: list[str], is_full: bool) -> bool:
    print("| scenario | contents | states | edges | depth | s |\n|---|---|---|---|---|---|")
    found: list[Outcome] = []
    for name in names:
        scenario = scenarios.BY_NAME[name]
        outcome = explore(scenario.model(is_full=is_full))
        found.append(outcome)
        note = "" if outcome.is_exhausted else " (not exhausted)"
        print(
            f"| {name} | {scenario.contents}{note} | {outcome.states:,} | {outcome.edges:,} | "
            f"{outcome.depth} | {outcome.seconds:.1f} |",
            flush=True,
        )
        if outcome.violation:
            print(f"VIOLATION: {outcome.violation}: {_text(outcome)}")
    states, edges = sum(one.states for one in found), sum(one.edges for one in found)
    print(f"| total | | {states:,} | {edges:,} | | {sum(one.seconds for one in found):.0f} |\n")
    return all(one.violation is None and one.is_exhausted for one in found)


def _explore_mutants(names: list[str], is_full: bool, with_trace: bool) -> bool:
    print("| seeded fault | scenario | found as | steps | states |\n|---|---|---|---|---|")
    is_right = True
    safe = {name: (mutant,) for name, mutant in mutants.SAFE}
    for name in names:
        for mutant in mutants.BY_SCENARIO.get(name, ()) + safe.get(name, ()):
            outcome = explore(scenarios.BY_NAME[name].model(mutant, is_full=is_full))
            is_right = is_right and (outcome.violation is None) == (mutant in safe.get(name, ()))
            print(
                f"| {mutant} | {name} | {outcome.violation or '**not found**'} | {outcome.depth} | "
                f"{outcome.states:,} |",
                flush=True,
            )
            if with_trace and outcome.violation:
                print(f"    {_text(outcome)}")
    return is_right


def _text(outcome: Outcome) -> str:
    return "; ".join(" ".join(map(str, label)) for label in outcome.trace)


if __name__ == "__main__":
    raise SystemExit(main())
