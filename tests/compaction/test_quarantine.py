"""Damaged objects are tried again, later each time."""

from __future__ import annotations

from streamlog.compaction.quarantine import PAUSE_S, PAUSE_S_MAX, Quarantine
from streamlog.testing.clocks import ManualClock


def test_a_pause_ends_and_doubles() -> None:
    clock = ManualClock()
    quarantine = Quarantine(clock)
    wanted = PAUSE_S
    for _ in range(12):
        assert quarantine.add(7) == wanted
        clock.advance(int(wanted * 1000) - 1)
        assert quarantine.excluded == {7}
        clock.advance(1)
        assert quarantine.excluded == frozenset()
        assert quarantine.due == {7}
        wanted = min(2 * wanted, PAUSE_S_MAX)
    assert wanted == PAUSE_S_MAX
    quarantine.clear([7, 8])
    assert quarantine.due == frozenset()
    assert quarantine.add(7) == PAUSE_S
