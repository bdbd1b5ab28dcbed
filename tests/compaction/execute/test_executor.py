"""The executor: contents stay, blocks grow, rows are clipped, damage is named."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from streamlog.compaction.execute.executor import InlineExecutor
from streamlog.compaction.execute.rate import RateLimit
from streamlog.compaction.execute.spool import FileSpool, MemorySpool, Spool
from streamlog.compaction.plan.spec import (
    CompactionSpec,
    MergeOutcome,
    Rows,
    SpecInput,
    decode_job,
    decode_outcome,
    encode_job,
    encode_outcome,
)
from streamlog.errors import (
    Closed,
    Corrupt,
    ObjectNotFound,
    OutcomeUnknown,
    StoreUnavailable,
    StreamlogError,
    UnsupportedVersion,
)
from streamlog.format.rows import RangeRow
from streamlog.objectstore.interface import ObjectInfo, ObjectStore
from streamlog.objectstore.keys import data_key
from streamlog.objectstore.local.store import LocalObjectStore
from streamlog.objectstore.memory import MemoryObjectStore
from streamlog.runtime.clock import SystemClock
from streamlog.runtime.offload import ThreadOffload
from tests.compaction.objects import Streams, job, read_object, spec
from tests.compaction.uploading import UploadingMemoryStore

FAST = 1 << 40


async def execute(
    store: ObjectStore,
    what: CompactionSpec,
    memory_bytes: int = 64 * 1024,
    spool: Callable[[], Spool] = MemorySpool,
) -> MergeOutcome:
    clock, offload = SystemClock(), ThreadOffload()
    limit = RateLimit(FAST, clock)
    try:
        executor = InlineExecutor(store, offload, limit, spool, memory_bytes=memory_bytes)
        return await executor.run(job(what))
    finally:
        await offload.close()


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 60))


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("memory_bytes", [1, 20_000, 1 << 20, 64 << 20])
@pytest.mark.parametrize("make", [UploadingMemoryStore, lambda: MemoryObjectStore(SystemClock())])
def test_contents_stay_the_same(
    compression: str, memory_bytes: int, make: Callable[[], MemoryObjectStore]
) -> None:
    async def scenario() -> None:
        store = make()
        made = Streams(store, 1)
        for number in range(6):
            sizes = [
                (stream, made.random.choice([10, 300, 3000, 9000]))
                for stream in (1, 2, 2, 5, 7, 9)
                for _ in range(made.random.randint(1, 4))
            ]
            await made.upload(sizes, epoch=1 + number // 3, compression=compression)
        middle = made.inputs[3].rows.starts[0]
        outputs = [
            [RangeRow(1, 1, 0, middle), RangeRow(1, 2, middle, made.ends[1])],
            *(
                [RangeRow(s, e, *span) for s in some for e, span in spans(made, s)]
                for some in ((2, 5), (7, 9))
            ),
        ]
        what = spec(made.inputs, outputs)
        done = await execute(store, what, memory_bytes)
        copied = {}
        for number, row in enumerate(done.objects):
            batches, found, block_sizes = await read_object(store, row, 1000 + number)
            assert found == outputs[number]
            copied.update(batches)
            if memory_bytes > 20_000:
                assert sum(size < 2048 for size in block_sizes) <= 2 * len(found)
        assert copied == made.batches
        assert done.bytes_written == sum(row.size_bytes for row in done.objects)
        assert done.bytes_read >= sum(one.row.index_length for one in made.inputs)
        assert decode_outcome(encode_outcome(done)) == done

    run(scenario)


def spans(made: Streams, stream_id: int) -> list[tuple[int, tuple[int, int]]]:
    """(epoch, (start, end)) of the stream under the two epochs of `test_contents_stay_the_same`."""
    starts = [row.start for row in made.inputs[3].rows if row.stream_id == stream_id]
    return [(1, (0, starts[0])), (2, (starts[0], made.ends[stream_id]))]


def test_large_blocks_are_copied_and_small_ones_merged() -> None:
    async def scenario() -> None:
        store = MemoryObjectStore(SystemClock())
        made = Streams(store, 2)
        for _ in range(8):
            await made.upload([(1, 3000), (2, 100)])
        rows = [RangeRow(1, 1, 0, made.ends[1]), RangeRow(2, 1, 0, made.ends[2])]
        done = await execute(store, spec(made.inputs, [rows]), 1 << 20)
        batches, _, sizes = await read_object(store, done.objects[0], 1000)
        assert batches == made.batches
        assert len(sizes) == 9

    run(scenario)


def test_neighbours_are_read_by_one_get() -> None:
    async def scenario() -> None:
        store = MemoryObjectStore(SystemClock())
        made = Streams(store, 3)
        for _ in range(4):
            await made.upload([(stream, 2000) for stream in range(1, 30)])
        rows = [RangeRow(stream, 1, 0, made.ends[stream]) for stream in range(1, 30)]
        done = await execute(store, spec(made.inputs, [rows]), 1 << 20)
        assert done.gets == 4 + 4

    run(scenario)


def test_rows_are_clipped_at_trims_and_at_ranges_of_other_objects() -> None:
    async def scenario() -> None:
        store = MemoryObjectStore(SystemClock())
        made = Streams(store, 4)
        for _ in range(3):
            await made.upload([(1, 500)] * 6 + [(2, 700)] * 3)
        batches = made.batches[1]
        # The start lies in the middle of a batch; the last batches live elsewhere.
        first = next(batch for batch in batches[2:] if batch[1] > 1)
        start, end = first[0] + 1, batches[15][0]
        inputs = []
        for one in made.inputs:
            (row,) = (row for row in one.rows if row.stream_id == 1)
            low, high = max(row.start, start), min(row.end, end)
            if low < high:
                inputs.append(SpecInput(one.row, Rows([RangeRow(1, 1, low, high)])))
        done = await execute(store, spec(inputs, [[RangeRow(1, 1, start, end)]]))
        copied, rows, _ = await read_object(store, done.objects[0], 1000)
        assert rows == [RangeRow(1, 1, start, end)]
        assert copied == {1: batches[batches.index(first) : 15]}

    run(scenario)


@pytest.mark.parametrize("place", ["block", "index"])
def test_damage_is_named_and_nothing_is_put(place: str) -> None:
    async def scenario() -> None:
        store = MemoryObjectStore(SystemClock())
        made = Streams(store, 5)
        for _ in range(3):
            await made.upload([(1, 3000), (2, 3000)])
        row = made.inputs[1].row
        data = bytearray(await store.get(data_key(2)))
        at = 2000 if place == "block" else row.index_position + 30
        data[at] ^= 4
        await store.put(data_key(2), [bytes(data)])
        rows = [RangeRow(1, 1, 0, made.ends[1]), RangeRow(2, 1, 0, made.ends[2])]
        with pytest.raises(Corrupt) as caught:
            await execute(store, spec(made.inputs, [rows]))
        assert caught.value.object_key == data_key(2)
        assert int(caught.value.start) <= at < int(caught.value.end)
        with pytest.raises(ObjectNotFound):
            await store.head(data_key(1000))

    run(scenario)


def test_a_hole_in_an_input_is_corrupt() -> None:
    async def scenario() -> None:
        store = MemoryObjectStore(SystemClock())
        made = Streams(store, 6)
        one = await made.upload([(1, 3000)])
        end = made.ends[1]
        claimed = SpecInput(one.row, Rows([RangeRow(1, 1, 0, end + 5)]))
        with pytest.raises(Corrupt, match="missing"):
            await execute(store, spec([claimed], [[RangeRow(1, 1, 0, end + 5)]]))

    run(scenario)


def test_a_missing_input_is_reported() -> None:
    async def scenario() -> None:
        store = MemoryObjectStore(SystemClock())
        made = Streams(store, 7)
        one = await made.upload([(1, 3000)])
        await store.delete([data_key(1)])
        with pytest.raises(ObjectNotFound):
            await execute(store, spec([one], [list(one.rows)]))

    run(scenario)


class UnsureStore(MemoryObjectStore):
    """The first PUT of an output gives no answer."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.unsure = 1

    async def put(self, key: str, parts: Any, *, if_absent: bool = False) -> ObjectInfo:
        if key == data_key(1000) and self.unsure:
            self.unsure -= 1
            raise OutcomeUnknown("no answer", operation="put")
        return await super().put(key, parts, if_absent=if_absent)


