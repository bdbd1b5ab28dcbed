"""The contract of KVStore: inherit `KVStoreConformance` and say how to make a store.

The rules are those of `streamlog.kvstore.interface`; each test shows one through it alone.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

import pytest

from streamlog.errors import Closed, Invalid, NotFound, RevisionCompacted
from streamlog.kvstore.interface import (
    OPERATIONS_MAX,
    TXN_BYTES_MAX,
    Change,
    Delete,
    Get,
    KVStore,
    Operation,
    Put,
    RevisionIs,
    StoredKeyValue,
    ValueBelow,
    ValueIs,
    WatchBatch,
    prefix_end,
)
from streamlog.testing.clocks import ManualClock

T = TypeVar("T")

PATIENCE_S = 20.0
"""How long a test waits for an event that must come; no test waits for the absence of one."""


async def put(kv: KVStore, key: bytes, value: bytes, lease_id: int = 0) -> int:
    """The revision of the put."""
    return (await kv.txn((), (Put(key, value, lease_id),))).revision


async def take(watch: AsyncIterator[WatchBatch], count: int) -> list[WatchBatch]:
    async with asyncio.timeout(PATIENCE_S):
        return [await anext(watch) for _ in range(count)]


def keys(kvs: tuple[StoredKeyValue, ...]) -> list[bytes]:
    return [kv.key for kv in kvs]


class KVStoreConformance(ABC):
    @abstractmethod
    def store(self, clock: ManualClock) -> AbstractAsyncContextManager[KVStore]:
        """An empty store."""

    def run(self, body: Callable[[KVStore, ManualClock], Awaitable[None]]) -> None:
        async def main() -> None:
            clock = ManualClock()
            async with self.store(clock) as kv:
                await body(kv, clock)

        asyncio.run(main())

    # transactions

    def test_a_put_is_read_back_with_its_revisions(self) -> None:
        async def body(kv: KVStore, clock: ManualClock) -> None:
            before = await kv.revision()
            first = await kv.txn((), (Put(b"a", b"1"),))
            assert (first.succeeded, first.revision, first.responses) == (True, before + 1, ((),))
            second = await kv.txn((), (Put(b"a", b"2"),))
            assert second.responses == ((StoredKeyValue(b"a", b"1", before + 1, before + 1),),)
            assert await kv.get(b"a") == StoredKeyValue(b"a", b"2", before + 1, before + 2)
            assert await kv.revision() == before + 2
            assert await kv.get(b"b") is None

        self.run(body)

    def test_an_empty_value_is_a_value(self) -> None:
        async def body(kv: KVStore, clock: ManualClock) -> None:
            revision = await put(kv, b"a", b"")
            assert await kv.get(b"a") == StoredKeyValue(b"a", b"", revision, revision)
            assert not (await kv.txn((ValueIs(b"a", None),), ())).succeeded
            assert (await kv.txn((ValueIs(b"a", b""),), ())).succeeded

        self.run(body)

    def test_all_writes_of_a_transaction_share_a_revision(self) -> None:
        async def body(kv: KVStore, clock: ManualClock) -> None:
            await put(kv, b"old", b"x")
            result = await kv.txn((), (Put(b"a", b"1"), Put(b"b", b"2"), Delete(b"old")))
            found = (await kv.range(b"a", b"z")).kvs
            assert {kv.mod_revision for kv in found} == {result.revision}
            assert keys(found) == [b"a", b"b"]

        self.run(body)

    def test_a_transaction_that_changes_nothing_keeps_the_revision(self) -> None:
        async def body(kv: KVStore, clock: ManualClock) -> None:
            before = await put(kv, b"a", b"1")
            for then in (
                (),
                (Get(b"a"),),
                (Delete(b"absent"),),
                (Delete(b"m", b"n"),),
            ):
                assert (await kv.txn((), then)).revision == before
            refused = await kv.txn((ValueIs(b"a", b"other"),), (Put(b"a", b"2"),))
            assert (refused.succeeded, refused.revision) == (False, before)
            assert await kv.revision() == before

        self.run(body)

    def test_a_put_of_the_same_value_moves_the_revision(self) -> None:
        async def body(kv: KVStore, clock: ManualClock) -> None:
            before = await put(kv, b"a", b"1")
            assert await put(kv, b"a", b"1") == before + 1

        self.run(body)

    def test_compares_decide_between_the_branches(self) -> None:
        async def body(kv: KVStore, clock: ManualClock) -> None:
            revision = await put(kv, b"a", b"1")
            holds = (
                ValueIs(b"a", b"1"),
                RevisionIs(b"a", revision),
                ValueIs(b"absent", None),
                RevisionIs(b"absent", 0),
                ValueBelow(b"a", b"1\x00"),
                ValueBelow(b"a", b"2"),
            )
            fails = (
                ValueIs(b"a", b"2"),
                ValueIs(b"a", None),
                RevisionIs(b"a", revision + 1),
                RevisionIs(b"a", 0),
                ValueIs(b"absent", b""),
                RevisionIs(b"absent", 1),
                ValueBelow(b"a", b"1"),
                ValueBelow(b"a", b""),
                ValueBelow(b"absent", b"2"),
            )
            assert (await kv.txn(holds, ())).succeeded
            for compare in holds:
                assert (await kv.txn((compare,), ())).succeeded, compare
            for compare in fails:
                assert not (await kv.txn((compare,), ())).succeeded, compare
                assert not (await kv.txn((*holds, compare), ())).succeeded, compare

        self.run(body)

    def test_the_else_branch_reads_and_writes(self) -> None:
        async def body(kv: KVStore, clock: ManualClock) -> None:
            revision = await put(kv, b"a", b"1")
            result = await kv.txn(
                (ValueIs(b"a", b"2"),),
                (Put(b"a", b"3"),),
                (Get(b"a"), Get(b"absent"), Put(b"b", b"4"), Get(b"a", b"c")),
            )
            assert not result.succeeded
            a = StoredKeyValue(b"a", b"1", revision, revision)
            b = StoredKeyValue(b"b", b"4", revision + 1, revision + 1)
            assert result.responses == ((a,), (), (), (a, b))
            assert (await kv.get(b"a")) == a

        self.run(body)

    def test_a_get_sees_the_operations_before_it(self) -> None:
        async def body(kv: KVStore, clock: ManualClock) -> None:
            await kv.txn((), (Put(b"a", b"1"), Put(b"c", b"3")))
            result = await kv.txn(
                (), (Get(b"b"), Put(b"b", b"2"), Get(b"b"), Delete(b"a"), Get(b"a", b"d"))
            )
            values = [[(kv.key, kv.value) for kv in found] for found in result.responses]
            assert values[0] == []
            assert values[2] == [(b"b", b"2")]
            assert values[3] == [(b"a", b"1")]
            assert values[4] == [(b"b", b"2"), (b"c", b"3")]

        self.run(body)

    def test_a_deleted_key_begins_anew(self) -> None:
        async def body(kv: KVStore, clock: ManualClock) -> None:
            first = await put(kv, b"a", b"1")
            gone = await kv.txn((), (Delete(b"a"),))
            assert gone.responses == ((StoredKeyValue(b"a", b"1", first, first),),)
            again = await put(kv, b"a", b"2")
            assert again == first + 2
            assert await kv.get(b"a") == StoredKeyValue(b"a", b"2", again, again)

        self.run(body)

    def test_a_range_delete_takes_the_start_and_leaves_the_end(self) -> None:
        async def body(kv: KVStore, clock: ManualClock) -> None:
            names = [b"a", b"b/1", b"b/2", b"b0", b"b\xff", b"c"]
            await kv.txn((), [Put(name, name) for name in names])
            result = await kv.txn((), (Delete(b"b/1", b"b0"),))
            assert keys(result.responses[0]) == [b"b/1", b"b/2"]
            assert keys((await kv.range(b"a", b"z")).kvs) == [b"a", b"b0", b"b\xff", b"c"]
            result = await kv.txn((), (Delete(b"b", prefix_end(b"b")),))
            assert keys(result.responses[0]) == [b"b0", b"b\xff"]
            assert (await kv.txn((), (Delete(b"z", b"a"),))).responses == ((),)
            assert keys((await kv.range(b"a", b"z")).kvs) == [b"a", b"c"]

        self.run(body)

    def test_keys_and_values_may_hold_any_byte(self) -> None:
        async def body(kv: KVStore, clock: ManualClock) -> None:
            names = [b"\x00", b"\x00\x00", b"\x01", b"/", b"\xfe\xff", b"\xff", b"\xff\xff"]
            await kv.txn((), [Put(name, name[::-1] * 3) for name in names])
            assert keys((await kv.range(b"\x00", b"\xff\xff\xff")).kvs) == names
            for name in names:
                found = await kv.get(name)
                assert found is not None
                assert found.value == name[::-1] * 3

        self.run(body)

    # what is refused

    def test_a_key_may_be_written_once_in_a_branch(self) -> None:
        async def body(kv: KVStore, clock: ManualClock) -> None:
            before = await kv.revision()
            branches: tuple[tuple[Operation, ...], ...] = (
                (Put(b"a", b"1"), Put(b"a", b"2")),
                (Put(b"a", b"1"), Delete(b"a")),
                (Delete(b"a"), Put(b"a", b"1")),
                (Delete(b"a", b"c"), Put(b"b", b"1")),
            )
            for branch in branches:
                with pytest.raises(Invalid):
                    await kv.txn((), branch)
                with pytest.raises(Invalid):
                    await kv.txn((), (), branch)
            # once in each branch, and reading what is written, is fine
            await kv.txn((), (Put(b"a", b"1"), Get(b"a")), (Put(b"a", b"2"),))
            await kv.txn((), (Delete(b"a", b"c"), Put(b"c", b"1")))
            assert await kv.revision() == before + 2

        self.run(body)

    def test_a_list_has_at_most_128_entries(self) -> None:
        async def body(kv: KVStore, clock: ManualClock) -> None:
            puts = [Put(b"k%03d" % n, b"v") for n in range(OPERATIONS_MAX)]
            compares = [RevisionIs(b"k%03d" % n, 0) for n in range(OPERATIONS_MAX)]
            full = await kv.txn(compares, puts, puts)
            assert full.succeeded
            more = Put(b"one more", b"")
            for compare_list, then, otherwise in (
                ([*compares, RevisionIs(b"more", 0)], (), ()),
                ((), [*puts, more], ()),
                ((), (), [*puts, more]),
            ):
                with pytest.raises(Invalid):
                    await kv.txn(compare_list, then, otherwise)
            assert await kv.revision() == full.revision
            assert await kv.get(b"one more") is None

        self.run(body)

    def test_a_transaction_has_at_most_one_and_a_half_mebibytes(self) -> None:
        async def body(kv: KVStore, clock: ManualClock) -> None:
            before = await kv.revision()
            with pytest.raises(Invalid):
                await kv.txn((), (Put(b"a", bytes(TXN_BYTES_MAX)),))
            with pytest.raises(Invalid):
                await kv.txn((), (), [Put(b"%03d" % n, bytes(1 << 14)) for n in range(100)])
            assert await kv.revision() == before
            big = bytes(1_500_000)
            await put(kv, b"a", big)
            found = await kv.get(b"a")
            assert found is not None
            assert found.value == big

        self.run(body)

    def test_an_empty_key_is_refused(self) -> None:
        async def body(kv: KVStore, clock: ManualClock) -> None:
            with pytest.raises(Invalid):
                await kv.txn((), (Put(b"", b"v"),))
            with pytest.raises(Invalid):
                await kv.txn((RevisionIs(b"", 0),), ())
            with pytest.raises(Invalid):
                await kv.get(b"")

        self.run(body)

    # concurrency

    def test_concurrent_increments_are_all_counted(self) -> None:
        async def body(kv: KVStore, clock: ManualClock) -> None:
            await put(kv, b"n", b"0")

            async def increment() -> int:
                while True:
                    found = await kv.get(b"n")
                    assert found is not None
                    result = await kv.txn(
                        (RevisionIs(b"n", found.mod_revision),),
                        (Put(b"n", b"%d" % (int(found.value) + 1)),),
                    )
                    if result.succeeded:
                        return result.revision

            revisions = await asyncio.gather(*(increment() for _ in range(20)))
            found = await kv.get(b"n")
            assert found is not None
            assert found.value == b"20"
            assert len(set(revisions)) == 20

        self.run(body)

    def test_one_of_many_racers_wins(self) -> None:
        async def body(kv: KVStore, clock: ManualClock) -> None:
            results = await asyncio.gather(
                *(
                    kv.txn((RevisionIs(b"lead", 0),), (Put(b"lead", b"%d" % n),), (Get(b"lead"),))
                    for n in range(50)
                )
            )
            winners = [n for n, result in enumerate(results) if result.succeeded]
            assert len(winners) == 1
            for n, result in enumerate(results):
                if n not in winners:
                    assert result.responses[0][0].value == b"%d" % winners[0]

        self.run(body)

    def test_queued_transactions_take_effect_in_the_order_of_the_calls(self) -> None:
        async def body(kv: KVStore, clock: ManualClock) -> None:
            results = await asyncio.gather(
                *(kv.txn((), (Get(b"a"), Put(b"a", b"%d" % n))) for n in range(100))
            )
            revisions = [result.revision for result in results]
            assert revisions == list(range(revisions[0], revisions[0] + 100))
            for n, result in enumerate(results[1:]):
                assert result.responses[0][0].value == b"%d" % n

        self.run(body)

    def test_a_failure_spoils_no_other_transaction(self) -> None:
        async def body(kv: KVStore, clock: ManualClock) -> None:
            results = await asyncio.gather(
                kv.txn((), (Put(b"a", b"1"),)),
                kv.txn((), (Put(b"b", b"2"), Put(b"c", b"3", lease_id=987_654))),
                kv.txn((), (Put(b"d", b"4"),)),
                return_exceptions=True,
            )
            assert isinstance(results[1], NotFound)
            assert keys((await kv.range(b"a", b"z")).kvs) == [b"a", b"d"]

        self.run(body)

    def test_a_read_after_an_answer_sees_the_write(self) -> None:
        async def body(kv: KVStore, clock: ManualClock) -> None:
            async def write_and_read(key: bytes) -> None:
                for n in range(20):
                    revision = await put(kv, key, b"%d" % n)
                    found = await kv.get(key)
                    assert found == StoredKeyValue(
                        key, b"%d" % n, found.create_revision if found else 0, revision
                    )
                    ranged = await kv.range(key, key + b"\0")
                    assert ranged.kvs == (found,)
                    assert ranged.revision >= revision
                    assert await kv.revision() >= revision

            await asyncio.gather(*(write_and_read(b"k%d" % n) for n in range(8)))

        self.run(body)

    def test_a_range_is_of_one_revision(self) -> None:
        """Two keys are always written together: no read sees one without the other."""

        async def body(kv: KVStore, clock: ManualClock) -> None:
            await kv.txn((), (Put(b"a", b"0"), Put(b"z", b"0")))

            async def write() -> None:
                for n in range(1, 60):
                    value = b"%d" % n
                    await kv.txn((), (Put(b"a", value), Put(b"m", bytes(20_000)), Put(b"z", value)))

            async def read() -> None:
                for _ in range(60):
                    found = await kv.range(b"a", b"zz")
                    first, last = found.kvs[0], found.kvs[-1]
                    assert (first.value, first.mod_revision) == (last.value, last.mod_revision)
                    assert first.mod_revision <= found.revision
                    await asyncio.sleep(0)

            await asyncio.gather(write(), read(), read())

        self.run(body)

    # ranges and reads at a revision

    def test_a_range_is_by_key_and_says_when_it_was_cut(self) -> None:
        async def body(kv: KVStore, clock: ManualClock) -> None:
            names = [b"%02d" % n for n in range(10)]
            await kv.txn((), [Put(name, b"") for name in reversed(names)])
            everything = await kv.range(b"0", b"1")
            assert (keys(everything.kvs), everything.more) == (names, False)
            assert everything.revision == await kv.revision()
            cut = await kv.range(b"00", b"1", limit=4)
            assert (keys(cut.kvs), cut.more) == (names[:4], True)
            exact = await kv.range(b"00", b"1", limit=10)
            assert (keys(exact.kvs), exact.more) == (names, False)
            assert keys((await kv.range(b"03", b"05")).kvs) == [b"03", b"04"]
            for start, end in ((b"05", b"05"), (b"07", b"03"), (b"x", b"y")):
                empty = await kv.range(start, end)
                assert (empty.kvs, empty.more) == ((), False)

        self.run(body)

    def test_a_long_range_comes_whole(self) -> None:
        async def body(kv: KVStore, clock: ManualClock) -> None:
            for n in range(60):
                await put(kv, b"k%03d" % n, bytes([n]) * 50_000)
            found = (await kv.range(b"k", b"l")).kvs
            assert [(kv.key, kv.value) for kv in found] == [
                (b"k%03d" % n, bytes([n]) * 50_000) for n in range(60)
            ]

        self.run(body)

    def test_reads_at_an_older_revision(self) -> None:
        async def body(kv: KVStore, clock: ManualClock) -> None:
            first = await put(kv, b"a", b"1")
            second = (await kv.txn((), (Put(b"a", b"2"), Put(b"b", b"x")))).revision
            third = (await kv.txn((), (Delete(b"a"),))).revision
            fourth = (await kv.txn((), (Put(b"a", b"4"), Delete(b"b"), Put(b"c", b"y")))).revision
            expected = {
                first: {b"a": b"1"},
                second: {b"a": b"2", b"b": b"x"},
                third: {b"b": b"x"},
                fourth: {b"a": b"4", b"c": b"y"},
            }
            for revision, content in expected.items():
                found = await kv.range(b"a", b"z", revision=revision)
                assert {kv.key: kv.value for kv in found.kvs} == content
                assert found.revision == revision
                for key in (b"a", b"b", b"c"):
                    one = await kv.get(key, revision=revision)
                    assert (None if one is None else one.value) == content.get(key)
            at_second = await kv.get(b"a", revision=second)
            assert at_second == StoredKeyValue(b"a", b"2", first, second)

        self.run(body)

    def test_a_range_at_a_revision_can_be_cut_and_continued(self) -> None:
        async def body(kv: KVStore, clock: ManualClock) -> None:
            names = [b"%02d" % n for n in range(20)]
            pinned = (await kv.txn((), [Put(name, b"old") for name in names])).revision
            await kv.txn((), [Delete(name) for name in names[:7]])
            await kv.txn((), [Put(name, b"new") for name in names[5:12]])
            await kv.txn((), [Put(name + b"x", b"new") for name in names])
            found: list[bytes] = []
            start = b"0"
            while True:
                page = await kv.range(start, b"9", limit=3, revision=pinned)
                assert all(kv.value == b"old" for kv in page.kvs)
                found += keys(page.kvs)
                if not page.more:
                    break
                assert len(page.kvs) == 3
                start = found[-1] + b"\0"
            assert found == names

        self.run(body)

    def test_a_revision_to_come_cannot_be_read(self) -> None:
        async def body(kv: KVStore, clock: ManualClock) -> None:
            revision = await put(kv, b"a", b"1")
            with pytest.raises(Invalid):
                await kv.get(b"a", revision=revision + 1)
            with pytest.raises(Invalid):
                await kv.range(b"a", b"b", revision=revision + 1)

        self.run(body)

    def test_compaction_ends_older_reads_and_watches(self) -> None:
        async def body(kv: KVStore, clock: ManualClock) -> None:
            revisions = [await put(kv, b"a", b"%d" % n) for n in range(5)]
            kept = revisions[3]
            await kv.compact(kept)
            for read in (
                kv.get(b"a", revision=kept - 1),
                kv.range(b"a", b"b", revision=kept - 1),
            ):
                with pytest.raises(RevisionCompacted) as raised:
                    await read
                assert raised.value.oldest == kept
            with pytest.raises(RevisionCompacted) as raised:
                await take(kv.watch(b"a", b"b", from_revision=kept - 1), 1)
            assert raised.value.oldest == kept
            found = await kv.get(b"a", revision=kept)
            assert found is not None
            assert found.value == b"3"
            batches = await take(kv.watch(b"a", b"b", from_revision=kept), 2)
            assert [batch.revision for batch in batches] == revisions[3:]
            current = await kv.get(b"a")
            assert current is not None
            assert current.value == b"4"

        self.run(body)

    def test_compaction_of_a_revision_to_come_is_refused(self) -> None:
        async def body(kv: KVStore, clock: ManualClock) -> None:
            revision = await put(kv, b"a", b"1")
            with pytest.raises(Invalid):
                await kv.compact(revision + 1)

        self.run(body)

    # watches

    def test_a_watch_tells_every_change_once_in_order(self) -> None:
        async def body(kv: KVStore, clock: ManualClock) -> None:
            first = await kv.revision() + 1
            watch = kv.watch(b"w", b"x", from_revision=first)
            await put(kv, b"w1", b"1")
            await put(kv, b"other", b"1")
            await kv.txn((), (Put(b"w1", b"2"), Put(b"w2", b"1"), Put(b"other", b"2")))
            await kv.txn((), (Delete(b"w", b"x"),))
            batches = await take(watch, 3)
            w1 = StoredKeyValue(b"w1", b"1", first, first)
            w1_again = StoredKeyValue(b"w1", b"2", first, first + 2)
            w2 = StoredKeyValue(b"w2", b"1", first + 2, first + 2)
            assert batches == [
                WatchBatch(first, (Change(b"w1", w1, None, first),)),
                WatchBatch(
                    first + 2,
                    (
                        Change(b"w1", w1_again, w1, first + 2),
                        Change(b"w2", w2, None, first + 2),
                    ),
                ),
                WatchBatch(
                    first + 3,
                    (
                        Change(b"w1", None, w1_again, first + 3),
                        Change(b"w2", None, w2, first + 3),
                    ),
                ),
            ]

        self.run(body)

    def test_a_watch_starts_in_the_past(self) -> None:
        async def body(kv: KVStore, clock: ManualClock) -> None:
            revisions = [await put(kv, b"a", b"%d" % n) for n in range(6)]
            batches = await take(kv.watch(b"a", b"b", from_revision=revisions[2]), 4)
            assert [batch.revision for batch in batches] == revisions[2:]

        self.run(body)

    def test_a_new_store_can_be_watched_from_its_beginning(self) -> None:
        async def body(kv: KVStore, clock: ManualClock) -> None:
            revisions = [await put(kv, b"a", b"%d" % n) for n in range(3)]
            batches = await take(kv.watch(b"a", b"b", from_revision=1), 3)
            assert [batch.revision for batch in batches] == revisions

        self.run(body)

    def test_a_watch_starts_in_the_future(self) -> None:
        async def body(kv: KVStore, clock: ManualClock) -> None:
            before = await kv.revision()
            watch = kv.watch(b"a", b"b", from_revision=before + 3)
            for n in range(4):
                await put(kv, b"a", b"%d" % n)
            batches = await take(watch, 2)
            assert [batch.revision for batch in batches] == [before + 3, before + 4]

        self.run(body)

    def test_a_waiting_watch_is_woken(self) -> None:
        async def body(kv: KVStore, clock: ManualClock) -> None:
            watch = kv.watch(b"a", b"b", from_revision=await kv.revision() + 1)
            waiting = asyncio.create_task(take(watch, 2))
            first = await put(kv, b"a", b"1")
            await put(kv, b"other", b"1")
            second = await put(kv, b"a", b"2")
            assert [batch.revision for batch in await waiting] == [first, second]

        self.run(body)

    def test_a_cancelled_wait_loses_no_change(self) -> None:
        async def body(kv: KVStore, clock: ManualClock) -> None:
            watch = kv.watch(b"a", b"b", from_revision=await kv.revision() + 1)
            for n in range(5):
                waiting = asyncio.ensure_future(anext(watch))
                await asyncio.sleep(0)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                revision = await put(kv, b"a", b"%d" % n)
                assert [batch.revision for batch in await take(watch, 1)] == [revision]

        self.run(body)

    def test_watches_under_concurrent_writes_see_the_same_history(self) -> None:
        async def body(kv: KVStore, clock: ManualClock) -> None:
            first = await kv.revision() + 1
            live = kv.watch(b"k", b"l", from_revision=first)
            watching = asyncio.create_task(take(live, 100))
            await asyncio.gather(
                *(put(kv, b"k%d" % (n % 7), b"%d" % n) for n in range(100)),
            )
            seen = await watching
            assert [batch.revision for batch in seen] == list(range(first, first + 100))
            assert seen == await take(kv.watch(b"k", b"l", from_revision=first), 100)
            state: dict[bytes, StoredKeyValue] = {}
            for batch in seen:
                for change in batch.changes:
                    assert change.previous == state.get(change.key)
                    assert change.kv is not None
                    state[change.key] = change.kv
            assert (await kv.range(b"k", b"l")).kvs == tuple(state[key] for key in sorted(state))

        self.run(body)

    def test_range_then_watch_misses_nothing(self) -> None:
        async def body(kv: KVStore, clock: ManualClock) -> None:
            async def write() -> None:
                for n in range(80):
                    await put(kv, b"k%d" % (n % 5), b"%d" % n)

            async def follow() -> dict[bytes, bytes]:
                found = await kv.range(b"k", b"l")
                state = {kv.key: kv.value for kv in found.kvs}
                watch = kv.watch(b"k", b"l", from_revision=found.revision + 1)
                while state.get(b"k4") != b"79":
                    for change in (await take(watch, 1))[0].changes:
                        assert change.kv is not None
                        state[change.key] = change.kv.value
                return state

            _, *states = await asyncio.gather(write(), follow(), follow(), follow())
            expected = {b"k%d" % n: b"%d" % (75 + n) for n in range(5)}
            assert states == [expected] * 3

        self.run(body)

    def test_aclose_ends_a_watch(self) -> None:
        async def body(kv: KVStore, clock: ManualClock) -> None:
            watch = kv.watch(b"a", b"b", from_revision=await kv.revision() + 1)
            waiting = asyncio.ensure_future(anext(watch))
            await asyncio.sleep(0)
            await watch.aclose()
            with pytest.raises(StopAsyncIteration):
                async with asyncio.timeout(PATIENCE_S):
                    await waiting
            await put(kv, b"a", b"1")
            with pytest.raises(StopAsyncIteration):
                await anext(watch)

        self.run(body)

    # leases

    def test_a_lease_ends_and_takes_its_keys_along(self) -> None:
        async def body(kv: KVStore, clock: ManualClock) -> None:
            lease = await kv.grant_lease(10_000)
            other = await kv.grant_lease(60_000)
            assert lease != other
            written = await kv.txn(
                (), (Put(b"a", b"1", lease), Put(b"b", b"2", lease), Put(b"c", b"3", other))
            )
            found = await kv.get(b"a")
            assert found is not None
            assert found.lease_id == lease
            watch = kv.watch(b"a", b"z", from_revision=written.revision + 1)
            clock.advance(9_999)
            assert keys((await kv.range(b"a", b"z")).kvs) == [b"a", b"b", b"c"]
            clock.advance(1)
            assert await kv.get(b"a") is None
            assert keys((await kv.range(b"a", b"z")).kvs) == [b"c"]
            (batch,) = await take(watch, 1)
            assert [(c.key, c.kv) for c in batch.changes] == [(b"a", None), (b"b", None)]
            assert await kv.revision() == written.revision + 1

        self.run(body)

    def test_a_transaction_sees_that_a_lease_has_ended(self) -> None:
        async def body(kv: KVStore, clock: ManualClock) -> None:
            lease = await kv.grant_lease(1_000)
            await put(kv, b"alive", b"", lease)
            clock.advance(1_000)
            assert (await kv.txn((RevisionIs(b"alive", 0),), (Put(b"sealed", b""),))).succeeded

        self.run(body)

    def test_keep_alive_gives_the_full_time_again(self) -> None:
        async def body(kv: KVStore, clock: ManualClock) -> None:
            lease = await kv.grant_lease(10_000)
            revision = await put(kv, b"a", b"1", lease)
            for _ in range(5):
                clock.advance(9_000)
                await kv.keep_alive(lease)
            assert await kv.get(b"a") is not None
            assert await kv.revision() == revision
            clock.advance(10_000)
            with pytest.raises(NotFound):
                await kv.keep_alive(lease)
            assert await kv.get(b"a") is None

        self.run(body)

    def test_a_revoked_lease_takes_its_keys_along(self) -> None:
        async def body(kv: KVStore, clock: ManualClock) -> None:
            lease = await kv.grant_lease(10_000)
            revision = await put(kv, b"a", b"1", lease)
            await kv.revoke_lease(lease)
            assert await kv.get(b"a") is None
            assert await kv.revision() == revision + 1
            for use in (
                kv.keep_alive(lease),
                kv.revoke_lease(lease),
                kv.txn((), (Put(b"b", b"1", lease),)),
            ):
                with pytest.raises(NotFound):
                    await use

        self.run(body)

    def test_a_rewritten_key_leaves_its_lease(self) -> None:
        async def body(kv: KVStore, clock: ManualClock) -> None:
            first, second = await kv.grant_lease(1_000), await kv.grant_lease(5_000)
            await kv.txn(
                (), (Put(b"a", b"1", first), Put(b"b", b"1", first), Put(b"c", b"1", first))
            )
            await kv.txn((), (Put(b"a", b"2"), Put(b"b", b"2", second), Delete(b"c")))
            await put(kv, b"c", b"2")
            clock.advance(1_000)
            assert keys((await kv.range(b"a", b"z")).kvs) == [b"a", b"b", b"c"]
            clock.advance(4_000)
            assert keys((await kv.range(b"a", b"z")).kvs) == [b"a", b"c"]

        self.run(body)

    def test_only_the_branch_taken_needs_its_leases(self) -> None:
        async def body(kv: KVStore, clock: ManualClock) -> None:
            before = await kv.revision()
            with pytest.raises(NotFound):
                await kv.txn((), (Put(b"a", b""), Put(b"b", b"", lease_id=424_242)))
            assert await kv.revision() == before
            result = await kv.txn((), (Put(b"a", b""),), (Put(b"b", b"", lease_id=424_242),))
            assert result.succeeded

        self.run(body)

    def test_a_lease_lasts_some_time(self) -> None:
        async def body(kv: KVStore, clock: ManualClock) -> None:
            for ttl_ms in (0, -1):
                with pytest.raises(Invalid):
                    await kv.grant_lease(ttl_ms)

        self.run(body)

    # the rest

    def test_raise_revision_starts_above(self) -> None:
        async def body(kv: KVStore, clock: ManualClock) -> None:
            low = await put(kv, b"a", b"1")
            await kv.raise_revision(1_000_000)
            revision = await put(kv, b"a", b"2")
            assert revision > 1_000_000
            await kv.raise_revision(5)
            assert await put(kv, b"a", b"3") == revision + 1
            found = await kv.get(b"a")
            assert found == StoredKeyValue(b"a", b"3", low, revision + 1)

        self.run(body)

    def test_after_close_everything_says_so(self) -> None:
        async def body(kv: KVStore, clock: ManualClock) -> None:
            revision = await put(kv, b"a", b"1")
            watch = kv.watch(b"a", b"b", from_revision=revision + 1)
            waiting = asyncio.ensure_future(anext(watch))
            await asyncio.sleep(0)
            await kv.close()
            for use in (
                kv.get(b"a"),
                kv.range(b"a", b"b"),
                kv.txn((), (Put(b"a", b"2"),)),
                kv.revision(),
                kv.grant_lease(1_000),
                waiting,
            ):
                with pytest.raises(Closed):
                    async with asyncio.timeout(PATIENCE_S):
                        await use
            await kv.close()

        self.run(body)
