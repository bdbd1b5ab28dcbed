"""A mutant: one way to break the engine, with its installation and removal."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from streamlog.testing.simulation.history import PLAN
from streamlog.testing.simulation.many import AnyPlan
from streamlog.wal.config import WalMode


class Patch:
    """Replaces attributes until `undo`."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> Any:
        """Returns the value before."""
        old = owner.__dict__[name]
        self._undo.append((owner, name, old))
        setattr(owner, name, value)
        return old

    def undo(self) -> None:
        for owner, name, old in reversed(self._undo):
            setattr(owner, name, old)


@dataclass(frozen=True)
class Mutant:
    """`broken`: the mistake of the mutated engine. `is_quick`: a few seeds find it, so that the
    tests try it. `found_by`: the test that finds it if no history does, as pytest names it;
    `--mutants` runs that test instead of histories. `plan`: what its histories are like.
    """

    name: str
    broken: str
    wal: WalMode
    install: Callable[[Patch], None]
    is_quick: bool = False
    found_by: str = ""
    plan: AnyPlan = PLAN


@contextlib.contextmanager
def installed(mutant: Mutant) -> Iterator[None]:
    """Breaks the engine within the block."""
    patch = Patch()
    try:
        mutant.install(patch)
        yield
    finally:
        patch.undo()
