"""Damaged objects are tried again, later each time."""

from __future__ import annotations

from streamlog.compaction.quarantine import REST_S, REST_S_MAX, Quarantine
from streamlog.testing.clocks import ManualClock


def test_a_rest_ends_and_doubles() -> None:
    clock = ManualClock()
    quarantine = Quarantine(clock)
    wanted = REST_S
    for _ in range(12):
        assert quarantine.add(7) == wanted
        clock.advance(int(wanted * 1000) - 1)
        assert quarantine.resting == {7}
        clock.advance(1)
        assert quarantine.resting == frozenset()
        assert quarantine.due == {7}
        wanted = min(2 * wanted, REST_S_MAX)
    assert wanted == REST_S_MAX
    quarantine.clear([7, 8])
    assert quarantine.due == frozenset()
    assert quarantine.add(7) == REST_S
