"""What is particular to transactions of SharedLog: the txn stream, recovery, costs, lost data."""

from __future__ import annotations

import asyncio

import pytest

from streamlog.codec.batch import BatchProducer
from streamlog.errors import Fenced, OutcomeUnknown, StreamlogError
from streamlog.format.kafka_files.transaction_index import AbortedTxn, decode_aborted
from streamlog.log.api.abstract_log import Isolation, TransactionMarker
from streamlog.log.partition.transactions.unstable_offsets import NO_OFFSET, UnstableOffsets
from streamlog.log.partition.transactions.verification import Verifications
from streamlog.testing.logs.log_conformance import COMMITTED, append, encoded, refused
from streamlog.testing.logs.transaction_conformance import (
    ABORT,
    COMMIT,
    aborted_in,
    begin,
    committed_values,
    described,
    end,
    transactional,
)
from tests.log.memory_log import row, run, spied, turns
from tests.support.log_insides import tail_of

COUNT = 40


async def abort_each(t, count=COUNT, first=0):
    """Transactions of one record each, all aborted: their first offsets are even."""
    for number in range(first, first + count):
        await begin(t.log, transactional([b"%d" % number], sequence=number))
        await end(t.log, ABORT)


def stored_entries(t):
    return [
        entry for batch in row(t, "txn").batches for entry in decode_aborted(b"".join(batch.parts))
    ]


def entries(count=COUNT):
    return [AbortedTxn(1, 2 * n, 2 * n + 1, 2 * n + 2) for n in range(count)]


async def opened_again(t, *roles):
    """A crash, and the calls that opening makes to these streams."""
    await t.client.kill()
    await t.log.kill()
    t.client = t.medium.client(t.clock)
    calls = [spied(t, role) for role in roles]
    await t.open()
    return calls


def test_recovery_reads_neither_data_nor_aborted_transactions():
    async def test(t):
        await abort_each(t)
        await begin(t.log, transactional([b"open"], 2))
        data, txn = await opened_again(t, "data", "txn")
        assert data["fetched"] == txn["fetched"] == txn["attributes"] == 0
        assert 0 < data["attributes"] <= 2 * 20
        assert t.log.last_stable_offset == 2 * COUNT
        assert len(await aborted_in(t.log, 0)) == COUNT

    run(test, checkpoint_interval_batches=20)


def test_entries_are_written_behind_their_markers_once():
    async def test(t):
        await abort_each(t)
        await t.reopened()
        assert stored_entries(t) == entries()
        await t.crashed()
        await t.log.roll()
        await abort_each(t, 3, COUNT)
        await t.log.roll()
        assert stored_entries(t) == entries(COUNT + 3)
        segments = t.log.segments
        assert [segment.txn.start_offset for segment in segments] == [0, COUNT, COUNT + 3]

    run(test, checkpoint_interval_batches=15)


@pytest.mark.parametrize("held", ["txn", "meta", "data"])
def test_a_crash_before_the_checkpoint_stores_no_entry_twice(held):
    async def test(t):
        await abort_each(t, 10)
        await turns()
        t.client.hold(getattr(t.log.stream_ids, held))
        aborts = asyncio.ensure_future(abort_each(t, COUNT - 10, 10))
        if held != "data":
            await aborts
        work = [aborts, asyncio.ensure_future(t.log.roll())]
        await turns()
        for _ in range(2):
            await t.crashed()
        for outcome in await asyncio.gather(*work, return_exceptions=True):
            assert outcome is None or isinstance(outcome, StreamlogError)
        if held == "data":
            await begin(t.log, transactional([b"10"], sequence=10))
            await end(t.log, ABORT)
            await abort_each(t, COUNT - 11, 11)
        assert await aborted_in(t.log, 0) == [(1, 2 * n) for n in range(COUNT)]
        await t.reopened()
        assert stored_entries(t) == entries()
        assert await aborted_in(t.log, 0) == [(1, 2 * n) for n in range(COUNT)]

    run(test, checkpoint_interval_batches=15)


