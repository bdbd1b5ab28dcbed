"""A recovery tells open, ended and aborted transactions apart after cleanings and damage."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count

import pytest

from streamlog.codec.batch import HEADER_BYTES
from streamlog.format.kafka_files import offset_index
from streamlog.format.kafka_files.names import INDEX, LOG, SNAPSHOT, TXN_INDEX, file_name
from streamlog.runtime.disk.growing import GrowingFile
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.logs.cleaning_conformance import batches, clean_again, keyed
from streamlog.testing.logs.log_conformance import append
from streamlog.testing.logs.transaction_conformance import (
    aborted_in,
    begin,
    committed_values,
    end,
)
from streamlog.testing.torn_folder import TornTree
from streamlog.unified.disk.files import read_file, write_new
from streamlog.unified.recovery import ended_transactions, scan
from streamlog.unified.recovery.scan import FoundBatch
from streamlog.unified.recovery.snapshots import snapshot_offsets
from tests.unified.harness import UnifiedLogUnderTest, disk_that_fails_after, unified_log

COMPACT = {
    "log.type": "unified",
    "cleanup.policy": "compact,delete",
    "internal.segment.bytes": "700",
    "index.interval.bytes": "200",
    "delete.retention.ms": "1000",
}
SMALL = {**COMPACT, "internal.segment.bytes": "200"}
"""No two of its segments are joined."""
FIRST, SNAPSHOT_OFFSET = 7, 8
"""Of the transaction of producer 1, and of the snapshot in which it is open."""
DAY_MS = 86_400_000
TRANSACTIONAL = (1, 0, 0)


async def fill(t: UnifiedLogUnderTest, numbers: count[int], records: int) -> None:
    for _ in range(records):
        await append(t.log, keyed(b"u%d" % next(numbers), b"v"))


async def aborted_and_cleaned(t: UnifiedLogUnderTest, bumps_epoch: bool) -> None:
    """No batch of the transaction is left, and of its marker the header at most."""
    numbers = count()
    await fill(t, numbers, FIRST)
    await begin(t.log, keyed(b"t", b"aborted", producer=TRANSACTIONAL, is_transactional=True))
    await t.log.roll()
    await end(t.log, is_commit=False, epoch=int(bumps_epoch))
    for records in (7, 6):
        await fill(t, numbers, records)
        await t.log.roll()
    await append(t.log, keyed(b"z", b"z"))
    if not bumps_epoch:
        t.clock.advance(2 * DAY_MS)  # The producer expires, and no header stays for it.
    for _ in range(5):
        t.clock.advance(2000)
        await clean_again(t, configs=COMPACT)
    left = [header.record_count for header, _ in await batches(t.log) if header.is_control]
    assert left == [0] * bumps_epoch


async def opened_with(
    t: UnifiedLogUnderTest, tree: TornTree, damaged: str, snapshot_offset: int = SNAPSHOT_OFFSET
) -> None:
    """Ends the log, damages files so that an open meets the snapshot of before, and opens it."""
    await t.log.close()
    await t.folder.close()
    folder = tree.open("t-0")
    if damaged == SNAPSHOT:
        for offset in snapshot_offsets(folder.list()):
            if offset > snapshot_offset:
                write_new(folder, file_name(offset, SNAPSHOT), b"damaged")
    else:
        assert file_name(SNAPSHOT_OFFSET, LOG) in folder.list()
        write_new(folder, file_name(SNAPSHOT_OFFSET, TXN_INDEX), b"damaged")
    folder.sync()
    await t.open_folder()
    await t.open()


@pytest.mark.parametrize("damaged", [SNAPSHOT, TXN_INDEX])
@pytest.mark.parametrize("bumps_epoch", [False, True])
@pytest.mark.parametrize("log_start", [0, FIRST + 2])
def test_a_transaction_whose_marker_was_cleaned_stays_ended(
    damaged: str, bumps_epoch: bool, log_start: int
) -> None:
    async def body() -> None:
        tree = TornTree(SeededRandom(1))
        async with unified_log(lambda: tree, COMPACT) as t:
            await aborted_and_cleaned(t, bumps_epoch)
            await t.log.delete_records(log_start)
            await opened_with(t, tree, damaged)
            assert t.log.last_stable_offset == t.log.log_end_offset == 23
            await t.reopened()
            assert t.log.last_stable_offset == t.log.log_end_offset == 23

    asyncio.run(body())


@pytest.mark.parametrize("damaged", [SNAPSHOT, TXN_INDEX])
def test_a_later_transaction_of_the_producer_begins_with_its_own_batch(damaged: str) -> None:
    async def body() -> None:
        tree = TornTree(SeededRandom(1))
        async with unified_log(lambda: tree, COMPACT) as t:
            await aborted_and_cleaned(t, bumps_epoch=True)
            data = keyed(b"t", b"later", producer=(1, 1, 0), is_transactional=True)
            await begin(t.log, data)
            await opened_with(t, tree, damaged)
            assert t.log.last_stable_offset == 23
            expected = await committed_values(t.log)
            await end(t.log, is_commit=False, epoch=1)
            assert t.log.last_stable_offset == t.log.log_end_offset == 25
            assert await committed_values(t.log) == expected

    asyncio.run(body())


@pytest.mark.parametrize("damaged", [SNAPSHOT, TXN_INDEX])
@pytest.mark.parametrize("is_ended", [False, True])
def test_a_transaction_that_is_there_ends_with_its_marker_alone(
    damaged: str, is_ended: bool
) -> None:
    async def body() -> None:
        tree = TornTree(SeededRandom(1))
        async with unified_log(lambda: tree, COMPACT) as t:
            numbers = count()
            await fill(t, numbers, FIRST)
            data = keyed(b"t", b"aborted", producer=TRANSACTIONAL, is_transactional=True)
            await begin(t.log, data)
            await t.log.roll()
            await fill(t, numbers, 7)
            if is_ended:
                await end(t.log, is_commit=False)
            await t.log.roll()
            await append(t.log, keyed(b"z", b"z"))
            await opened_with(t, tree, damaged)
            if not is_ended:
                assert t.log.last_stable_offset == FIRST
                await end(t.log, is_commit=False)
            assert t.log.last_stable_offset == t.log.log_end_offset
            assert await committed_values(t.log) == [b"v"] * 14 + [b"z"]

    asyncio.run(body())


def test_transactions_of_one_segment_cost_one_scan_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them end, by what is missing or by a marker."""
    scans = [0]

    def counted(
        file: GrowingFile, position: int, next_offset: int, *, verify: bool
    ) -> Iterator[FoundBatch]:
        scans[0] += verify
        return scan.batches(file, position, next_offset, verify=verify)

    async def body() -> None:
        tree = TornTree(SeededRandom(1))
        async with unified_log(lambda: tree, COMPACT) as t:
            numbers = count()
            await fill(t, numbers, 5)
            producers = range(1, 4)
            for number in producers:
                key = b"t%d" % number
                data = keyed(key, key, producer=(number, 0, 0), is_transactional=True)
                await begin(t.log, data)
            snapshot_offset = t.log.log_end_offset
            await t.log.roll()
            for number in producers:
                await end(t.log, is_commit=number == 2, producer_id=number)
            for records in (7, 6):
                await fill(t, numbers, records)
                await t.log.roll()
            await append(t.log, keyed(b"z", b"z"))
            t.clock.advance(2 * DAY_MS)
            for _ in range(5):
                t.clock.advance(2000)
                await clean_again(t, configs=COMPACT)
            markers = [one.producer_id for one, _ in await batches(t.log) if one.is_control]
            assert markers == [2]
            expected = await committed_values(t.log)
            monkeypatch.setattr(ended_transactions, "batches", counted)
            await opened_with(t, tree, SNAPSHOT, snapshot_offset)
            assert scans == [1]
            assert t.log.last_stable_offset == t.log.log_end_offset
            assert await committed_values(t.log) == expected
            assert b"t2" in expected

    asyncio.run(body())


