"""fsck finds what is wrong, names it, and repairs only what belongs to nobody."""

from __future__ import annotations

import pytest

from streamlog.kvstore.interface import Delete, Put
from streamlog.kvstore.memory.store import MemoryKVStore
from streamlog.metadata.config import MetadataConfig
from streamlog.metadata.keys import head, id_block
from streamlog.metadata.keys.space import prefix_of
from streamlog.metadata.session import MetadataSession
from streamlog.model.batch import CreateStreamOptions
from streamlog.objectstore.keys import data_key
from streamlog.repair.bucket import list_bucket
from streamlog.repair.findings import Finding, FindingKind, RepairReport, Severity
from streamlog.repair.view import load_view
from tests.compaction.compacting_engine import BY_HAND
from tests.repair.cluster import Cluster, append, partition, produce, run
from tests.support.object_ids import give_up_id, take_id

FENCE_WINDOW = MetadataConfig().put_window


async def filled(cluster: Cluster, *, crash: bool = False) -> str:
    """A topic and a stream with trims and a checkpoint, then more; the cluster's id."""
    async with cluster.node(crash=crash) as engine:
        await engine.logs.create_topic("t", 2)
        log = await partition(engine, "t")
        for number in range(3):
            await produce(log, b"value %d" % number)
        stream = await engine.streams.create_and_open_stream(CreateStreamOptions())
        await append(stream, b"a", b"b", b"c", b"d")
        await stream.trim(2)
        await engine.metadata.checkpoint()
        await append(stream, b"e", b"f")
        await produce(log, b"after")
        return engine.metadata.cluster_id


async def live_id(cluster: Cluster) -> int:
    """An object that some stream needs."""
    cluster_id = (await cluster.fsck()).cluster_id
    view = await load_view(
        cluster.kv,
        cluster.store,
        cluster_id,
        clock=cluster.clock,
        random=cluster.random,
        offload=cluster.offload,
    )
    row = view.streams()[-1]
    async for page in view.ranges(row):
        return page[-1].object.object_id
    raise AssertionError("the stream has no object")


def only(report: RepairReport, kind: FindingKind) -> Finding:
    (finding,) = report.of_kind(kind)
    return finding


def test_a_cluster_is_clean_after_a_stop_and_after_a_crash() -> None:
    async def scenario(crash: bool) -> None:
        cluster = Cluster()
        await filled(cluster, crash=crash)
        report = await cluster.fsck()
        assert report.is_clean, report.findings
        assert report.counts["streams"] == 9
        assert report.counts["topics"] == 1
        assert report.counts["blocks"] >= report.counts["objects"] > 2

    run(lambda: scenario(False))
    run(lambda: scenario(True))


def test_a_missing_object_is_named_with_the_offsets_that_are_lost() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        await filled(cluster)
        gone = await live_id(cluster)
        await cluster.store.delete([data_key(gone)])
        report = await cluster.fsck(repair=True)
        finding = only(report, FindingKind.OBJECT_MISSING)
        assert finding.severity is Severity.ERROR
        assert finding.object_id == gone
        assert [one.end - one.start for one in finding.lost] == [1]
        assert finding.lost[0].end == 6
        # Reported, and left alone: the second run says the same.
        assert only(await cluster.fsck(), FindingKind.OBJECT_MISSING).lost == finding.lost

    run(scenario)


def test_damage_in_index_footer_and_blocks_is_found() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        await filled(cluster)
        damaged = await live_id(cluster)
        key = data_key(damaged)
        whole = bytes(await cluster.store.get(key))
        for position, deep, is_found in (
            (len(whole) - 3, False, True),
            (len(whole) - 90, False, True),
            (20, False, False),
            (20, True, True),
            (1, True, True),
        ):
            flipped = bytearray(whole)
            flipped[position] ^= 1
            await cluster.store.put(key, [bytes(flipped)])
            report = await cluster.fsck(deep=deep)
            assert bool(report.of_kind(FindingKind.OBJECT_CORRUPT)) is is_found, position
            if is_found:
                assert only(report, FindingKind.OBJECT_CORRUPT).object_id == damaged
        await cluster.store.put(key, [whole + b"!"])
        assert "instead of" in only(await cluster.fsck(), FindingKind.OBJECT_CORRUPT).detail
        await cluster.store.put(key, [whole])
        await cluster.is_clean()

    run(scenario)


def test_another_objects_bytes_under_a_live_key_are_found() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        await filled(cluster)
        live = await live_id(cluster)
        other = min(set(await ids(cluster)) - {live})
        await cluster.store.put(data_key(live), [bytes(await cluster.store.get(data_key(other)))])
        report = await cluster.fsck()
        assert report.has_errors
        assert {f.object_id for f in report.findings if f.severity is Severity.ERROR} == {live}

    run(scenario)


