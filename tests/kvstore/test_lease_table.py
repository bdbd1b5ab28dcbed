"""Deadlines of leases: the next one is known without a look at every lease."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from streamlog.kvstore import lease as lease_module
from streamlog.kvstore.lease import Lease, LeaseTable

Step = tuple[int, int | None]
"""A lease's id, and its new deadline; None: it has ended."""


@given(
    st.lists(st.lists(st.tuples(st.integers(1, 8), st.none() | st.integers(0, 50)), max_size=5)),
    st.sampled_from([0, 3, 1000]),
)
def test_the_next_deadline_is_the_earliest_of_all_leases(
    groups: list[list[Step]], stale_max: int
) -> None:
    before = lease_module.STALE_MAX
    lease_module.STALE_MAX = stale_max
    try:
        table, model = LeaseTable(), dict[int, float]()
        for steps in groups:
            leases: dict[int, Lease | None] = {}
            for lease_id, deadline in steps:
                if deadline is None:
                    leases[lease_id] = None
                    model.pop(lease_id, None)
                else:
                    leases[lease_id] = Lease(lease_id, 1, deadline)
                    model[lease_id] = deadline
            table.apply(leases, 9, ())
            assert table.next_deadline() == min(model.values(), default=math.inf)
            assert {one.lease_id for one in table.due(25)} == {
                lease_id for lease_id, deadline in model.items() if deadline <= 25
            }
    finally:
        lease_module.STALE_MAX = before


def test_a_table_of_many_leases_visits_none_of_them_for_the_next_deadline() -> None:
    table = LeaseTable()
    table.apply({number: _Counted(number, 1, 1000.0 + number) for number in range(1, 500)}, 500, ())
    _Counted.looks = 0
    for _ in range(100):
        assert table.next_deadline() == 1001
    assert _Counted.looks <= 200


class _Counted(Lease):
    """A lease that counts how often its deadline is asked for."""

    looks = 0

    def __getattribute__(self, name: str) -> object:
        if name == "deadline":
            _Counted.looks += 1
        return super().__getattribute__(name)
