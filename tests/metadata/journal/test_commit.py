"""Commits: requests, resent requests, and answers."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from streamlog.errors import Closed, Internal, Invalid, TenureFenced
from streamlog.format.records import commit as commit_record
from streamlog.format.records import record as record_format
from streamlog.kvstore.interface import Put
from streamlog.metadata.interface import (
    CommitEntry,
    CreateEntry,
    StreamEpoch,
    TokenEntry,
    TrimEntry,
)
from streamlog.metadata.session import MetadataSession
from streamlog.runtime.offload import Lane, ThreadOffload
from tests.metadata.scripted_kv import ScriptedKV, commits
from tests.metadata.world import InlineOffload, World, append, create, new_object, ranges_of
from tests.support.metadata_insides import committer_of, follower_of
from tests.support.object_ids import give_up_id, take_id


def records(kv: ScriptedKV) -> list[commit_record.CommitRecord]:
    decoded = []
    for _, then in kv.sent:
        put = then[1]
        assert isinstance(put, Put)
        decoded.append(commit_record.decode(put.value))
    return decoded


async def scripted() -> tuple[World, ScriptedKV, MetadataSession]:
    world = World()
    kv = ScriptedKV(world.kv)
    return world, kv, await world.open(kv=kv)


def test_a_commit_is_two_compares_and_two_puts_for_any_number_of_streams() -> None:
    async def main() -> None:
        _, kv, metadata = await scripted()
        for count in (1, 10_000):
            streams = await create(metadata, count)
            kv.sent.clear()
            new = await new_object(metadata, [(s, 1, 0, 3) for s in streams])
            await metadata.commit(CommitEntry(objects=[new]))
            ((compares, then),) = kv.sent
            assert len(compares) == 2
            assert len(then) == 2
            assert all(isinstance(one, Put) for one in then)
        await metadata.close(drained=True)

    asyncio.run(main())


def test_ten_thousand_streams_take_7_to_29_kb() -> None:
    async def main() -> list[int]:
        _, kv, metadata = await scripted()
        rng, sizes = random.Random(3), []
        dense = await create(metadata, 10_000)
        wide = [dense[-1] + 1 + n for n in sorted(rng.sample(range(1 << 24), 10_000))]
        await metadata.commit(CommitEntry(creates=[CreateEntry(s, 1) for s in wide]))
        for streams in (dense, wide):
            kv.sent.clear()
            rows = [(s, 1, 0, rng.randint(1, 50)) for s in streams]
            await metadata.commit(CommitEntry(objects=[await new_object(metadata, rows)]))
            ((_, then),) = kv.sent
            sizes.append(sum(len(put.key) + len(put.value) for put in then if isinstance(put, Put)))
        await metadata.close(drained=True)
        return sizes

    dense, wide = asyncio.run(main())
    assert 6_500 < dense < 9_000
    assert 24_000 < wide < 29_000


def test_a_holder_changes_each_field_of_a_stream() -> None:
    async def main() -> None:
        async with World().tenure() as metadata:
            a, b = await create(metadata, 2, topic="t")
            await append(metadata, a, 5)
            done = await metadata.commit(
                CommitEntry(
                    tokens=[TokenEntry(a, 1, b"me")],
                    trims=[TrimEntry(a, 1, 2)],
                    closes=[StreamEpoch(a, 1)],
                    destroys=[StreamEpoch(b, 1)],
                )
            )
            assert done.stripped == frozenset()
            assert metadata.revision >= done.revision
            row = metadata.stream(a)
            assert row is not None
            assert (row.start, row.end, row.token, row.state.name) == (2, 5, b"me", "CLOSED")
            assert row.tags == {"topic": "t"}
            assert metadata.stream(b) is None
            assert metadata.stream_count == 1

    asyncio.run(main())


def test_queued_entries_share_a_record_in_the_order_of_calls() -> None:
    async def main() -> None:
        _, kv, metadata = await scripted()
        (stream,) = await create(metadata)
        kv.sent.clear()
        kv.plan = ["hold"]
        news = [await new_object(metadata, [(stream, 1, i, i + 1)]) for i in range(6)]
        calls = [asyncio.ensure_future(metadata.commit(CommitEntry(objects=[n]))) for n in news]
        await kv.held.wait()
        assert len(kv.sent) == 1  # one transaction in flight
        kv.released.set()
        done = await asyncio.gather(*calls)
        assert [d.seq for d in done] == sorted(d.seq for d in done)
        assert len(kv.sent) == len({d.seq for d in done}) < 6
        object_ids = [object_id for _, _, object_id in await ranges_of(metadata, stream)]
        assert object_ids == [n.row.object_id for n in news]
        await metadata.close(drained=True)

    asyncio.run(main())


def test_records_stay_within_their_bounds_and_split_no_entry() -> None:
    async def main() -> None:
        world = World()
        kv = ScriptedKV(world.kv)
        metadata = await world.open(kv=kv, object_streams_max=10)
        streams = await create(metadata, 8)
        kv.sent.clear()
        news = [
            await new_object(metadata, [(s, 1, i, i + 1) for s in streams[:4]]) for i in range(5)
        ]
        calls = [asyncio.ensure_future(metadata.commit(CommitEntry(objects=[n]))) for n in news]
        await asyncio.gather(*calls)
        rows = [
            [len(o.streams) for entry in record.entries for o in entry.objects]
            for record in records(kv)
        ]
        assert sum(map(len, rows)) == 5
        assert all(sum(counts) <= 10 and set(counts) == {4} for counts in rows)
        wide = await new_object(metadata, [(s, 1, 5, 6) for s in range(11)])
        with pytest.raises(Invalid, match="11 rows"):
            await metadata.commit(CommitEntry(objects=[wide]))
        await metadata.close(drained=True)

    asyncio.run(main())


@pytest.mark.parametrize(
    "plan",
    [
        ["lost"],
        ["dropped"],
        ["away", "away"],
        ["lost", "away", "dropped"],
        ["dropped", "lost"],
        ["late", "ok"],
        ["late", "late", "lost"],
    ],
)
def test_a_record_with_unknown_outcomes_is_applied_once(plan: list[str]) -> None:
    async def main() -> None:
        _, kv, metadata = await scripted()
        (stream,) = await create(metadata)
        kv.sent.clear()
        kv.plan = list(plan)
        first = await append(metadata, stream, 3)
        frozen = kv.sent[0][1]
        assert all(then == frozen for _, then in kv.sent)
        assert len(kv.sent) == len(plan) + ("ok" not in plan)
        second = await append(metadata, stream, 2)
        assert not any(await kv.land())
        assert await ranges_of(metadata, stream) == [(0, 3, first), (3, 5, second)]
        await metadata.close(drained=True)

    asyncio.run(main())


def test_a_late_first_copy_of_a_record_is_recognised() -> None:
    """Head = seq - 1 proves nothing: the first copy is applied while the bytes are sent again."""

    async def main() -> None:
        _, kv, metadata = await scripted()
        (stream,) = await create(metadata)
        kv.plan = ["late", "hold"]
        call = asyncio.ensure_future(append(metadata, stream, 3))
        await kv.held.wait()
        assert await kv.land() == [True]
        kv.released.set()
        object_id = await call
        assert await ranges_of(metadata, stream) == [(0, 3, object_id)]
        await metadata.close(drained=True)

    asyncio.run(main())


def test_a_cancelled_callers_entry_still_commits() -> None:
    async def main() -> None:
        _, kv, metadata = await scripted()
        (stream,) = await create(metadata)
        kv.plan = ["hold"]
        new = await new_object(metadata, [(stream, 1, 0, 4)])
        call = asyncio.ensure_future(metadata.commit(CommitEntry(objects=[new])))
        await kv.held.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        kv.released.set()
        await metadata.close(drained=True)
        async with World(kv=kv).tenure() as after:
            row = after.stream(stream)
            assert row is not None
            assert row.end == 4

    asyncio.run(main())


def test_a_sealed_tenure_commits_nothing() -> None:
    async def main() -> None:
        world = World()
        old = await world.open()
        (stream,) = await create(old)
        new = await world.open()
        with pytest.raises(TenureFenced):
            await append(old, stream, 1)
        assert old.is_fenced
        with pytest.raises(TenureFenced):
            await old.commit(CommitEntry(trims=[TrimEntry(stream, 1, 0)]))
        with pytest.raises(TenureFenced):
            await old.open_streams([(stream, None)])
        assert await new.take_over_previous(frozenset()) == [old.tenure]
        row = new.stream(stream)
        assert row is not None
        assert (row.epoch, row.end) == (2, 0)
        await old.close(drained=True)
        await new.close(drained=True)

    asyncio.run(main())


def test_a_seal_ends_waits_for_ids_and_for_the_end() -> None:
    async def main() -> None:
        world = World()
        old = await world.open(put_window=1)
        await take_id(old)
        waiting = [
            asyncio.ensure_future(take_id(old)),
            asyncio.ensure_future(old.wait_failed()),
        ]
        await asyncio.sleep(0)
        new = await world.open()
        async with asyncio.timeout(60):
            with pytest.raises(TenureFenced):
                await waiting[0]
            assert isinstance(await waiting[1], TenureFenced)
        await old.close(drained=True)
        await new.close(drained=True)

    asyncio.run(main())


def test_a_record_applied_before_the_seal_is_acknowledged_after_it() -> None:
    async def main() -> None:
        world, kv, old = await scripted()
        (stream,) = await create(old)
        kv.plan = ["lost", "hold"]
        call = asyncio.ensure_future(append(old, stream, 3))
        await kv.held.wait()
        new = await world.open()
        await new.take_over_previous(frozenset())
        kv.released.set()
        object_id = await call
        assert await ranges_of(new, stream) == [(0, 3, object_id)]
        await old.close(drained=True)
        await new.close(drained=True)

    asyncio.run(main())


def test_rows_of_a_stream_that_was_lost_and_regained_are_stripped() -> None:
    """A→B→A: the holder is the same again, the epoch is not."""

    async def main() -> None:
        world, kv, a = await scripted()
        b = await world.open(2)
        stream, other = await create(a, 2)
        await append(b, (await create(b))[0], 1)
        lost: list[tuple[int, int]] = []
        a.on_stream_lost(lambda s, e: lost.append((s, e)))
        kv.plan = ["hold"]
        new = await new_object(a, [(stream, 1, 0, 4), (other, 1, 0, 2)])
        only = await new_object(a, [(stream, 1, 4, 5)])
        calls = [
            asyncio.ensure_future(a.commit(CommitEntry(objects=[new]))),
            asyncio.ensure_future(a.commit(CommitEntry(objects=[only]))),
        ]
        await kv.held.wait()
        await b.take_streams([(stream, None)])
        (row,) = await a.take_streams([(stream, None)])
        assert (row.epoch, row.end) == (3, 0)
        kv.released.set()
        done, gone = await asyncio.gather(*calls)
        assert done.stripped == gone.stripped == {stream}
        assert lost == [(stream, 2)]
        assert await ranges_of(a, stream) == []
        assert await ranges_of(a, other) == [(0, 2, new.row.object_id)]
        # An object that kept no row is an orphan of this tenure.
        (orphans,) = [o for o in await a.orphan_candidates() if o.tenure == a.tenure]
        assert orphans.object_ids == (only.row.object_id,)
        await a.close(drained=True)
        await b.close(drained=True)

    asyncio.run(main())


def test_an_entry_that_does_not_fit_fails_alone() -> None:
    async def main() -> None:
        async with World().tenure() as metadata:
            (stream,) = await create(metadata)
            gap = await new_object(metadata, [(stream, 1, 5, 6)])
            good = await new_object(metadata, [(stream, 1, 0, 1)])
            foreign = await new_object(metadata, [(stream, 1, 1, 2)])
            give_up_id(metadata, foreign.row.object_id)
            backward = await new_object(metadata, [(stream + 1, 1, 0, 1), (stream, 1, 1, 2)])
            entries = [
                CommitEntry(objects=[gap]),
                CommitEntry(objects=[good]),
                CommitEntry(objects=[foreign]),
                CommitEntry(objects=[backward]),
                CommitEntry(creates=[CreateEntry(stream, 1)]),
                CommitEntry(trims=[TrimEntry(stream, 1, 2)]),
            ]
            done = await asyncio.gather(
                *(metadata.commit(e) for e in entries), return_exceptions=True
            )
            assert [type(one) for one in done if isinstance(one, Exception)] == [Internal] * 5
            assert await ranges_of(metadata, stream) == [(0, 1, good.row.object_id)]

    asyncio.run(main())


def test_the_window_of_object_ids_opens_as_ids_are_committed_or_swept() -> None:
    async def main() -> None:
        _, kv, metadata = await scripted()
        (stream,) = await create(metadata)
        ids = [await take_id(metadata) for _ in range(64)]
        waiting = asyncio.ensure_future(take_id(metadata))
        give_up_id(metadata, ids[1])
        kv.sent.clear()
        give_up_id(metadata, ids[0])
        await asyncio.sleep(0.01)
        assert not waiting.done()
        (orphans,) = await metadata.orphan_candidates()
        assert orphans.object_ids == (ids[0], ids[1])
        await metadata.orphans_deleted(orphans)
        assert await waiting == ids[-1] + 1
        # A record without entries moved the window: there was nothing to commit.
        (record,) = records(kv)
        assert record.entries == ()
        assert record.floor == ids[2]
        assert stream
        await metadata.close(drained=True)

    asyncio.run(main())


def test_closing_commits_queued_entries_then_refuses() -> None:
    async def main() -> None:
        world = World()
        metadata = await world.open()
        (stream,) = await create(metadata)
        new = await new_object(metadata, [(stream, 1, 0, 4)])
        call = asyncio.ensure_future(metadata.commit(CommitEntry(objects=[new])))
        await asyncio.sleep(0)
        await metadata.close(drained=True)
        assert (await call).stripped == frozenset()
        with pytest.raises(Closed):
            await metadata.commit(CommitEntry())
        with pytest.raises(Closed):
            await take_id(metadata)

    asyncio.run(main())


def test_closing_ends_without_a_metadata_store() -> None:
    async def main() -> None:
        world = World()
        kv = ScriptedKV(world.kv)
        metadata = await world.open(kv=kv, operation_timeout_ms=50)
        kv.matches = lambda sent: True
        kv.plan = ["away"] * 1000
        call = asyncio.ensure_future(metadata.commit(CommitEntry(creates=[CreateEntry(70_000, 1)])))
        await asyncio.sleep(0)
        await metadata.close(drained=True)
        with pytest.raises(Closed) as caught:
            await call
        assert not caught.value.has_no_side_effects

    asyncio.run(main())


def test_large_records_go_through_threads() -> None:
    async def main() -> None:
        offload = ThreadOffload()
        world = World()
        metadata = await world.open(offload=offload)
        other = await world.open(2, offload=offload)
        streams = await create(metadata, 3000)
        for i in range(3):
            new = await new_object(metadata, [(s, 1, i, i + 1) for s in streams])
            done = await metadata.commit(CommitEntry(objects=[new]))
        await follower_of(other).reach(done.revision)
        assert {row.end for row in other.streams(limit=5000)} == {3}
        await metadata.checkpoint()
        await metadata.close(drained=True)
        await other.close(drained=True)
        await offload.close()

    asyncio.run(main())


def test_a_cancelled_caller_holds_up_no_other_caller() -> None:
    async def main() -> None:
        world, kv, metadata = await scripted()
        a, b = await create(metadata, 2)
        kv.plan = ["hold"]
        entries = [
            CommitEntry(objects=[await new_object(metadata, [row])])
            for row in ((a, 1, 0, 1), (a, 1, 1, 2), (b, 1, 0, 1))
        ]
        first = committer_of(metadata).submit(entries[0])
        await kv.held.wait()
        second, last = (committer_of(metadata).submit(entry) for entry in entries[1:])
        first.cancel()
        second.cancel()
        kv.released.set()
        assert (await last).stripped == frozenset()
        assert [end for _, end, _ in await ranges_of(metadata, a)] == [1, 2]
        await metadata.close(drained=True)
        async with world.tenure() as again:
            assert [end for _, end, _ in await ranges_of(again, a)] == [1, 2]

    asyncio.run(main())


def test_a_seal_ends_the_tenure_although_the_caller_in_flight_was_cancelled() -> None:
    async def main() -> None:
        world, kv, metadata = await scripted()
        (stream,) = await create(metadata)
        kv.plan = ["hold"]
        new = await new_object(metadata, [(stream, 1, 0, 1)])
        given_up = committer_of(metadata).submit(CommitEntry(objects=[new]))
        await kv.held.wait()
        async with world.tenure(2) as other:
            await other.seal(metadata.tenure, even_if_alive=True)
        given_up.cancel()
        kv.released.set()
        assert isinstance(await metadata.wait_failed(), TenureFenced)
        with pytest.raises(TenureFenced):
            await append(metadata, stream, 1)
        # No record is written any more, so `drained` does not wait for one.
        committer_of(metadata).ask_for_floor()
        await asyncio.wait_for(committer_of(metadata).drained(), 60)
        await metadata.close(drained=True)

    asyncio.run(main())


class Counting(InlineOffload):
    """A committer that records the entries it was given."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    async def run(self, lane: Lane, fn: Any, *args: Any) -> Any:  # type: ignore[override]
        self.calls.append(fn)
        return await super().run(lane, fn, *args)


