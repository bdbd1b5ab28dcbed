"""In which order waiting appends get room in the budget."""

from __future__ import annotations

import asyncio

import pytest

from streamlog.engine.append.budget import Budget, BudgetReservation, Waiter
from streamlog.errors import Closed, Overloaded, StreamlogError
from streamlog.model.batch import Priority
from tests.engine.harness import until


class Queue:
    """Named waiters, and their outcomes."""

    def __init__(self, bound_bytes: int) -> None:
        self.pressed = 0
        self.budget = Budget(bound_bytes, self._make_room)
        self.granted: list[str] = []
        self.refused: list[tuple[str, StreamlogError]] = []

    def _make_room(self) -> None:
        self.pressed += 1

    def wait(
        self,
        name: str,
        charge: int,
        *,
        priority: Priority = Priority.NORMAL,
        delay_s: float | None = None,
    ) -> Waiter:
        waiter = Waiter(
            charge,
            lambda: self.granted.append(name),
            lambda error: self.refused.append((name, error)),
        )
        self.budget.wait(waiter, priority, delay_s)
        return waiter


def test_a_small_charge_does_not_overtake_a_waiter() -> None:
    queue = Queue(10)
    assert queue.budget.try_take(8)
    queue.wait("large", 9)
    queue.wait("small", 1)
    assert not queue.budget.try_take(1)
    queue.budget.release(8)
    assert queue.granted == ["large", "small"]
    assert queue.budget.used_bytes == 10
    assert queue.pressed


def test_background_appends_wait_for_all_others() -> None:
    queue = Queue(10)
    assert queue.budget.try_take(10)
    queue.wait("background", 5, priority=Priority.BACKGROUND)
    queue.wait("normal", 10)
    queue.budget.release(10)
    assert queue.granted == ["normal"]
    queue.budget.release(10)
    assert queue.granted == ["normal", "background"]


def test_an_oversized_charge_is_granted_alone() -> None:
    queue = Queue(10)
    assert queue.budget.try_take(100)
    assert not queue.budget.try_take(1)
    queue.budget.release(100)
    assert queue.budget.used_bytes == 0


def test_a_deadline_ends_the_wait_and_grants_the_next_waiter() -> None:
    async def scenario() -> None:
        queue = Queue(10)
        assert queue.budget.try_take(5)
        queue.wait("large", 10, delay_s=0.001)
        queue.wait("small", 5)
        assert queue.granted == []
        await until(lambda: bool(queue.granted))
        ((name, error),) = queue.refused
        assert name == "large"
        assert isinstance(error, Overloaded)
        assert error.fields == {"queued_bytes": 5, "bound_bytes": 10}
        queue.wait("late", 5, delay_s=-1)
        assert queue.refused[1][0] == "late"

    asyncio.run(scenario())


def test_refusing_all_ends_every_wait_once() -> None:
    queue = Queue(10)
    assert queue.budget.try_take(10)
    given_up = queue.wait("given up", 1)
    queue.wait("waits", 1)
    queue.budget.give_up(given_up)
    queue.budget.refuse_all(lambda: Closed("over"))
    assert [name for name, _ in queue.refused] == ["waits"]
    queue.budget.release(10)
    assert queue.granted == []
    assert queue.budget.waiters == 0


@pytest.mark.parametrize(("reserved", "charge"), [(10, 4), (4, 10), (7, 7)])
def test_a_reservation_becomes_one_charge(reserved: int, charge: int) -> None:
    queue = Queue(20)
    assert queue.budget.try_take(reserved)
    reservation = BudgetReservation(queue.budget, reserved, reserved)
    reservation.use(charge)
    assert queue.budget.used_bytes == charge
    reservation.release()
    assert queue.budget.used_bytes == charge


def test_releasing_a_reservation_twice_is_harmless() -> None:
    queue = Queue(20)
    assert queue.budget.try_take(5)
    reservation = BudgetReservation(queue.budget, 5, 5)
    reservation.release()
    reservation.release()
    assert queue.budget.used_bytes == 0