async def ids(cluster: Cluster) -> list[int]:
    return list((await list_bucket(cluster.store)).ids)


async def blocks_of_retired_tenures(cluster: Cluster, last: int) -> None:
    """Blocks of object ids up to `last` were handed out, and nobody owns them any more."""
    cluster_id = (await cluster.fsck()).cluster_id
    counter = id_block.counter_key(prefix_of(cluster_id), id_block.OBJECTS)
    await cluster.kv.txn([], [Put(counter, id_block.encode_counter(last))])


def test_orphans_are_told_apart_by_who_owns_their_id() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        await filled(cluster)
        live = await live_id(cluster)
        whole = bytes(await cluster.store.get(data_key(live)))
        await blocks_of_retired_tenures(cluster, 6)
        due, retired = live + 10, 6 << id_block.OBJECTS.block_bits
        newer = 7 << id_block.OBJECTS.block_bits
        for object_id in (due, retired, newer):
            await cluster.store.put(data_key(object_id), [whole])
        report = await cluster.fsck()
        assert only(report, FindingKind.ORPHAN_DUE).object_id == due
        assert only(report, FindingKind.ORPHAN_DUE).severity is Severity.NOTE
        assert only(report, FindingKind.ORPHAN).object_id == retired
        assert only(report, FindingKind.OBJECT_NEWER).object_id == newer
        # An object that this metadata cannot know: nothing is deleted at all.
        repaired = await cluster.fsck(repair=True)
        assert "not to be trusted" in repaired.repaired[0]
        assert {due, retired, newer} <= set(await ids(cluster))
        await cluster.store.delete([data_key(newer)])
        # A node's live upload is nobody's orphan.
        async with cluster.node() as engine:
            taken = await take_id(engine.metadata)
            await cluster.store.put(data_key(taken), [whole])
            await engine.kill()
        assert only(await cluster.fsck(), FindingKind.UPLOAD_UNDER_WAY).object_id == taken
        repaired = await cluster.fsck(repair=True)
        assert repaired.repaired == ["deleted 2 orphans"]
        assert taken in set(await ids(cluster))
        assert not {due, retired} & set(await ids(cluster))

    run(scenario)


@pytest.mark.parametrize("before", [5, 0])
@pytest.mark.parametrize("starts", [0, 3])
def test_an_older_copy_of_the_metadata_is_told_and_deletes_nothing(
    before: int, starts: int
) -> None:
    """Copied while the node ran, which went on: with a stream that had objects, or none at all."""

    async def scenario() -> None:
        cluster = Cluster(config=BY_HAND)
        async with cluster.node(crash=True) as engine:
            copied = (await cluster.kv.range(b"\0", b"\xff")).kvs
            stream = await engine.streams.create_and_open_stream()
            for _ in range(before):
                await append(stream, b"known")
                copied = (await cluster.kv.range(b"\0", b"\xff")).kvs
            # All in the window, but for the streams of a copy that knows none.
            for _ in range(FENCE_WINDOW + 6 if before else FENCE_WINDOW - 6):
                await append(stream, b"acknowledged")
        stored = await ids(cluster)
        newest, cluster.kv = cluster.kv, MemoryKVStore(cluster.clock)
        for kv in sorted(copied, key=lambda kv: kv.mod_revision):
            await cluster.kv.txn([], [Put(kv.key, kv.value)])
        for _ in range(starts):
            async with cluster.node(crash=True):
                pass
        for force in (False, True):
            report = await cluster.fsck(repair=True, force=force)
            told = report.of_kind(FindingKind.OBJECT_NEWER)
            assert told
            assert all("older than the store" in finding.detail for finding in told)
            assert report.repaired == ["deleted nothing: the metadata is not to be trusted"]
        assert await ids(cluster) == stored
        cluster.kv = newest
        assert not (await cluster.fsck()).has_errors

    run(scenario)


def test_a_late_put_of_an_abandoned_object_is_left_to_the_collector() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        await filled(cluster)
        async with cluster.node() as engine:
            metadata = engine.metadata
            assert isinstance(metadata, MetadataSession)
            late = await take_id(metadata)
            give_up_id(metadata, late)
            # Beside those of the process that ended before.
            candidates = await metadata.orphan_candidates()
            (given_up,) = (one for one in candidates if one.tenure == metadata.tenure)
            assert given_up.object_ids == (late,)
            await metadata.orphans_deleted(given_up)
            stream = await engine.streams.create_and_open_stream()
            await append(stream, b"the floor passes it")
            await engine.drain()
            await cluster.store.put(data_key(late), [b"late"])
            await engine.kill()
        told = only(await cluster.fsck(), FindingKind.ORPHAN_DUE)
        assert (told.object_id, told.severity) == (late, Severity.NOTE)
        assert "late PUT" in told.detail
        repaired = await cluster.fsck(repair=True)
        assert repaired.repaired == ["deleted 1 orphans"]
        await cluster.is_clean()

    run(scenario)