def test_a_segment_without_aborted_transactions_costs_no_read_of_the_txn_stream():
    async def test(t):
        for number in range(30):
            await begin(t.log, transactional([b"x"], sequence=number))
            await end(t.log, COMMIT)
            if number % 3 == 0:
                await t.log.roll()
        (txn,) = await opened_again(t, "txn")
        assert len(await committed_values(t.log, max_bytes=100)) == 30
        assert txn["fetched"] == 0
        assert row(t, "txn").end == 0

    run(test)


def test_who_reads_along_with_the_log_reads_no_stored_entry():
    async def test(t):
        await abort_each(t)
        (txn,) = await opened_again(t, "txn")
        for number in range(COUNT, COUNT + 20):
            await abort_each(t, 1, number)
            assert await aborted_in(t.log, 2 * number) == [(1, 2 * number)]
        assert txn["fetched"] == 0

    run(test, checkpoint_interval_batches=10)


def test_a_reader_that_catches_up_reads_each_page_of_entries_about_once():
    async def test(t):
        count = 600
        await abort_each(t, count)
        await t.log.roll()
        (txn,) = await opened_again(t, "txn")
        for number in range(count):
            assert await aborted_in(t.log, 2 * number, 1) == [(1, 2 * number)]
        assert txn["fetched"] <= 12
        for number in reversed(range(0, count, 7)):
            assert await aborted_in(t.log, 2 * number, 1) == [(1, 2 * number)]

    run(test, checkpoint_interval_batches=100)


def test_a_search_over_many_pages_finds_every_entry(monkeypatch):
    monkeypatch.setattr("streamlog.log.shared.aborted.aborted_search.PAGE_BYTES", 34 * 3)

    async def test(t):
        count = 150
        await abort_each(t, count)
        await t.log.roll()
        await append(t.log, encoded([b"last"]))
        await t.crashed()
        for number in (*range(0, count, 7), *reversed(range(count))):
            for offset in (2 * number, 2 * number + 1):
                assert await aborted_in(t.log, offset, 1) == [(1, 2 * number)]
        assert len(await aborted_in(t.log, 0)) == count
        assert await aborted_in(t.log, 2 * count) == []

    run(test, {"internal.segment.bytes": "2000"}, checkpoint_interval_batches=7)


def test_aborted_transactions_behind_a_long_open_one_are_found():
    async def test(t):
        await begin(t.log, transactional([b"long"], 9))
        await abort_each(t, 1)  # Offsets 1 and 2.
        await append(t.log, encoded([b"x"]))
        await t.log.roll()
        for number in range(1, 20):
            await begin(t.log, transactional([b"%d" % number], sequence=number))
            await end(t.log, ABORT)
        await t.log.roll()
        await end(t.log, ABORT, 9)
        await t.crashed()
        assert (await aborted_in(t.log, 0, 1)) == [(9, 0)]
        assert (await aborted_in(t.log, 3, 1)) == [(9, 0)]
        assert (await aborted_in(t.log, 0))[:3] == [(9, 0), (1, 1), (1, 4)]

    run(test)


def test_the_txn_stream_is_trimmed_with_its_segments():
    async def test(t):
        await abort_each(t, 5)
        await t.log.roll()
        await abort_each(t, 5, 5)
        await t.log.roll()
        await t.log.delete_oldest_segments(10, "test")
        assert row(t, "txn").start == 5
        await t.crashed()
        assert await aborted_in(t.log, 10) == [(1, 2 * n) for n in range(5, 10)]

    run(test)


def test_an_open_transaction_costs_nothing_for_each_batch():
    async def test(t):
        await begin(t.log, transactional([b"0"]))
        for number in range(1, 300):
            await append(t.log, transactional([b"%d" % number], sequence=number))
            await begin(t.log, transactional([b"x"], 2, sequence=number - 1))
            await end(t.log, number % 2 == 0, 2)
        producers = tail_of(t.log).producers
        assert len(producers.unstable) == 1
        assert len(producers) == 2
        assert len(tail_of(t.log).active.aborted.unstored) <= 60
        assert t.log.last_stable_offset == 0

    run(test, checkpoint_interval_batches=50)


