"""Bytes of keys, records and checkpoint files: golden bytes, round trips, damage."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlog.errors import Corrupt, InvalidName, UnsupportedVersion
from streamlog.format.checkpoint import blocks as checkpoint_blocks
from streamlog.format.checkpoint import state as checkpoint_state
from streamlog.format.checkpoint import tail as checkpoint_tail
from streamlog.format.checkpoint.blocks import ObjectEntry, RangeGroup
from streamlog.format.checkpoint.state import (
    CheckpointState,
    DeadTable,
    StagingRows,
    StreamTable,
)
from streamlog.format.checkpoint.tail import CheckpointTail, ObjectBlockIndex, RangeBlockIndex
from streamlog.format.records import body as record_body
from streamlog.format.records import commit as commit_record
from streamlog.format.records import compaction as compaction_record
from streamlog.format.records import record as any_record
from streamlog.format.records.commit import (
    CommitRecord,
    Create,
    ObjectRows,
    RecordEntry,
    StreamAt,
    Token,
    Trim,
)
from streamlog.format.records.compaction import CompactionRecord, OutputRows
from streamlog.format.records.staged_entries import Attach, Stage, Unstage, WriterRow
from streamlog.format.rows import ObjectRow, Placement, Placements
from streamlog.format.sealed import seal
from streamlog.metadata.interface import Recovery, StreamEpoch, Tenure
from streamlog.metadata.keys import (
    checkpoint,
    counter,
    fence,
    head,
    id_block,
    late_deletes,
    lease,
    lineage,
    node,
    pin,
    recovery,
    transfer,
)
from streamlog.metadata.keys import record as record_key
from streamlog.metadata.keys.checkpoint import CheckpointPointer, FileRef, TenureMark
from streamlog.metadata.keys.fence import Fence
from streamlog.metadata.keys.node import NodeEntry
from streamlog.metadata.keys.pin import Pin
from streamlog.metadata.keys.space import number_in, prefix_of, tenure_in
from streamlog.metadata.keys.transfer import TransferRecord
from streamlog.objectstore.cluster.guard import Lineage

GOLDEN = Path(__file__).parents[2] / "golden"
T = Tenure(7, 9)
PREFIX = prefix_of("c-1")
U64 = st.integers(0, (1 << 64) - 1)
U32 = st.integers(0, (1 << 32) - 1)


def rows(object_id: int, streams: list[int], counts: list[int]) -> ObjectRows:
    return ObjectRows(
        object_id, 1 << 20, 1 << 19, 4096, 0xABCD, 0, array("Q", streams), array("I", counts)
    )


def output(object_id: int, *given: tuple[int, int, int]) -> OutputRows:
    """Rows as (stream, start, count)."""
    streams, starts, counts = (array(t, [r[i] for r in given]) for i, t in enumerate("QQI"))
    return OutputRows(object_id, 1 << 20, 1 << 19, 4096, 0xABCD, 1, streams, starts, counts)


RECORD = CommitRecord(
    floor=0x0102030405060708,
    rows_crc32c=0x11223344,
    entries=(
        RecordEntry(
            creates=(Create(65536, 1, (("topic", "läufe"), ("n", ""))),),
            objects=(rows(5, [3, 3, 1 << 33], [1, 2, (1 << 32) - 1]),),
            tokens=(Token(3, 2, b"\x00tok"),),
        ),
        RecordEntry(trims=(Trim(3, 2, 9),), closes=(StreamAt(3, 2),), destroys=(StreamAt(4, 1),)),
    ),
)
STAGE = Stage(
    ObjectRow(9, 1 << 20, 1 << 19, 4096, 0xABCD),
    "spark-läufe",
    "3/0",
    1_700_000_000_000,
    array("Q", [3, 1 << 33]),
    array("I", [5, (1 << 32) - 1]),
)
STAGED_RECORD = CommitRecord(
    floor=1,
    rows_crc32c=0x11223344,
    entries=(
        RecordEntry(stages=(STAGE,)),
        RecordEntry(
            attaches=(
                Attach(
                    "w",
                    1 << 40,
                    1_700_000_000_000,
                    7,
                    array("Q", [9, 4]),
                    array("Q", [3, 5]),
                    array("I", [7, (1 << 32) - 1]),
                ),
            ),
            unstages=(Unstage(8, array("Q", [10]), (("w", 3), ("ä", 0))),),
        ),
    ),
)
GROUPS = [
    RangeGroup(3, 10, array("I", [1, 2]), array("Q", [5, 1 << 40])),
    RangeGroup(4, 0, array("I", [7]), array("Q", [5])),
]
OBJECTS = [ObjectEntry(5, 100, 90, 10, 0xFFFF, 2, 0), ObjectEntry(6, 1 << 40, 1, 2, 3, 0, 1)]
STATE = CheckpointState(
    StreamTable(
        array("Q", [3, 4]),
        array("I", [2, 1]),
        array("I", [0, 1]),
        array("Q", [10, 0]),
        array("Q", [13, 7]),
        bytes([1, 2]),
        {1: (b"token", (("a", "b"),))},
        [(7, 9), (8, 1)],
    ),
    DeadTable(array("Q", [9]), array("Q", [1_700_000_000_000]), array("Q", [55])),
    array("Q", [2]),
    3,
    2,
    9,
    [array("Q", [4, 5, 1 << 40]), array("Q"), array("Q", [7])],
)
STAGED_STATE = CheckpointState(
    StreamTable(holder_names=[]),
    DeadTable(),
    array("Q"),
    0,
    0,
    compaction_inputs=[],
    staging=StagingRows(
        [STAGE],
        [WriterRow("w", 3, 99, array("Q", [3]), array("Q", [10]), array("Q", [15]))],
        [(5, Placements.of((Placement(3, 10, 2, 7), Placement(4, 1 << 40, 1))))],
    ),
)
COMPACTION = CompactionRecord(
    floor=0x0102030405060708,
    counter=3,
    inputs=array("Q", [5, 6, 1 << 40]),
    outputs=(
        output(1 << 41, (3, 10, 5), (3, 20, 1), (1 << 33, 1 << 50, (1 << 32) - 1)),
        output(1 << 42, (3, 15, 5)),
        output(1 << 43),
    ),
)
TAIL = CheckpointTail(
    RangeBlockIndex(array("Q", [3]), array("Q", [10]), array("Q", [8, 100])),
    ObjectBlockIndex(array("Q", [5]), array("Q", [100, 190])),
    3,
    2,
)
CHECKPOINT = CheckpointPointer(
    77, {T: TenureMark(4, 1, 99)}, FileRef(T, 2, 500, 400, 0xAA), FileRef(T, 1, 300, 200, 0xBB)
)
VALUES: dict[str, tuple[object, Callable[..., bytes], Callable[[bytes], object]]] = {
    "fence": (Fence(False, 3, True, True, 64, 1_700_000_000_000), fence.encode, fence.decode),
    "head": (12, head.encode, head.decode),
    "move_list": (
        TransferRecord(T, bytes(range(16)), [StreamEpoch(3, 4), StreamEpoch(1 << 40, 2)]),
        transfer.encode,
        transfer.decode,
    ),
    "move_all": (TransferRecord(T, bytes(16), None), transfer.encode, transfer.decode),
    "checkpoint": (CHECKPOINT, checkpoint.encode, checkpoint.decode),
    "node": (NodeEntry(9, True, 64, "host:1", "rack-ä"), node.encode, node.decode),
    "counter": (5, id_block.encode_counter, id_block.decode_counter),
    "compactions": (7, counter.encode, counter.decode),
    "owner": (T, id_block.encode_owner, id_block.decode_owner),
    "pin": (Pin(44, "spark job"), pin.encode, pin.decode),
    "recovery": (
        Recovery(True, 1_700_000_000_000, 1 << 33, 2003, 1027 << 20),
        recovery.encode,
        recovery.decode,
    ),
    "lineage": (Lineage(3, bytes(range(16)).hex()), lineage.encode, lineage.decode),
    "late": ((1 << 20, 7 << 20 | 5), late_deletes.encode, late_deletes.decode),
    "record": (RECORD, commit_record.encode, commit_record.decode),
    "staged_record": (STAGED_RECORD, commit_record.encode, commit_record.decode),
    "staged_state": (
        STAGED_STATE,
        checkpoint_state.encode_state,
        checkpoint_state.decode_state,
    ),
    "compaction": (COMPACTION, compaction_record.encode, compaction_record.decode),
    "range_block": (
        GROUPS,
        checkpoint_blocks.encode_ranges,
        lambda data: checkpoint_blocks.decode_ranges(data),
    ),
    "object_block": (
        OBJECTS,
        checkpoint_blocks.encode_objects,
        lambda data: checkpoint_blocks.decode_objects(data).rows(),
    ),
    "state": (STATE, checkpoint_state.encode_state, checkpoint_state.decode_state),
    "tail": (
        TAIL,
        checkpoint_tail.encode_tail,
        lambda data: checkpoint_tail.decode_tail(data, "f", 0),
    ),
}
SEALED = [
    "move_list",
    "move_all",
    "checkpoint",
    "record",
    "staged_record",
    "compaction",
    "range_block",
    "object_block",
    "tail",
]
"""Formats in which a CRC covers every byte."""


@pytest.mark.parametrize("name", VALUES)
def test_golden_bytes(name: str) -> None:
    value, encode, decode = VALUES[name]
    golden = (GOLDEN / f"metadata_{name}_v1.bin").read_bytes()
    assert decode(golden) == value
    # The bytes of zstd may change with its version; the content may not.
    if name != "move_list":
        assert encode(value) == golden


def test_a_compressed_record_stays_readable() -> None:
    golden = (GOLDEN / "metadata_record_zstd_v1.bin").read_bytes()
    expected = rows(1, list(range(1000, 3000, 2)), [n % 7 + 1 for n in range(1000)])
    assert golden[2] == record_body.ZSTD
    assert commit_record.decode(golden) == CommitRecord(3, 4, (RecordEntry(objects=(expected,)),))


@pytest.mark.parametrize("name", SEALED)
def test_damage_is_corrupt(name: str) -> None:
    value, encode, decode = VALUES[name]
    data = encode(value)
    for size in range(len(data)):
        with pytest.raises(Corrupt):
            decode(data[:size])
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Corrupt):
            decode(bytes(flipped))


@pytest.mark.parametrize(
    "name",
    [
        "move_all",
        "checkpoint",
        "record",
        "compaction",
        "fence",
        "node",
        "pin",
        "late",
        "recovery",
        "lineage",
    ],
)
def test_a_newer_version_is_refused(name: str) -> None:
    value, encode, decode = VALUES[name]
    data = encode(value)
    newer = bytes([2]) + data[1:]
    if name in SEALED:
        newer = seal(newer[:-4])
    with pytest.raises(UnsupportedVersion, match="upgrade"):
        decode(newer)


@pytest.mark.parametrize(
    "name", ["fence", "head", "node", "counter", "compactions", "owner", "lineage"]
)
def test_short_values_are_corrupt(name: str) -> None:
    value, encode, decode = VALUES[name]
    data = encode(value)
    for size in range(len(data)):
        with pytest.raises(Corrupt):
            decode(data[:size])


def test_a_newer_state_is_refused() -> None:
    newer = bytes([checkpoint_state.STAGING_VERSION + 1]) + checkpoint_state.encode_state(STATE)[1:]
    with pytest.raises(UnsupportedVersion, match="upgrade"):
        checkpoint_state.decode_state(newer)


def test_reserved_kinds_and_sections_need_a_newer_version() -> None:
    data = bytearray(commit_record.encode(CommitRecord(0, 0, ()))[:-4])
    data[1] = commit_record.COMPACTION
    with pytest.raises(UnsupportedVersion, match="kind 2"):
        commit_record.decode(seal(bytes(data)))
    body = commit_record.U32.pack(1) + b"\x01" + commit_record.SECTION.pack(7, 0, 0)
    header = commit_record.HEADER.pack(1, 1, 0, 0, len(body), 0, 0)
    with pytest.raises(UnsupportedVersion, match="section 7"):
        commit_record.decode(seal(header + body))


entries = st.builds(
    RecordEntry,
    creates=st.lists(
        st.builds(
            Create,
            U64,
            U32,
            st.lists(st.tuples(st.text(max_size=8), st.text(max_size=8)), max_size=3).map(tuple),
        ),
        max_size=3,
    ).map(tuple),
    objects=st.lists(
        st.lists(st.tuples(U64, U32), min_size=1, max_size=8).flatmap(
            lambda pairs: st.builds(
                lambda object_id: rows(
                    object_id, sorted(s for s, _ in pairs), [c for _, c in pairs]
                ),
                U64,
            )
        ),
        max_size=3,
    ).map(tuple),
    tokens=st.lists(st.builds(Token, U64, U32, st.binary(max_size=40)), max_size=3).map(tuple),
    trims=st.lists(st.builds(Trim, U64, U32, U64), max_size=3).map(tuple),
    closes=st.lists(st.builds(StreamAt, U64, U32), max_size=3).map(tuple),
    destroys=st.lists(st.builds(StreamAt, U64, U32), max_size=3).map(tuple),
)
names = st.text(max_size=8)
ids = st.lists(U64, max_size=6).map(lambda values: array("Q", values))
staged_entries = st.builds(
    RecordEntry,
    stages=st.lists(
        st.builds(
            lambda *fields, rows: Stage(  # type: ignore[call-arg]
                ObjectRow(*fields[:2], 3, 4, 5),  # type: ignore[call-arg]
                *fields[2:],
                array("Q", sorted(rows)),
                array("I", rows.values()),
            ),
            U64,
            U64,
            names,
            names,
            U64,
            rows=st.dictionaries(U64, st.integers(1, (1 << 32) - 1), min_size=1, max_size=6),
        ),
        max_size=3,
    ).map(tuple),
    attaches=st.lists(
        st.builds(
            lambda writer, epoch, at, objects, streams: Attach(
                writer, epoch, at, 7, objects, streams, array("I", [s & 0xFFFF for s in streams])
            ),
            names,
            U64,
            U64,
            ids,
            ids,
        ),
        max_size=2,
    ).map(tuple),
    unstages=st.lists(
        st.builds(Unstage, U64, ids, st.lists(st.tuples(names, U64), max_size=3).map(tuple)),
        max_size=2,
    ).map(tuple),
)
entries = st.one_of(entries, staged_entries)
records = st.builds(CommitRecord, U64, U32, st.lists(entries, max_size=3).map(tuple))


@settings(max_examples=80, deadline=None)
@given(records)
def test_records_round_trip(record: CommitRecord) -> None:
    value = commit_record.encode(record)
    assert commit_record.decode(value) == record
    assert sum(map(commit_record.size_bound_bytes, record.entries)) + 64 >= len(value) - 64


@settings(max_examples=150, deadline=None)
@given(records, st.data())
def test_damaged_records_are_corrupt(record: CommitRecord, data: st.DataObject) -> None:
    value = commit_record.encode(record)
    at = data.draw(st.integers(0, len(value) - 1))
    damaged = bytearray(value)
    damaged[at] ^= data.draw(st.integers(1, 255))
    for bad in (bytes(damaged), value[:at]):
        with pytest.raises(Corrupt):
            commit_record.decode(bad)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200))
def test_garbage_under_a_right_crc_is_corrupt(data: bytes) -> None:
    header = commit_record.HEADER.pack(1, 1, 0, 0, len(data), 0, 0)
    try:
        commit_record.decode(seal(header + data))
    except (Corrupt, UnsupportedVersion):
        return
    # Some short garbage is a valid body: it must then round-trip to the same meaning.
    record = commit_record.decode(seal(header + data))
    assert commit_record.decode(commit_record.encode(record)) == record


def test_a_record_is_read_by_its_kind() -> None:
    assert any_record.decode(commit_record.encode(RECORD)) == RECORD
    assert any_record.decode(compaction_record.encode(COMPACTION)) == COMPACTION
    with pytest.raises(UnsupportedVersion, match="kind 1"):
        compaction_record.decode(commit_record.encode(RECORD))
    unknown = bytearray(compaction_record.encode(COMPACTION)[:-4])
    unknown[1] = 3
    with pytest.raises(UnsupportedVersion, match="kind 3"):
        any_record.decode(seal(bytes(unknown)))
    for short in (b"", b"\x01", b"\x01\x02"):
        with pytest.raises(Corrupt):
            any_record.decode(short)


compactions = st.builds(
    CompactionRecord,
    U64,
    st.integers(1, (1 << 64) - 1),
    st.sets(U64, max_size=200).map(lambda ids: array("Q", sorted(ids))),
    st.lists(
        st.builds(
            lambda object_id, given: output(object_id, *sorted(given)),
            U64,
            st.lists(st.tuples(U64, U64, st.integers(1, (1 << 32) - 1)), max_size=60),
        ),
        max_size=3,
    ).map(tuple),
)


@settings(max_examples=80, deadline=None)
@given(compactions)
def test_compactions_round_trip(record: CompactionRecord) -> None:
    assert any_record.decode(compaction_record.encode(record)) == record


@settings(max_examples=150, deadline=None)
@given(compactions, st.data())
def test_damaged_compactions_are_corrupt(record: CompactionRecord, data: st.DataObject) -> None:
    value = compaction_record.encode(record)
    at = data.draw(st.integers(0, len(value) - 1))
    damaged = bytearray(value)
    damaged[at] ^= data.draw(st.integers(1, 255))
    for bad in (bytes(damaged), value[:at]):
        with pytest.raises(Corrupt):
            any_record.decode(bad)


@settings(max_examples=200, deadline=None)
@given(compactions, st.data())
def test_a_damaged_body_under_a_right_crc_is_corrupt(
    record: CompactionRecord, data: st.DataObject
) -> None:
    value = bytearray(compaction_record.encode(record)[:-4])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(2, len(value) - 1))
        value[at] ^= data.draw(st.integers(1, 255))
    damaged = seal(bytes(value[: data.draw(st.integers(0, len(value)))]) or b"\x01")
    try:
        decoded = any_record.decode(damaged)
    except (Corrupt, UnsupportedVersion):
        return
    assert any_record.decode(damaged) == decoded


def test_a_body_larger_than_its_bound_is_not_decompressed() -> None:
    packed = zstandard.compress(bytes(1 << 30), 1)
    for size in (1 << 20, 1 << 30, (1 << 32) - 1):
        header = compaction_record.HEADER.pack(1, 2, record_body.ZSTD, 0, size, 0, 1)
        with pytest.raises(Corrupt):
            any_record.decode(seal(header + packed))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(U64, U32, U64, U64, st.booleans(), st.binary(max_size=9)), max_size=40),
    st.lists(st.tuples(U64, U64, U64), max_size=9),
    st.lists(st.lists(U64, max_size=9), max_size=9),
)
def test_checkpoint_states_round_trip(
    streams: list[tuple[int, int, int, int, bool, bytes]],
    dead: list[tuple[int, int, int]],
    inputs: list[list[int]],
) -> None:
    table = StreamTable(
        array("Q", [s[0] for s in streams]),
        array("I", [s[1] for s in streams]),
        array("I", [0] * len(streams)),
        array("Q", [s[2] for s in streams]),
        array("Q", [s[3] for s in streams]),
        bytes(1 + s[4] for s in streams),
        {row: (s[5], ()) for row, s in enumerate(streams) if s[5]},
        [(1, 1)],
    )
    columns = [array("Q", [d[i] for d in dead]) for i in range(3)]
    compacted = [array("Q", one) for one in inputs]
    dead_table = DeadTable(*columns)
    state = CheckpointState(table, dead_table, array("Q", [1]), 2, 3, 4, compacted)
    assert checkpoint_state.decode_state(checkpoint_state.encode_state(state)) == state


def test_keys_sort_by_number_and_name_their_tenure() -> None:
    keys = [record_key.key(PREFIX, Tenure(1, 2), seq) for seq in (1, 255, 256, 1 << 40)]
    keys += [record_key.key(PREFIX, Tenure(1, 300), 0), record_key.key(PREFIX, Tenure(256, 1), 0)]
    assert keys == sorted(keys)
    for made in (fence, head, lease):
        assert tenure_in(made.key(PREFIX, T), PREFIX) == T
    assert tenure_in(transfer.key(PREFIX, T, 5), PREFIX) == T
    assert number_in(transfer.key(PREFIX, T, 5)) == 5
    # One watch range holds records, fences, heads, the checkpoint pointer, leases and transfers.
    watched = (PREFIX + b"c/", PREFIX + b"m0")
    for key in (*keys, fence.key(PREFIX, T), checkpoint.key(PREFIX), transfer.key(PREFIX, T, 1)):
        assert watched[0] <= key < watched[1]
    assert not watched[0] <= node.key(PREFIX, 1) < watched[1]


def test_checkpoint_file_names_hold_their_writer() -> None:
    assert checkpoint.tenure_of_name(CHECKPOINT.files[0].name) == T
    for name in ("checkpoint/7/1", "checkpoint/a.b/1", "objects/7.9/1", "checkpoint/7.9.1/1"):
        assert checkpoint.tenure_of_name(name) is None


@pytest.mark.parametrize("cluster", ["", "A", "a/b", "ä", "x" * 65, ".a"])
def test_cluster_ids_are_checked(cluster: str) -> None:
    with pytest.raises(InvalidName):
        prefix_of(cluster)