def test_repair_stops_when_there_are_more_orphans_than_crashes_explain() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        await filled(cluster)
        await blocks_of_retired_tenures(cluster, 2)
        many = [(2 << id_block.OBJECTS.block_bits) + number for number in range(200)]
        for object_id in many:
            await cluster.store.put(data_key(object_id), [b"?"])
        report = await cluster.fsck(repair=True)
        assert "--force" in report.repaired[0]
        assert set(many) <= set(await ids(cluster))
        report = await cluster.fsck(repair=True, force=True)
        assert report.repaired == ["deleted 200 orphans"]
        await cluster.is_clean()

    run(scenario)


def test_stray_and_foreign_keys_are_found_and_only_stray_ones_deleted() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        await filled(cluster)
        # Another cluster's, and one that no remote tier makes.
        remote = f"remote/{'a' * 32}/0/{'0' * 20}.{'b' * 32}.segment"
        strange = ("data/other", f"other/{remote}", "photos/cat", f"{remote}s")
        for key in ("checkpoint/1.7/3", *strange):
            await cluster.store.put(key, [b"x"])
        report = await cluster.fsck(repair=True)
        found = sorted(f.key for f in report.of_kind(FindingKind.FOREIGN_KEY))
        assert found == list(strange)
        assert "checkpoint/1.7/3" in {f.key for f in report.of_kind(FindingKind.CHECKPOINT_STRAY)}
        left = {info.key for info in (await cluster.store.list("")).objects}
        assert "checkpoint/1.7/3" not in left
        assert set(strange) <= left

    run(scenario)


def test_keys_that_contradict_each_other_are_found() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        prefix = prefix_of(await filled(cluster))
        fences = (await cluster.kv.range(prefix + b"f/", prefix + b"f0")).kvs
        tenure_key = fences[0].key[len(prefix) + 2 :]
        heads = prefix + b"h/" + tenure_key
        old = await cluster.kv.get(heads)
        assert old is not None
        await cluster.kv.txn([], [Put(heads, head.encode(head.decode(old.value) + 3))])
        await cluster.kv.txn([], [Put(prefix + b"q/what", b"1"), Put(b"/else", b"2")])
        counter = id_block.counter_key(prefix, id_block.STREAMS)
        await cluster.kv.txn([], [Put(counter, id_block.encode_counter(0))])
        report = await cluster.fsck()
        details = " ".join(f.detail for f in report.of_kind(FindingKind.KEY_MISMATCH))
        assert "records, and" in details
        assert "past the counter of stream blocks" in details
        assert len(report.of_kind(FindingKind.KEY_UNKNOWN)) == 2
        await cluster.kv.txn([], [Put(fences[0].key, b"\x01nonsense")])
        report = await cluster.fsck()
        # The loader itself stumbles over it: one finding says so.
        assert only(report, FindingKind.METADATA_UNREADABLE).advice

    run(scenario)


def test_topics_whose_keys_or_streams_are_gone_are_found() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        prefix = prefix_of(await filled(cluster))
        await cluster.kv.txn([], [Delete(prefix + b"u/_partition/t/1")])
        assert (
            "partition 1 of topic t has no key"
            in only(await cluster.fsck(), FindingKind.TOPIC).detail
        )

    run(scenario)


def test_a_lost_checkpoint_file_is_found() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        await filled(cluster)
        files = (await cluster.store.list("checkpoint/")).objects
        await cluster.store.delete([info.key for info in files])
        assert only(await cluster.fsck(), FindingKind.METADATA_UNREADABLE).key in {
            f.key for f in files
        }

    run(scenario)


@pytest.mark.parametrize("bytes_left", [0, 20])
def test_a_checkpoint_file_that_was_cut_short_is_found(bytes_left: int) -> None:
    async def scenario() -> None:
        cluster = Cluster()
        await filled(cluster)
        names = {info.key for info in (await cluster.store.list("checkpoint/")).objects}
        for name in names:
            whole = bytes(await cluster.store.get(name))
            await cluster.store.put(name, [whole[:bytes_left]])
        assert only(await cluster.fsck(), FindingKind.METADATA_UNREADABLE).key in names

    run(scenario)