def test_a_marker_under_way_is_lost_with_the_process_or_not_at_all():
    async def test(t):
        await begin(t.log, transactional([b"a"]))
        t.client.hold(t.log.stream_ids.data)
        wait = asyncio.ensure_future(await t.log.append_marker(TransactionMarker(1, 0, 0, True)))
        await turns()
        assert (await described(t.log)).current_txn_start_offset == -1
        await t.crashed()
        await refused(OutcomeUnknown, wait)
        assert (await described(t.log)).current_txn_start_offset == 0
        assert t.log.last_stable_offset == 0
        await end(t.log, ABORT)
        assert await aborted_in(t.log, 0) == [(1, 0)]

    run(test)


def test_a_takeover_in_an_open_transaction_finds_the_same_state():
    async def test(t):
        await abort_each(t, 3)
        await begin(t.log, transactional([b"open"], 2, 4))
        old, expected = t.log, set(t.log.producers())
        stable = old.last_stable_offset
        await t.open()
        assert set(t.log.producers()) == expected
        assert t.log.last_stable_offset == stable == 6
        await refused(Fenced, end(old, COMMIT, 2, 4))
        await end(t.log, ABORT, 2, 5)
        assert await aborted_in(t.log, 0) == [(1, 0), (1, 2), (1, 4), (2, 6)]
        await old.close()

    run(test)


def test_producers_in_transactions_are_not_forgotten_for_room():
    async def test(t):
        await begin(t.log, transactional([b"open"], 1))
        for producer_id in range(2, 12):
            t.clock.advance(1000)
            await append(t.log, encoded([b"x"], producer=(producer_id, 0, 0)))
        kept = {one.producer_id for one in t.log.producers()}
        assert 1 in kept
        assert len(kept) <= 4
        assert 11 in kept
        await t.crashed()
        assert {one.producer_id for one in t.log.producers()} >= {1, 11}
        await end(t.log, ABORT)
        assert await aborted_in(t.log, 0) == [(1, 0)]

    run(test, producer_ids_max=4, producer_idle_ms_min=0)


@pytest.mark.parametrize("lost_from", [7, 8, 12, 25])
def test_entries_of_lost_markers_go_with_the_data(lost_from):
    """As after a node's disk is given up for lost: the txn stream goes on behind the data."""

    async def test(t):
        await abort_each(t, 15)
        await t.reopened()
        await t.log.close()
        data = row(t, "data")
        del data.batches[lost_from:]
        data.end = lost_from
        kept = [entry for entry in entries(15) if entry.last_offset < lost_from]
        for _ in range(2):
            await t.open()
            assert t.log.log_end_offset == lost_from
            told = [(entry.producer_id, entry.first_offset) for entry in kept]
            assert await aborted_in(t.log, 0) == told
            await t.log.close()
        await t.open()
        await end(t.log, ABORT)
        await begin(t.log, transactional([b"new"], 5))
        await end(t.log, ABORT, 5)
        for _ in range(2):
            found = await aborted_in(t.log, 0)
            assert found[: len(kept)] == told
            assert found[-1][0] == 5
            assert t.log.last_stable_offset == t.log.high_watermark
            await t.crashed()

    run(test, {"internal.segment.bytes": "700"}, checkpoint_interval_batches=6)


