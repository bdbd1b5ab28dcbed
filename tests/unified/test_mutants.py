"""Each of these mistakes is found by the histories: so they can fail.

Most are the simulator's mutants, which has clients, a cleaner and retention beside the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from streamlog.errors import StreamlogError
from streamlog.unified.partition_folder import PartitionFolder
from streamlog.unified.recovery import scan
from tests.simulation.mutants.mutant import Patch
from tests.simulation.mutants.unified import UNIFIED_MUTANTS
from tests.unified.histories import run_history

SEEDS_MAX = 3000
Install = Callable[[Patch], None]
SIMULATED = (
    "acked without a sync",
    "acked before the write",
    "recovery point ahead",
    "roll without folder sync",
    "failed sync believed",
    "torn bytes left",
    "tail not replayed",
    "snapshot of a later offset",
    "batches before the snapshot forgotten",
    "start not written",
    "index trusted",
)
"""Those of the simulator that need nothing but a log and its folder."""


def recovery_point_behind_the_sealed_segment(patch: Patch) -> None:
    def note(self: Any, offset: int) -> None:
        self._owner.recovery_points.note(self._partition, offset + 3)
        self._owner.save_soon()

    patch.set(PartitionFolder, "note_recovery_point", note)


def recovers_without_crc(patch: Patch) -> None:
    patch.set(scan, "_has_crc", lambda *_: True)


MUTANTS: dict[str, Install] = {
    **{one.name: one.install for one in UNIFIED_MUTANTS if one.name in SIMULATED},
    "recovery point behind the sealed segment": recovery_point_behind_the_sealed_segment,
    "recovery without CRC": recovers_without_crc,
}
assert len(MUTANTS) == len(SIMULATED) + 2


@pytest.fixture
def patch() -> Iterator[Patch]:
    made = Patch()
    try:
        yield made
    finally:
        made.undo()


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mistake_is_found(name: str, patch: Patch) -> None:
    MUTANTS[name](patch)
    for seed in range(SEEDS_MAX):
        try:
            run_history(seed)
        except (AssertionError, StreamlogError, TimeoutError, KeyError):
            return
    pytest.fail(f"{SEEDS_MAX} histories did not notice: {name}")
