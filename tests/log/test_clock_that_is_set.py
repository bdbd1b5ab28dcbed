"""Producers are remembered as long as they should where the wall clock was set ahead, or back."""

from __future__ import annotations

import pytest

from streamlog.errors import QuotaExceeded
from streamlog.testing.logs.log_conformance import append, encoded
from tests.log.memory_log import run

HOUR_MS = 3_600_000
IDLE_MS = 600_000
EXPIRATION_MS = 24 * HOUR_MS


async def sent(t, producer_id, sequence=0):
    return await append(t.log, encoded([b"x"], at_ms=1, producer=(producer_id, 0, sequence)))


async def sent_ahead(t, producer_id):
    """While the clock is ahead, for this one batch."""
    t.clock.set_by(10 * HOUR_MS)
    await sent(t, producer_id)
    t.clock.set_by(-10 * HOUR_MS)


def known(t):
    return [one.producer_id for one in t.log.producers()]


@pytest.mark.parametrize("is_opened_again", [False, True])
def test_a_producer_from_the_future_holds_up_the_expiry_of_no_other(is_opened_again):
    async def test(t):
        await sent(t, 1)
        await sent_ahead(t, 2)
        await sent(t, 3)
        if is_opened_again:
            await t.reopened()
        t.clock.advance(EXPIRATION_MS - 1)
        assert set(known(t)) == {1, 2, 3}
        t.clock.advance(1)
        assert known(t) == [2]
        t.clock.advance(10 * HOUR_MS)
        assert known(t) == []

    run(test, producer_id_expiration_ms=EXPIRATION_MS)


def test_a_producer_from_the_future_makes_room_for_others():
    async def test(t):
        await sent_ahead(t, 1)
        await sent(t, 2)
        t.clock.advance(IDLE_MS)
        with pytest.raises(QuotaExceeded):
            await sent(t, 3)
        t.clock.advance(IDLE_MS - 1)
        with pytest.raises(QuotaExceeded):
            await sent(t, 3)
        assert (await sent(t, 1)).is_duplicate
        t.clock.advance(1)
        await sent(t, 3)
        assert known(t) == [2, 3]
        for producer_id in range(4, 40):
            t.clock.advance(IDLE_MS)
            await sent(t, producer_id)

    run(test, producer_ids_max=2, producer_idle_ms_min=IDLE_MS)


def test_all_producers_are_from_the_future_when_the_clock_was_set_back():
    async def test(t):
        for producer_id in (1, 2, 3):
            await sent(t, producer_id)
        t.clock.set_by(-10 * HOUR_MS)
        with pytest.raises(QuotaExceeded):
            await sent(t, 4)
        t.clock.advance(IDLE_MS)
        await sent(t, 2, 1)
        await sent(t, 4)
        await sent(t, 5)
        assert known(t) == [2, 4, 5]

    run(test, producer_ids_max=3, producer_idle_ms_min=IDLE_MS)


def test_a_clock_that_was_behind_makes_no_batch_unknown():
    async def test(t):
        for producer_id in (1, 2):
            await sent(t, producer_id)
        t.clock.set_by(-2 * EXPIRATION_MS)
        await sent(t, 3)
        t.clock.set_by(2 * EXPIRATION_MS)
        for producer_id in (1, 2):
            assert (await sent(t, producer_id)).is_duplicate

    run(test)


@pytest.mark.parametrize("behind_ms", [2 * IDLE_MS, 2 * EXPIRATION_MS])
def test_a_clock_that_was_behind_makes_no_batch_unknown_at_the_bound(behind_ms):
    async def test(t):
        for producer_id in (1, 2):
            await sent(t, producer_id)
        t.clock.set_by(-behind_ms)
        with pytest.raises(QuotaExceeded):
            await sent(t, 3)
        t.clock.set_by(behind_ms)
        with pytest.raises(QuotaExceeded):
            await sent(t, 3)
        for producer_id in (1, 2):
            assert (await sent(t, producer_id)).is_duplicate

    run(
        test,
        producer_ids_max=2,
        producer_idle_ms_min=IDLE_MS,
        producer_id_expiration_ms=EXPIRATION_MS,
    )


def test_a_producer_that_appends_again_while_the_clock_is_behind_is_not_silent():
    async def test(t):
        for producer_id in (1, 2):
            await sent(t, producer_id)
        t.clock.set_by(-10 * HOUR_MS)
        with pytest.raises(QuotaExceeded):
            await sent(t, 3)
        t.clock.advance(IDLE_MS)
        await sent(t, 1, 1)
        await sent(t, 3)
        assert known(t) == [1, 3]
        with pytest.raises(QuotaExceeded):
            await sent(t, 4)

    run(test, producer_ids_max=2, producer_idle_ms_min=IDLE_MS)