def test_entries_ahead_of_the_data_that_no_checkpoint_tells_of_go_too():
    async def test(t):
        await abort_each(t, 5)
        await turns()
        t.client.hold(t.log.stream_ids.meta)
        roll = asyncio.ensure_future(t.log.roll())
        await turns()
        assert stored_entries(t) == entries(5)
        await t.client.kill()
        await t.log.kill()
        assert isinstance((await asyncio.gather(roll, return_exceptions=True))[0], StreamlogError)
        data = row(t, "data")
        del data.batches[4:]
        data.end = 4
        t.client = t.medium.client(t.clock)
        for _ in range(3):
            await t.open()
            assert await aborted_in(t.log, 0) == [(1, 0), (1, 2)]
            await t.log.close()
        await t.open()
        await abort_each(t, 3, 2)
        await t.crashed()
        assert await aborted_in(t.log, 0) == [(1, 2 * n) for n in range(5)]

    run(test)


def test_staged_batches_come_into_a_log_with_an_open_transaction():
    async def test(t):
        await begin(t.log, transactional([b"a"]))
        async with t.log.attaching() as attaching:
            await attaching.ready()
            assert not attaching.has_attached
        assert t.log.last_stable_offset == 0
        data = bytearray(transactional([b"b"], 7))
        await refused(StreamlogError, t.log.to_stage(bytes(data)))

    run(test)


def test_first_offsets_are_forgotten_when_their_markers_are_durable():
    offsets = UnstableOffsets()
    assert offsets.first == NO_OFFSET
    for first in (3, 5, 9):
        offsets.begin(first)
    offsets.end(5, 11)
    offsets.end(3, 12)
    assert (offsets.first, len(offsets)) == (3, 3)
    offsets.durable(11)
    assert (offsets.first, len(offsets)) == (3, 2)
    offsets.durable(12)
    assert (offsets.first, len(offsets)) == (9, 1)
    offsets.end(9, 13)
    offsets.durable(20)
    assert (offsets.first, len(offsets)) == (NO_OFFSET, 0)


def test_verifications_are_bounded_and_forget_the_oldest():
    pairs = Verifications(producers_max=3)
    for producer_id in range(5):
        pairs.verified(producer_id, 0, pairs.guard)
    assert len(pairs) == 3
    assert [pairs.is_verified(producer_id, 0) for producer_id in range(5)] == [False] * 2 + [
        True
    ] * 3
    pairs.ended(4)
    pairs.begun(3)
    assert [pairs.is_verified(producer_id, 0) for producer_id in (2, 3, 4)] == [True, False, False]
    assert not pairs.is_verified(2, 1)


def test_answers_that_a_marker_has_overtaken_verify_nothing():
    pairs = Verifications(producers_max=3)
    old = pairs.guard
    pairs.ended(1)
    new = pairs.guard
    pairs.verified(1, 0, old)
    assert not pairs.is_verified(1, 0)
    pairs.verified(1, 0, new)
    pairs.verified(2, 0, old)
    assert pairs.is_verified(1, 0)
    assert pairs.is_verified(2, 0)
    pairs.ended(2)
    for producer_id in (3, 4, 5):
        pairs.ended(producer_id)
    pairs.verified(2, 0, new)
    assert not pairs.is_verified(2, 0), "its last marker is forgotten"
    pairs.verified(2, 0, pairs.guard)
    assert pairs.is_verified(2, 0)


def test_who_waits_within_an_open_transaction_is_woken_when_its_records_are_deleted():
    async def test(t):
        await begin(t.log, transactional([b"a", b"b"]))
        wait = asyncio.ensure_future(t.log.wait_for(0, Isolation.READ_COMMITTED))
        await turns()
        assert not wait.done()
        await t.log.raise_start(1)
        await asyncio.wait_for(wait, 10)
        assert (t.log.last_stable_offset, t.log.high_watermark) == (1, 2)

    run(test)


def test_an_isolation_level_without_transactions_waits_for_the_high_watermark():
    async def test(t):
        wait = asyncio.ensure_future(t.log.wait_for(0, COMMITTED))
        await turns()
        assert not wait.done()
        await append(t.log, encoded([b"x"], producer=BatchProducer(1, 0, 0)))
        await wait
        fetched = await t.log.fetch(0, 10, isolation=Isolation.READ_COMMITTED)
        assert fetched.batches == 1

    run(test)
