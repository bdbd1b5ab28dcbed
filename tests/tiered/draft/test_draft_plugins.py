"""A plug-in of KIP-405's first draft copies, reads and expires under the RemoteLogManager."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from streamlog.errors import Corrupt, InvalidConfig, UnsupportedVersion
from streamlog.log.api.abstract_log import AbortedTransaction, Isolation
from streamlog.model.partition import TopicPartition
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.basic_kv import BasicKV
from streamlog.testing.clocks import ManualClock
from streamlog.testing.logs.log_conformance import append, encoded
from streamlog.testing.logs.transaction_conformance import begin, end, transactional
from streamlog.testing.tiers.segments import BytesFile, SegmentMaker
from streamlog.testing.torn_folder import TornTree
from streamlog.tiered.api import IndexType
from streamlog.tiered.config import RemoteLogConfig
from streamlog.tiered.draft import RemoteLogIndexEntry, RemoteLogSegmentInfo
from streamlog.tiered.draft.index_bundle import (
    bundle_batch,
    bundle_of,
    decode_bundle,
    encode_bundle,
)
from streamlog.tiered.draft.storage_adapter import (
    DraftStorageAdapter,
    data_partition,
    index_partition,
)
from streamlog.tiered.reading.chunks import ChunkConfig
from streamlog.wiring.tiers import tier_plugins
from tests.tiered.draft.memory_plugin import MemoryPlugin
from tests.tiered.harness import TieredLogUnderTest, tiered_log, values

GOLDEN = Path(__file__).parents[2] / "golden"
CLASS = "tests.tiered.draft.memory_plugin:MemoryPlugin"
SMALL_CHUNKS = RemoteLogConfig(
    reads_kept_bytes=1024,
    chunks=ChunkConfig(chunk_bytes=256, retry_ms=1, retry_ms_max=2),
    batch_bytes_max=256,
)
STEP_MS = 600_000


def run(
    test: Callable[[TieredLogUnderTest, MemoryPlugin], Awaitable[None]],
    config: RemoteLogConfig = SMALL_CHUNKS,
) -> None:
    async def body() -> None:
        plugin = MemoryPlugin()
        adapter = DraftStorageAdapter(plugin)
        async with tiered_log(TornTree(SeededRandom(3)), {}, config, adapter) as t:
            await test(t, plugin)

    asyncio.run(body())


async def filled(t: TieredLogUnderTest, count: int = 40) -> dict[int, bytes]:
    """Records of 100 bytes, each a batch: about five a segment, two entries each."""
    wanted: dict[int, bytes] = {}
    for number in range(count):
        value = b"%06d" % number * 16
        info = await append(t.log, encoded([value], at_ms=t.clock.now_ms()))
        wanted[info.base_offset] = value
        t.clock.advance(STEP_MS)
    return wanted


async def only_newest_local(t: TieredLogUnderTest) -> None:
    await t.copy()
    await t.configure(local_retention_bytes="1")
    await t.retain()
    assert len(t.log.segments) == 1


@pytest.mark.parametrize("config", [SMALL_CHUNKS, RemoteLogConfig()])
def test_what_it_copied_is_read_also_by_the_next_life(config: RemoteLogConfig) -> None:
    async def test(t: TieredLogUnderTest, plugin: MemoryPlugin) -> None:
        begun_ms = t.clock.now_ms()
        wanted = await filled(t)
        await only_newest_local(t)
        assert t.log.local_log_start_offset > 30
        for life in (t.reopened, t.crashed):
            for offset in wanted:
                assert await values(t.log, offset) == {
                    at: value for at, value in wanted.items() if at >= offset
                }
                found = await t.log.offset_for_timestamp(
                    begun_ms + STEP_MS * offset, Isolation.READ_UNCOMMITTED
                )
                assert found.offset == offset
            await life()
        listed = await plugin.list_remote_segments(data_partition(t.partition), 7)
        assert [one.base_offset for one in listed] == [
            one.start_offset
            for one in await t.metadata.list_remote_log_segments(t.partition)
            if one.start_offset >= 7
        ]

    run(test, config)


def test_a_batch_above_max_bytes_comes_whole() -> None:
    async def test(t: TieredLogUnderTest, plugin: MemoryPlugin) -> None:
        wanted = await filled(t)
        await only_newest_local(t)
        fetched = await t.log.fetch(3, 1)
        assert fetched.next_offset == 4
        assert wanted[3] in b"".join(fetched.parts)

    run(test)


def test_aborted_transactions_are_told() -> None:
    async def test(t: TieredLogUnderTest, plugin: MemoryPlugin) -> None:
        await append(t.log, encoded([b"plain"]))
        await begin(t.log, transactional([b"aborted" * 20], 8, 0, 0))
        await end(t.log, False, 8)
        await filled(t, 20)
        await only_newest_local(t)
        await t.crashed()
        fetched = await t.log.fetch(0, 500, isolation=Isolation.READ_COMMITTED)
        assert fetched.aborted == (AbortedTransaction(8, 1),)

    run(test)


def test_what_expires_goes_and_a_deleted_topic_leaves_nothing() -> None:
    async def test(t: TieredLogUnderTest, plugin: MemoryPlugin) -> None:
        wanted = await filled(t)
        await only_newest_local(t)
        await t.configure(retention_ms=str(STEP_MS * 15 + 1))
        await t.copy()
        start = t.log.log_start_offset
        assert 0 < start <= 40 - 15
        for where in (data_partition(t.partition), index_partition(t.partition)):
            listed = await plugin.list_remote_segments(where)
            assert listed
            assert listed[0].base_offset == start
        assert await values(t.log, start) == {
            at: value for at, value in wanted.items() if at >= start
        }
        partition = t.partition
        await t.log.close()
        await t.factory.remove(t.handle)
        async with asyncio.timeout(10):
            await t.manager.deletions_done()
        assert plugin.segments == {}
        assert plugin.deleted == [data_partition(partition), index_partition(partition)]

    run(test)


def test_a_copy_is_cancelled_in_its_middle_and_made_again() -> None:
    async def test(t: TieredLogUnderTest, plugin: MemoryPlugin) -> None:
        wanted = await filled(t)
        plugin.free.clear()
        await t.manager.tick()
        await plugin.waits.wait()
        await t.reopened()
        assert plugin.cancelled == [index_partition(t.partition)]
        assert plugin.segments == {}
        plugin.free.set()
        await only_newest_local(t)
        assert await values(t.log) == wanted

    run(test)


class SlowLister(MemoryPlugin):
    """The first listing for a deletion waits."""

    def __init__(self) -> None:
        super().__init__()
        self.lists = asyncio.Event()
        self.may_go_on = asyncio.Event()

    async def list_remote_segments(
        self, topic_partition: TopicPartition, min_base_offset: int = 0
    ) -> Sequence[RemoteLogSegmentInfo]:
        if not self.lists.is_set():
            self.lists.set()
            await self.may_go_on.wait()
        return await super().list_remote_segments(topic_partition, min_base_offset)


class _InPieces(BytesFile):
    """A file may come in pieces."""

    async def read(self, position: int, length: int) -> Buffer:
        return await super().read(position, min(length, 5))


def test_indexes_that_come_in_pieces_are_stored_whole() -> None:
    async def body() -> None:
        make = SegmentMaker()
        adapter = DraftStorageAdapter(MemoryPlugin())
        data = make.data(log_segment=BytesFile(bundle_batch(b"value", 0, 0)))._replace(
            offset_index=_InPieces(b"an index of offsets"),
            time_index=_InPieces(b"an index of times"),
        )
        metadata = make.metadata(data)
        await adapter.copy_log_segment_data(metadata, data)
        for kind, wanted in (
            (IndexType.OFFSET, b"an index of offsets"),
            (IndexType.TIMESTAMP, b"an index of times"),
        ):
            assert bytes(await adapter.fetch_index(metadata, kind)) == wanted

    asyncio.run(body())


def test_a_late_deletion_of_a_copy_spares_the_copy_that_replaced_it() -> None:
    async def body() -> None:
        plugin, make = SlowLister(), SegmentMaker()
        adapter = DraftStorageAdapter(plugin)
        data = make.data(log_segment=BytesFile(bundle_batch(b"value", 0, 0)))
        first, second = make.metadata(data), make.metadata(data)
        assert first.start_offset == second.start_offset
        await adapter.copy_log_segment_data(first, data)
        async with asyncio.TaskGroup() as both:
            # Of the expiration and of the copy task, which goes on with the next copy.
            both.create_task(adapter.delete_log_segment_data(first))
            await plugin.lists.wait()
            other = both.create_task(adapter.delete_log_segment_data(first))
            copy = both.create_task(adapter.copy_log_segment_data(second, data))
            for _ in range(100):
                await asyncio.sleep(0)
            plugin.may_go_on.set()
            await other
            await copy
        await adapter.delete_log_segment_data(first)
        where = second.topic_id_partition
        assert set(plugin.segments) == {(data_partition(where), 0), (index_partition(where), 0)}
        await adapter.delete_log_segment_data(second)
        assert plugin.segments == {}

    asyncio.run(body())


def test_a_plugin_that_fails_to_cancel_a_copy_has_it_cancelled_all_the_same() -> None:
    async def test(t: TieredLogUnderTest, plugin: MemoryPlugin) -> None:
        wanted = await filled(t)
        plugin.free.clear()
        plugin.fails_to_cancel = True
        await t.manager.tick()
        await plugin.waits.wait()
        await t.log.close()
        copied = len(plugin.segments)
        # The copy would write on, behind the deletion of what it left.
        plugin.free.set()
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(plugin.segments) == copied
        await t.open()
        await only_newest_local(t)
        assert await values(t.log) == wanted

    run(test)


def test_a_plugin_that_does_not_delete_is_asked_again() -> None:
    async def test(t: TieredLogUnderTest, plugin: MemoryPlugin) -> None:
        await filled(t)
        await only_newest_local(t)
        plugin.is_stubborn = True
        await t.log.delete_records(t.log.high_watermark)
        await t.copy()
        assert plugin.segments
        assert "has not deleted" in t.manager.alarms()[0]
        plugin.is_stubborn = False
        await t.copy()
        await t.copy()
        assert plugin.segments == {}

    run(test)


@pytest.mark.parametrize("lost", ["first", "last", "all"])
def test_entries_that_do_not_have_the_segment_are_told_and_never_served(lost: str) -> None:
    async def test(t: TieredLogUnderTest, plugin: MemoryPlugin) -> None:
        await filled(t)
        await only_newest_local(t)
        stored = plugin.segments[data_partition(t.partition), 0]
        assert len(stored.entries) > 1
        kept = {"first": stored.entries[1:], "last": stored.entries[:-1], "all": []}
        stored.entries = kept[lost]
        with pytest.raises(Corrupt, match="entries of"):
            await t.log.fetch(0, 1000)

    run(test)


def test_bytes_that_are_not_batches_are_told_and_never_served() -> None:
    async def test(t: TieredLogUnderTest, plugin: MemoryPlugin) -> None:
        await filled(t)
        await only_newest_local(t)

        real = plugin.read

        async def damaged(
            entry: RemoteLogIndexEntry, max_bytes: int, start_offset: int, min_one: bool
        ) -> bytes:
            if b".indexes/" in entry.rdi:
                return await real(entry, max_bytes, start_offset, min_one)
            return b"\xff" * 300

        assert (await t.log.fetch(0, 1)).size_bytes
        plugin.read = damaged  # type: ignore[method-assign,assignment]
        with pytest.raises(Corrupt, match="no whole batch at byte"):
            await t.log.fetch(5, 1000)

    run(test)


def test_the_class_of_the_settings_may_be_one_of_the_draft() -> None:
    async def body() -> None:
        config = RemoteLogConfig(storage_class=CLASS, storage_configs={"place": "here"})
        plugins = tier_plugins(None, BasicKV(), config, ManualClock(), 1)  # type: ignore[arg-type]
        assert isinstance(plugins.storage, DraftStorageAdapter)
        assert plugins.storage.plugin.configs == {"place": "here"}  # type: ignore[attr-defined]
        other = replace(config, storage_class="streamlog.testing.basic_kv:BasicKV")
        with pytest.raises(InvalidConfig, match="no RemoteStorageManager"):
            tier_plugins(None, BasicKV(), other, ManualClock(), 1)  # type: ignore[arg-type]

    asyncio.run(body())


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("raise RuntimeError('no licence')", "no licence"),
        ("x = = 1", "cannot be loaded"),
        (
            "from tests.tiered.draft.memory_plugin import MemoryPlugin\n"
            "class Plugin(MemoryPlugin):\n"
            "    def configure(self, configs):\n"
            "        raise OSError('no bucket')\n",
            "no bucket",
        ),
        (
            "from streamlog.tiered.draft import DraftRemoteStorageManager\n"
            "class Plugin(DraftRemoteStorageManager): pass\n",
            "abstract",
        ),
    ],
)
def test_a_plugin_that_does_not_begin_is_a_wrong_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, says: str
) -> None:
    (tmp_path / f"plugin_of_{says.split()[0]}{len(code)}.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    (path,) = tmp_path.glob("*.py")
    config = RemoteLogConfig(storage_class=f"{path.stem}:Plugin")
    with pytest.raises(InvalidConfig, match=says):
        tier_plugins(None, BasicKV(), config, ManualClock(), 1)  # type: ignore[arg-type]


INDEXES = {IndexType.LEADER_EPOCH: b"0\n1\n0 0\n", IndexType.OFFSET: b"", IndexType.TIMESTAMP: b"t"}


def test_golden_bundle() -> None:
    data = encode_bundle(INDEXES)
    assert data == (GOLDEN / "remote_draft_indexes_v1.bin").read_bytes()
    assert decode_bundle(bundle_of(bundle_batch(data, 7, 1_000), "it"), "it") == INDEXES


def test_a_damaged_bundle_is_corrupt() -> None:
    data = encode_bundle(INDEXES)
    for length in range(len(data)):
        with pytest.raises(Corrupt):
            decode_bundle(data[:length], "it")
    with pytest.raises(UnsupportedVersion):
        decode_bundle(b"\x02" + data[1:], "it")
    batch = bundle_batch(data, 7, 1_000)
    for at in range(21, len(batch)):
        flipped = batch[:at] + bytes([batch[at] ^ 1]) + batch[at + 1 :]
        with pytest.raises(Corrupt):
            bundle_of(flipped, "it")
