"""Tasks planned and carried out without a JVM, over real nodes and stores."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamlog.client import Admin
from streamlog.client.staging import StagedWriter
from streamlog.codec.records import encode_values
from streamlog.errors import (
    Corrupt,
    DataInUse,
    ForeignCluster,
    ObjectNotFound,
    PolicyViolation,
    StoreUnavailable,
    StreamlogError,
    WalPending,
)
from streamlog.model.located import ObjectTable
from streamlog.objectstore.interface import ObjectStore
from streamlog.objectstore.keys import data_key
from streamlog.runtime.buffers import Buffer
from streamlog.spark.arrow import ROWS_ENOUGH, BatchMaker
from streamlog.spark.cluster.cluster import ServerCluster
from streamlog.spark.errors import DataLost
from streamlog.spark.plan.session import Planned
from streamlog.spark.plan.types import ReadPlace, ServicePiece, StorePiece, TaskPlan
from streamlog.spark.read import worker
from streamlog.spark.read.object_read import Chunk, PieceReader
from streamlog.spark.read.task import read_task
from streamlog.spark.read_metrics import LOGGER
from tests.spark.reading import SCHEMA, carry_out, consumed, plan, produce, read, rows, uploaded
from tests.support.node import NodeProcess
from tests.support.s3 import S3Tests

pytestmark = pytest.mark.xdist_group("spark")

NewTopic = Callable[..., str]


def _values(count: int, partitions: int = 2) -> list[tuple[int, bytes | None]]:
    return [(n % partitions, b"value %d " % n * (n % 7)) for n in range(count)]


def test_every_read_mode_equals_a_consumers_read(tmp_path: Path) -> None:
    data = tmp_path / "data"
    upload = ("--set", "engine.upload.upload_interval_ms=50")
    with NodeProcess(data, arguments=upload) as node:
        with Admin(node.server) as admin:
            admin.create_topic("logs", 3)
        produce(node.server, "logs", [*_values(3000, 3), (1, None), (2, b"")], compression="zstd")
        uploaded(node.server, "logs")
        # The newest records may be in the node's memory alone.
        produce(node.server, "logs", _values(100, 3))
        expected = consumed(node.server, "logs", 3)
        assert len(expected) == 3102
        for mode in ("auto", "store", "service"):
            table = read(server=node.server, subscribe="logs", readMode=mode, minPartitions="5")
            assert rows(table) == expected, mode
        planned = plan(server=node.server, subscribe="logs")
        assert planned.plan.store_records >= 3002
        with pytest.raises(DataInUse, match="server"):
            read(store=f"local://{data}/objects", meta=f"rocksdb://{data}/meta", subscribe="logs")
    offline = {"store": f"local://{data}/objects", "meta": f"rocksdb://{data}/meta"}
    assert rows(read(**offline, subscribe="logs", maxBytesPerPartition="20000")) == expected
    middle = sorted(row[3] for row in expected)[1500]
    late = read(**offline, subscribePattern="l.*", startingTimestamp=str(middle))
    firsts = {n: min(r[2] for r in expected if r[1] == n and r[3] >= middle) for n in range(3)}
    assert rows(late) == [row for row in expected if row[2] >= firsts[row[1]]]


def test_a_topic_of_local_files_is_read_through_its_node(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with NodeProcess(data, wal="object") as node:
        with Admin(node.server) as admin:
            admin.create_topic("files", 2, {"log.type": "unified"})
            admin.create_topic("objects", 2)
        for topic in ("files", "objects"):
            produce(node.server, topic, _values(500))
        uploaded(node.server, "objects")
        expected = [*consumed(node.server, "files", 2), *consumed(node.server, "objects", 2)]
        assert len(expected) == 1000
        both = {"server": node.server, "subscribe": "files,objects"}
        for isolation in ("read_committed", "read_uncommitted"):
            planned = plan(**both, isolation=isolation)
            assert (planned.plan.store_records, planned.plan.service_records) == (500, 500)
            assert rows(carry_out(planned)) == sorted(expected), isolation
        assert rows(read(**both, readMode="service")) == sorted(expected)
        batch = {("files", 0): encode_values([b"staged"], timestamp_ms=5).data}
        with (
            StagedWriter(node.server, "writer") as writer,
            pytest.raises(PolicyViolation, match=r"files-0 .*write it with a producer"),
        ):
            writer.stage("attempt", batch)
        with pytest.raises(PolicyViolation, match=r"files .*log\.type=unified.*readMode=auto"):
            plan(**both, readMode="store")
    with pytest.raises(PolicyViolation, match=r"files has log\.type=unified"):
        read(store=f"local://{data}/objects", meta=f"rocksdb://{data}/meta", subscribe="files")


def test_at_rest_after_a_kill_says_where_records_may_be(tmp_path: Path) -> None:
    data = tmp_path / "data"
    # Nothing is uploaded before the kill.
    with NodeProcess(data, arguments=("--set", "engine.upload.upload_interval_ms=600000")) as node:
        with Admin(node.server) as admin:
            admin.create_topic("logs", 1)
        produce(node.server, "logs", [(0, b"x")] * 10)
        node.kill()
    offline = {
        "store": f"local://{data}/objects",
        "meta": f"rocksdb://{data}/meta",
        "subscribe": "logs",
    }
    with pytest.raises(WalPending, match="wal upload"):
        read(**offline)
    assert read(**offline, failOnDataLoss="false").num_rows == 0
    with NodeProcess(data):
        pass
    assert read(**offline).num_rows == 10


@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(
                st.sampled_from(["none", "gzip", "snappy", "lz4", "zstd"]),
                st.lists(
                    st.tuples(st.integers(0, 1), st.none() | st.binary(max_size=300)), min_size=1
                ),
            ),
            st.tuples(st.just("trim"), st.integers(0, 1), st.integers(0, 100)),
        ),
        min_size=1,
        max_size=5,
    ),
    max_bytes=st.sampled_from(["1", "3000", "1000000"]),
)
def test_the_same_rows_as_a_consumer(
    node: NodeProcess,
    new_topic: NewTopic,
    steps: list[tuple[str, list[tuple[int, bytes | None]]] | tuple[str, int, int]],
    max_bytes: str,
) -> None:
    topic = new_topic()
    for step in steps:
        if len(step) == 2:
            produce(node.server, topic, step[1], compression=step[0])
        else:
            _trim(node.server, topic, step[1], step[2])
    expected = consumed(node.server, topic, 2)
    for mode in ("store", "service"):
        table = read(
            server=node.server, subscribe=topic, readMode=mode, maxBytesPerPartition=max_bytes
        )
        assert rows(table) == expected


def _trim(server: str, topic: str, partition: int, percent: int) -> None:
    with Admin(server) as admin:
        facts = admin.describe_topic(topic).partitions[partition]
        start, end = facts.log_start_offset, facts.high_watermark
        admin.delete_records(topic, partition, start + (end - start) * percent // 100)


def test_metrics_show_the_source_of_each_read(
    node: NodeProcess, new_topic: NewTopic, caplog: pytest.LogCaptureFixture
) -> None:
    topic = new_topic()
    produce(node.server, topic, _values(60))
    base = {"server": node.server, "subscribe": topic, "readName": "mine"}

    def metrics_of(planned: Planned) -> list[dict[str, str]]:
        caplog.clear()
        with suppress(DataLost):
            carry_out(planned.tell())
        return [record.__dict__["context"] for record in caplog.records if record.name == LOGGER]

    with caplog.at_level("INFO", LOGGER):
        intended, task = metrics_of(plan(**base))
        assert intended == {
            **{"what": "plan", "read": "mine", "mode": "store", "tasks": "1"},
            **{"store_records": "60", "service_records": "0"},
        }
        size = int(task.pop("store_bytes"))
        assert size > 60 * 10
        assert task == {
            **{"what": "task", "read": "mine", "store_records": "60", "service_records": "0"},
            **{"service_bytes": "0", "is_whole": "True"},
        }
        _, task = metrics_of(plan(**base, readMode="service"))
        assert (task["store_records"], task["service_records"]) == ("0", "60")
        assert int(task["service_bytes"]) == size
        # Planned for the store, and fetched; what failed says so.
        intended, task = metrics_of(_with_another_object(plan(**base)))
        assert (intended["store_records"], intended["mode"]) == ("60", "store")
        assert int(task["service_records"]) > 0
        _, task = metrics_of(_with_another_object(plan(**base, readMode="store")))
        assert task["is_whole"] == "False"
    assert metrics_of(plan(**base)) == []


def test_windows_by_offset_and_records_outside_them(node: NodeProcess, new_topic: NewTopic) -> None:
    topic = new_topic(1)
    produce(node.server, topic, _values(100, 1))
    _trim(node.server, topic, 0, 10)
    base = {"server": node.server, "subscribe": topic}

    def offsets(start: int, end: int, **others: str) -> list[int]:
        table = read(
            **base,
            **others,
            startingOffsets=f'{{"{topic}": {{"0": {start}}}}}',
            endingOffsets=f'{{"{topic}": {{"0": {end}}}}}',
        )
        found: list[int] = table.column("offset").to_pylist()
        return found

    assert offsets(20, 25) == [20, 21, 22, 23, 24]
    assert offsets(-2, 12) == [10, 11]
    assert offsets(98, -1) == [98, 99]
    assert offsets(50, 50) == []
    for start, end in ((5, 20), (20, 200), (150, 160)):
        with pytest.raises(DataLost, match="failOnDataLoss"):
            offsets(start, end)
    assert offsets(5, 12, failOnDataLoss="false") == [10, 11]
    assert offsets(98, 200, failOnDataLoss="false") == [98, 99]
    with pytest.raises(StreamlogError, match="must name all partitions"):
        read(**base, startingOffsets=f'{{"{topic}": {{"0": 20, "1": 5}}}}')


def test_few_columns_in_any_order(node: NodeProcess, new_topic: NewTopic) -> None:
    topic = new_topic(1)
    produce(node.server, topic, [(0, b"a"), (0, None)])
    planned = plan(server=node.server, subscribe=topic)
    schema = pa.schema([SCHEMA.field("value"), SCHEMA.field("offset")])
    (batch,) = [
        read_batch for task in planned.plan.tasks for read_batch in _batches(task, planned, schema)
    ]
    assert batch.schema.equals(schema)
    assert batch.to_pydict() == {"value": [b"a", None], "offset": [0, 1]}


def _batches(task: TaskPlan, planned: Planned, schema: pa.Schema) -> list[pa.RecordBatch]:
    return list(read_task(task, planned.place, schema))


def _with_another_object(planned: Planned) -> Planned:
    """As if the first object had been compacted away since."""
    (task,) = planned.plan.tasks
    ids = task.objects.ids[:]
    gone = ids[0] + (1 << 30)
    pieces = []
    for piece in task.pieces:
        assert isinstance(piece, StorePiece)
        objects = piece.objects[:]
        for number, object_id in enumerate(objects):
            if object_id == ids[0]:
                objects[number] = gone
        pieces.append(replace(piece, objects=objects))
    ids[0] = gone
    table = task.objects
    objects_table = ObjectTable(ids, table.index_positions, table.index_lengths, table.index_crcs)
    task = replace(task, pieces=tuple(pieces), objects=objects_table)
    return replace(planned, plan=replace(planned.plan, tasks=[task]))


def test_records_of_a_deleted_object_are_fetched_or_reported_lost(
    node: NodeProcess, new_topic: NewTopic
) -> None:
    topic = new_topic()
    for _ in range(3):
        produce(node.server, topic, _values(50))
    expected = consumed(node.server, topic, 2)
    base = {"server": node.server, "subscribe": topic}
    assert rows(carry_out(_with_another_object(plan(**base)))) == expected
    with pytest.raises(DataLost, match="pinTtlMs"):
        carry_out(_with_another_object(plan(**base, readMode="store")))


def test_a_store_that_cannot_be_opened_here(
    node: NodeProcess, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic()
    produce(node.server, topic, _values(50))
    expected = consumed(node.server, topic, 2)
    base = {"server": node.server, "subscribe": topic, "store": f"local://{tmp_path}/none"}
    assert rows(read(**base)) == expected
    with pytest.raises(StoreUnavailable, match="no folder"):
        read(**base, readMode="store")
    (tmp_path / "none").mkdir()
    with pytest.raises(ForeignCluster, match="store"):
        read(**base, readMode="store")


@pytest.mark.parametrize("verify", ["true", "false"])
def test_a_flipped_bit_in_an_object_is_found(
    node: NodeProcess, new_topic: NewTopic, verify: str
) -> None:
    topic = new_topic(1)
    produce(node.server, topic, [(0, b"needle in a haystack %s" % topic.encode())])
    store = Path(node.data) / "objects"
    (path,) = [
        file for file in store.rglob("*") if file.is_file() and topic.encode() in _tail(file)
    ]
    data = bytearray(path.read_bytes())
    data[data.index(b"needle")] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)
    with pytest.raises(Corrupt):
        read(server=node.server, subscribe=topic, readMode="store", verifyCrc=verify)


def _tail(path: Path) -> bytes:
    data = path.read_bytes()
    return data if b"needle" in data else b""


def test_objects_on_s3(s3: S3Tests, tmp_path: Path) -> None:
    url = s3.new_url()
    places = ("--store", url, "--meta", f"rocksdb://{tmp_path}/meta")
    with NodeProcess(tmp_path / "data", wal="object", places=places) as node:
        with Admin(node.server) as admin:
            admin.create_topic("logs", 2)
        for _ in range(3):
            produce(node.server, "logs", _values(300))
        expected = consumed(node.server, "logs", 2)
        planned = plan(server=node.server, subscribe="logs", readMode="store")
        assert planned.plan.service_records == 0
        assert rows(carry_out(planned)) == expected
    offline = read(store=url, meta=f"rocksdb://{tmp_path}/meta", subscribe="logs")
    assert rows(offline) == expected


def test_a_pin_is_renewed_until_it_is_taken_away(node: NodeProcess, new_topic: NewTopic) -> None:
    topic = new_topic(1)
    produce(node.server, topic, [(0, b"a")])
    planned = plan(server=node.server, subscribe=topic, pinTtlMs="3600000")
    pin_id = planned.place.pin_id
    assert pin_id is not None
    cluster = ServerCluster(node.server, "read_committed")
    try:
        assert cluster.renew(pin_id)
        cluster.unpin(pin_id)
        assert not cluster.renew(pin_id)
        cluster.unpin(pin_id)
        # An id that is no pin's leaves all leases alone.
        assert not cluster.renew(1)
    finally:
        cluster.close()
    assert carry_out(planned).num_rows == 1


def test_a_task_renews_its_pin_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    renewed = threading.Event()
    asked: list[int | None] = []

    def renew_once(place: ReadPlace) -> None:
        asked.append(place.pin_id)
        renewed.set()

    monkeypatch.setattr(worker, "_renew_once", renew_once)
    place = ReadPlace("h:1", None, "", False, "read_committed", True, True, 7, 600_000, 0)
    with worker.worker().keeping(place):
        # Planned long ago: at once, not after a third of the time.
        assert renewed.wait(60)
    assert asked == [7]


def test_staged_batches_once_they_are_attached(node: NodeProcess, new_topic: NewTopic) -> None:
    topic = new_topic()
    produce(node.server, topic, _values(20))
    with StagedWriter(node.server, f"writer of {topic}") as writer:
        batches = {
            (topic, n): encode_values([b"staged %d" % n] * 3, timestamp_ms=5).data for n in range(2)
        }
        staged = writer.stage("attempt-1", batches)
        assert rows(read(server=node.server, subscribe=topic)) == consumed(node.server, topic, 2)
        writer.commit(1, staged)
    produce(node.server, topic, _values(20))
    expected = consumed(node.server, topic, 2)
    assert len(expected) == 46
    planned = plan(server=node.server, subscribe=topic, readMode="store")
    assert planned.plan.service_records == 0
    (task,) = planned.plan.tasks
    assert len(task.objects.placements) == 1
    assert rows(carry_out(planned)) == expected
    # The object died between the look at ranges and that at objects. Its own offsets are others.
    task.objects.placements.clear()
    with pytest.raises(DataLost, match="run the query again"):
        carry_out(planned)
    assert rows(carry_out(_as_auto(planned))) == expected


def _as_auto(planned: Planned) -> Planned:
    return replace(planned, place=replace(planned.place, is_store_needed=False))


def test_times_of_staged_records_at_rest(tmp_path: Path) -> None:
    later_ms = int(time.time() * 1000) + 60_000
    with NodeProcess(tmp_path / "data") as node:
        with Admin(node.server) as admin:
            admin.create_topic("logs", 1)
        produce(node.server, "logs", [(0, b"before")] * 20)
        with StagedWriter(node.server, "writer") as writer:
            batch = encode_values([b"staged"] * 3, timestamp_ms=later_ms).data
            writer.commit(0, writer.stage("attempt", {("logs", 0): batch}))
        start = str(later_ms - 1)
        expected = rows(read(server=node.server, subscribe="logs", startingTimestamp=start))
    assert [row[2] for row in expected] == [20, 21, 22]
    offline = {
        "store": f"local://{tmp_path}/data/objects",
        "meta": f"rocksdb://{tmp_path}/data/meta",
    }
    assert rows(read(**offline, subscribe="logs", startingTimestamp=start)) == expected


def test_a_pin_keeps_replaced_objects(tmp_path: Path) -> None:
    quick = {
        "engine.compaction.compaction_interval_ms": 50,
        "engine.compaction.small_objects_min": 2,
        "engine.collector.deletion_delay_ms": 1,
        "engine.collector.collect_interval_ms": 50,
        "engine.metadata.checkpoint_interval_ms": 50,
    }
    arguments = [word for name, value in quick.items() for word in ("--set", f"{name}={value}")]
    data = tmp_path / "data"
    with NodeProcess(data, wal="object", arguments=tuple(arguments)) as node:
        base = {"server": node.server, "subscribe": "logs", "readMode": "store"}
        with Admin(node.server) as admin:
            admin.create_topic("logs", 2)
        produce(node.server, "logs", _values(50))
        planned = plan(**base)
        files = _files(planned)
        for _ in range(6):
            produce(node.server, "logs", _values(50))
        expected = consumed(node.server, "logs", 2)
        with closing(ServerCluster(node.server, "read_committed")) as cluster:
            _until(lambda: not files & _files_now(cluster, base))
        # Replaced, and there: the pin holds them. Then it goes, and they go.
        assert rows(carry_out(planned)) == [row for row in expected if row[2] < 25]
        # Time for the collector, which looks every 50 ms.
        for _ in range(20):
            produce(node.server, "logs", _values(2))
        assert all((data / "objects" / name).exists() for name in files)
        with closing(ServerCluster(node.server, "read_committed")) as cluster:
            _unpin(cluster, planned)
        _until(lambda: not any((data / "objects" / name).exists() for name in files))
        with pytest.raises(DataLost, match="pinTtlMs"):
            carry_out(planned)
        planned = replace(planned, place=replace(planned.place, is_store_needed=False))
        assert len(carry_out(planned)) == 50


def _files(planned: Planned) -> set[str]:
    return {data_key(object_id) for task in planned.plan.tasks for object_id in task.objects.ids}


def _files_now(cluster: ServerCluster, options: dict[str, str]) -> set[str]:
    planned = plan(**options)
    _unpin(cluster, planned)
    return _files(planned)


def _unpin(cluster: ServerCluster, planned: Planned) -> None:
    assert planned.place.pin_id is not None
    cluster.unpin(planned.place.pin_id)


def _until(holds: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + 150
    while not holds():
        assert time.monotonic() < ends_at


def test_a_topic_that_is_made_anew_between_planning_and_reading(
    node: NodeProcess, new_topic: NewTopic
) -> None:
    """A plan for objects reads those of the old one; none gives records of both."""
    topic = new_topic(1)
    produce(node.server, topic, [(0, b"old %d" % n) for n in range(10)])
    expected = consumed(node.server, topic, 1)
    base = {"server": node.server, "subscribe": topic}
    stored = plan(**base)
    fetched = plan(**base, readMode="service")
    allowed = plan(**base, readMode="service", failOnDataLoss="false")
    for is_anew in (False, True):
        with Admin(node.server) as admin:
            admin.delete_topic(topic) if not is_anew else admin.create_topic(topic, 1)
        if is_anew:
            produce(node.server, topic, [(0, b"new %d" % n) for n in range(20)])
        assert rows(carry_out(stored)) == expected
        # What had to be fetched instead is not taken from the new one either.
        for planned in (fetched, _with_another_object(stored)):
            with pytest.raises(DataLost, match="deleted and recreated"):
                carry_out(planned)
        assert carry_out(allowed).num_rows == 0
    assert read(**base).num_rows == 20


def test_an_object_that_goes_between_its_index_and_its_blocks(
    node: NodeProcess, new_topic: NewTopic
) -> None:
    topic = new_topic(1)
    # Larger than what is read whole, in several blocks.
    for _ in range(2):
        produce(node.server, topic, [(0, b"%d" % n * 40_000) for n in range(60)], linger_ms=200)
    expected = consumed(node.server, topic, 1)
    planned = plan(server=node.server, subscribe=topic)
    (task,) = planned.plan.tasks
    store = worker.worker().store(planned.place.store_url or "", planned.place.cluster_id)
    items: list[Chunk | ServicePiece] = list(
        PieceReader(worker.worker(), _Forgetful(store), task).chunks()  # type: ignore[arg-type]
    )
    assert any(isinstance(item, ServicePiece) for item in items)
    starts = [item.start for item in items if isinstance(item, ServicePiece)]
    assert starts == sorted(starts)
    pieces = [item for item in items if isinstance(item, ServicePiece)]
    covered = {n for item in pieces for n in range(item.start, item.end)}
    covered |= {n for item in items if isinstance(item, Chunk) for n in range(item.start, item.end)}
    assert covered == {row[2] for row in expected}


class _Forgetful:
    """A store in which blocks are gone, and indexes are not."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    async def get(self, key: str, start: int = 0, length: int | None = None) -> Buffer:
        data = await self._store.get(key, start, length)
        if bytes(data[:4]) == b"SLBK":
            raise ObjectNotFound(f"{key} is gone", object_key=key)
        return data


def test_a_reader_that_is_left_early(node: NodeProcess, new_topic: NewTopic) -> None:
    topic = new_topic(1)
    for _ in range(4):
        produce(node.server, topic, _values(50, 1))
    planned = plan(server=node.server, subscribe=topic)
    (task,) = planned.plan.tasks
    batches = read_task(task, planned.place, SCHEMA)
    assert isinstance(batches, Generator)
    next(batches)
    batches.close()
    assert carry_out(planned).num_rows == 200


def test_a_large_record_batch_is_not_copied_for_a_small_one() -> None:
    def rows(count: int) -> pa.RecordBatch:
        return pa.record_batch({"offset": pa.array(range(count), pa.int64())})

    maker, large = BatchMaker(rows(0).schema), rows(ROWS_ENOUGH)
    joined = list(maker.together([rows(3), large, rows(2), rows(4)]))
    assert [batch.num_rows for batch in joined] == [3, ROWS_ENOUGH, 6]
    assert joined[1] is large