def test_a_put_without_an_answer_is_repeated() -> None:
    async def scenario() -> None:
        store = UnsureStore()
        made = Streams(store, 8)
        one = await made.upload([(1, 3000)])
        done = await execute(store, spec([one], [list(one.rows)]))
        copied, _, _ = await read_object(store, done.objects[0], 1000)
        assert copied == made.batches

    run(scenario)


def test_on_files_with_a_spool_in_a_file(tmp_path: Path) -> None:
    async def scenario() -> None:
        offload = ThreadOffload()
        store = await LocalObjectStore.open(tmp_path / "store", offload, SystemClock())
        made = Streams(store, 9)
        for _ in range(5):
            await made.upload([(stream, 20_000) for stream in range(1, 20)])
        rows = [RangeRow(stream, 1, 0, made.ends[stream]) for stream in range(1, 20)]
        done = await execute(
            store, spec(made.inputs, [rows]), 100_000, lambda: FileSpool(str(tmp_path))
        )
        copied, _, _ = await read_object(store, done.objects[0], 1000)
        assert copied == made.batches
        assert [path.name for path in tmp_path.iterdir()] == ["store"]
        await store.close()
        await offload.close()

    run(scenario)


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_an_output_is_uploaded_in_steps(compression: str) -> None:
    """A quarter of the memory at a time, and blocks that are whole already uncopied."""

    async def scenario() -> None:
        store = UploadingMemoryStore()
        made = Streams(store, 21)
        for _ in range(6):
            sizes = [(stream, 6_000) for stream in range(1, 9)]
            await made.upload(sizes, compression=compression)
        rows = [RangeRow(stream, 1, 0, made.ends[stream]) for stream in range(1, 9)]
        await execute(store, spec(made.inputs, [rows]), 100_000)
        assert sum(store.writes) > 6 * 8 * 6_000
        assert len(store.writes) > 10
        # A block more may fill it, and what waits for neighbours comes with the last step.
        assert max(store.writes) < 25_000 + 2 * 6 * 6_100
        assert not store.given_up

    run(scenario)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_an_upload_that_fails_is_given_up(number: int) -> None:
    async def scenario() -> None:
        error: StreamlogError = OutcomeUnknown("no answer", operation="put")
        if number:
            error = StoreUnavailable("away", operation="put")
        store = UploadingMemoryStore({number: error})
        made = Streams(store, 22)
        for _ in range(3):
            await made.upload([(1, 30_000), (2, 30_000)])
        rows = [RangeRow(stream, 1, 0, made.ends[stream]) for stream in (1, 2)]
        wanted = spec(made.inputs, [rows])
        with pytest.raises(StoreUnavailable):
            await execute(store, wanted, 40_000)
        assert store.given_up == [data_key(job(wanted).object_ids[0])]

    run(scenario)


