"""One way to break the engine on purpose, and how it is put in place and taken back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from streamlog.testing.simulation.world.world import WalMode


class Patch:
    """Replaces attributes until `undo`."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> Any:
        """What was there before."""
        old = owner.__dict__[name]
        self._undo.append((owner, name, old))
        setattr(owner, name, value)
        return old

    def undo(self) -> None:
        for owner, name, old in reversed(self._undo):
            setattr(owner, name, old)


@dataclass(frozen=True)
class Mutant:
    """`is_quick`: found within a few seeds, so that it is tried at every test run.

    `found_by`: the test that finds it, where the histories do not; `--mutants` leaves it out then.
    """

    name: str
    broken: str
    wal: WalMode
    install: Callable[[Patch], None]
    is_quick: bool = False
    found_by: str = ""


@contextlib.contextmanager
def installed(mutant: Mutant) -> Iterator[None]:
    """The engine is broken inside."""
    patch = Patch()
    try:
        mutant.install(patch)
        yield
    finally:
        patch.undo()