async def with_an_index_that_goes(t: UnifiedLogUnderTest) -> None:
    """The next cleaning empties the first segment, whose transaction was aborted; behind it the
    producer has committed."""
    await begin(t.log, keyed(b"t", b"aborted", producer=TRANSACTIONAL, is_transactional=True))
    await end(t.log, is_commit=False)
    await t.log.roll()
    for number in (1, 2):
        data = keyed(b"t", b"%d" % number, producer=(1, 0, number), is_transactional=True)
        await begin(t.log, data)
        await end(t.log, is_commit=True)
    await t.log.roll()
    await append(t.log, keyed(b"z", b"z"))
    for _ in range(2):
        await clean_again(t, configs=SMALL)
    t.clock.advance(2000)
    assert await aborted_in(t.log, 0) == [(1, 0)]


@pytest.mark.parametrize("step", range(40))
def test_a_swap_that_is_cut_off_leaves_no_aborted_transaction_of_the_old_segment(
    step: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        tree = TornTree(SeededRandom(1))
        async with unified_log(lambda: tree, SMALL, cut_power=tree.restart) as t:
            await with_an_index_that_goes(t)
            with disk_that_fails_after(tree, step):
                await clean_again(t, configs=SMALL)
            await t.crashed()
            assert await committed_values(t.log) == [b"2", b"z"]
            assert "is made anew" not in caplog.text

    asyncio.run(body())


@pytest.mark.parametrize("has_snapshots", [True, False])
def test_an_index_of_aborted_transactions_beside_an_empty_segment_is_made_anew(
    has_snapshots: bool,
) -> None:
    """A release of before could leave the old segment's."""

    async def body() -> None:
        tree = TornTree(SeededRandom(1))
        async with unified_log(lambda: tree, SMALL) as t:
            await with_an_index_that_goes(t)
            folder, name = tree.open("t-0"), file_name(0, TXN_INDEX)
            stale = read_file(folder, name)
            await clean_again(t, configs=SMALL)
            assert t.log.segments[0].size_bytes == 0
            assert await aborted_in(t.log, 0) == []
            await t.log.close()
            await t.folder.close()
            write_new(folder, name, stale)
            for offset in [] if has_snapshots else snapshot_offsets(folder.list()):
                folder.remove(file_name(offset, SNAPSHOT))
            folder.sync()
            await t.open_folder()
            await t.open()
            assert await aborted_in(t.log, 0) == []
            assert await committed_values(t.log) == [b"2", b"z"]

    asyncio.run(body())


@pytest.mark.parametrize("is_cleaned", [False, True])
def test_an_open_transaction_stays_open_where_an_index_names_no_batch(is_cleaned: bool) -> None:
    """No CRC covers an index: what it leads to says nothing of what is not there."""

    async def body() -> None:
        tree = TornTree(SeededRandom(1))
        configs = COMPACT if is_cleaned else {"log.type": "unified", "index.interval.bytes": "200"}
        configs = {**configs, "internal.segment.bytes": "4000"}
        async with unified_log(lambda: tree, configs) as t:
            numbers = count()
            await fill(t, numbers, 20)
            first = t.log.log_end_offset
            await begin(
                t.log, keyed(b"t", b"aborted", producer=TRANSACTIONAL, is_transactional=True)
            )
            await fill(t, numbers, 20)
            await t.log.roll()
            await append(t.log, keyed(b"z", b"z"))
            if is_cleaned:
                await clean_again(t, configs=configs)
            await t.log.close()
            await t.folder.close()
            folder, name = tree.open("t-0"), file_name(0, INDEX)
            entries = bytearray(read_file(folder, name))
            found = offset_index.floor_entry(entries, first)
            assert found is not None
            at = entries.index(offset_index.pack_entry(*found))
            entries[at + offset_index.ENTRY_BYTES - 1] ^= 1
            write_new(folder, name, bytes(entries))
            folder.sync()
            await t.open_folder()
            await t.open()
            assert t.log.last_stable_offset == first
            await end(t.log, is_commit=False)
            assert await aborted_in(t.log, 0) == [(1, first)]
            assert b"aborted" not in await committed_values(t.log)

    asyncio.run(body())


@pytest.mark.parametrize("records", [0, 2])
@pytest.mark.parametrize("is_aborted", [False, True])
def test_an_unsound_index_of_the_active_segment_is_made_anew_on_the_disk(
    records: int, is_aborted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        tree = TornTree(SeededRandom(1))
        async with unified_log(lambda: tree, {"log.type": "unified"}, cut_power=tree.restart) as t:
            await fill(t, count(), 2)
            await t.log.roll()
            base = t.log.log_end_offset
            await fill(t, count(), records)
            expected = []
            if is_aborted:
                expected = [(1, base + records)]
                data = keyed(b"t", b"aborted", producer=TRANSACTIONAL, is_transactional=True)
                await begin(t.log, data)
                await end(t.log, is_commit=False)
            await t.log.close()
            await t.folder.close()
            folder = tree.open("t-0")
            write_new(folder, file_name(base, TXN_INDEX), b"damaged")
            folder.sync()
            await t.open_folder()
            await t.open()
            assert "is made anew" in caplog.text
            caplog.clear()
            await t.crashed()
            assert "is made anew" not in caplog.text
            assert await aborted_in(t.log, base) == expected
            await append(t.log, keyed(b"z", b"z"))
            await t.log.roll()
            assert await aborted_in(t.log, base) == expected
            assert await committed_values(t.log) == [b"v"] * (2 + records) + [b"z"]

    asyncio.run(body())


@pytest.mark.parametrize("kept", [0, 3])
def test_a_loss_that_is_accepted_leaves_no_aborted_transaction_that_was_lost(kept: int) -> None:
    async def body() -> None:
        tree = TornTree(SeededRandom(1))
        async with unified_log(lambda: tree, {"log.type": "unified"}) as t:
            await fill(t, count(), kept)
            position = t.log.segments[0].size_bytes
            data = keyed(b"t", b"lost", producer=TRANSACTIONAL, is_transactional=True)
            await begin(t.log, data)
            await end(t.log, is_commit=False)
            await t.log.close()
            await t.folder.close()
            folder, name = tree.open("t-0"), file_name(0, LOG)
            batch = bytearray(read_file(folder, name))
            batch[position + HEADER_BYTES] ^= 1
            write_new(folder, name, bytes(batch))
            folder.sync()
            await t.open_folder(accepts_data_loss=True)
            await t.open()
            assert t.log.log_end_offset == kept
            data = keyed(b"t", b"committed", producer=TRANSACTIONAL, is_transactional=True)
            await begin(t.log, data)
            await end(t.log, is_commit=True)
            await t.log.roll()
            assert await aborted_in(t.log, 0) == []
            assert await committed_values(t.log) == [b"v"] * kept + [b"committed"]

    asyncio.run(body())