def test_small_blocks_that_stay_alone_are_copied() -> None:
    """With their CRCs, packed or not; those with neighbours are merged."""

    async def scenario() -> None:
        for compression in ("none", "zstd"):
            store = MemoryObjectStore(SystemClock())
            made = Streams(store, 23)
            await made.upload([(1, 500), (2, 500), (3, 500)], compression=compression)
            await made.upload([(2, 500)], compression=compression)
            rows = [RangeRow(stream, 1, 0, made.ends[stream]) for stream in (1, 2, 3)]
            done = await execute(store, spec(made.inputs, [rows]))
            copied, _, sizes = await read_object(store, done.objects[0], 1000)
            assert copied == made.batches
            assert len(sizes) == 3
            assert sizes[1] > 1000 > max(sizes[0], sizes[2])

    run(scenario)


def test_a_closed_spool_takes_nothing(tmp_path: Path) -> None:
    spool = FileSpool(str(tmp_path))
    spool.write([b"one", b"two"])
    (content,) = spool.content()
    assert bytes(content) == b"onetwo"
    spool.close()
    spool.close()
    with pytest.raises(Closed):
        spool.write([b"three"])


def test_bytes_of_a_job() -> None:
    async def scenario() -> None:
        store = MemoryObjectStore(SystemClock())
        made = Streams(store, 10)
        for _ in range(3):
            await made.upload([(1, 30), (1 << 63, 30)])
        rows = [RangeRow(1, 1, 0, made.ends[1]), RangeRow(1 << 63, 1, 0, made.ends[1 << 63])]
        wanted = job(spec(made.inputs, [rows]))
        data = encode_job(wanted)
        assert decode_job(data) == wanted
        for at in range(0, len(data), 7):
            with pytest.raises((Corrupt, UnsupportedVersion)):
                decode_job(data[:at])
            with pytest.raises((Corrupt, UnsupportedVersion)):
                decode_job(data[:at] + bytes([data[at] ^ 8]) + data[at + 1 :])

    run(scenario)


def test_the_rate_is_kept_and_a_busy_node_has_a_quarter_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0

    class VirtualClock(SystemClock):
        def monotonic(self) -> float:
            return now

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    async def scenario() -> None:
        limit = RateLimit(1000, VirtualClock())
        for _ in range(10):
            await limit.take(1000)
        assert now == pytest.approx(110.0)
        limit.is_busy = True
        await limit.take(1000)
        assert now == pytest.approx(114.0)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    asyncio.run(scenario())