@pytest.mark.parametrize("count", [10, 4000])
def test_large_records_of_other_nodes_are_decoded_off_the_loop(count: int) -> None:
    async def main() -> None:
        world, offload = World(), Counting()
        async with world.tenure(1) as metadata:
            first, *_ = await metadata.allocate_stream_ids(1)
            streams = [first + n * n for n in range(count)]
            creates = [CreateEntry(stream_id, 1) for stream_id in streams]
            async with world.tenure(2, offload=offload) as other:
                await metadata.commit(CommitEntry(creates=creates))
                await other.catch_up()
                assert other.stream_count == count
                assert (record_format.decode in offload.calls) == (count == 4000)

    asyncio.run(main())


def test_a_range_of_more_offsets_than_a_row_can_count_is_committed_in_parts() -> None:
    async def main() -> None:
        world, end = World(), 3 * (1 << 32) + 5
        async with world.tenure() as metadata:
            (stream,) = await create(metadata)
            object_id = await append(metadata, stream, end)
            more = await append(metadata, stream, 2)
            before = await ranges_of(metadata, stream)
            assert before[0][0] == 0
            assert [one for _, _, one in before] == [object_id] * (len(before) - 1) + [more]
            assert before[-1][:2] == (end, end + 2)
            await metadata.checkpoint()
            assert (await ranges_of(metadata, stream))[-1] == before[-1]
        async with world.tenure() as again:
            row = again.stream(stream)
            assert row is not None
            assert row.end == end + 2
            located = await again.locate(stream, (1 << 32) + 7, (1 << 32) + 8)
            assert [one.object.object_id for one in located] == [object_id]

    asyncio.run(main())


def test_the_script_applies_to_commits_alone() -> None:
    assert commits(((), [Put(b"/sl/test/c/x", b"")]))
    assert not commits(((), [Put(b"/sl/test/m/x", b"")]))
