"""What a Kafka 4.1.1 left is read as Kafka reads it, and written again byte for byte.

`tests/unified/golden.py` made the files.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path

import pytest

from streamlog.codec.batch import parse_header, scan
from streamlog.codec.records import Record, iterate
from streamlog.errors import StoreUnavailable, StreamlogError, UnsupportedVersion
from streamlog.format.kafka_files import offset_index, time_index
from streamlog.format.kafka_files.checkpoints import (
    decode_epochs,
    decode_offsets,
    encode_epochs,
    encode_offsets,
)
from streamlog.format.kafka_files.producer_snapshot import decode_snapshot, encode_snapshot
from streamlog.format.kafka_files.properties import (
    decode_meta_properties,
    decode_partition_metadata,
    encode_partition_metadata,
)
from streamlog.format.kafka_files.transaction_index import decode_aborted, encode_aborted
from streamlog.log.api.abstract_log import AbstractLog, Isolation
from streamlog.model.partition import TopicPartition
from streamlog.testing.clocks import ManualClock
from tests.kafka_clients.kafka_folder import log_in
from tests.unified.golden import CONFIGS, FOLDER, GOLDEN, TOPIC, TRIMMED

PARTITION = TopicPartition(TOPIC, 0)
END = 243
MADE_MS = 1_795_757_600_000
"""When Kafka ended. A day later its producers are forgotten."""
NAMES = sorted(path.name for path in (GOLDEN / FOLDER).iterdir())
BASES = [int(name[:20]) for name in NAMES if name.endswith(".log")]
INDEXES = [name for name in NAMES if name.endswith(("index", "timeindex", "txnindex"))]
SNAPSHOTS = [name for name in NAMES if name.endswith(".snapshot")]
LAST = f"{BASES[-1]:020d}"
REPLACED = [*INDEXES, *SNAPSHOTS, "leader-epoch-checkpoint"]
"""Files that are made anew from the batches where they are damaged."""
AT_TOP = (
    "recovery-point-offset-checkpoint",
    "replication-offset-checkpoint",
    "log-start-offset-checkpoint",
)

SMALL = (*AT_TOP, "meta.properties", ".kafka_cleanshutdown", f"{FOLDER}/partition.metadata")
IS_WHOLE = os.environ.get("STREAMLOG_TEST_DAMAGE") == "all"
"""Every bit is flipped, and every byte of a segment damaged: half an hour."""


def golden(name: str) -> bytes:
    return (GOLDEN / FOLDER / name).read_bytes()


@cache
def expected() -> list[tuple[int, int, bytes | None, bytes | None]]:
    """Every record from the log's start, by a walk through the segments' bytes alone."""
    found = [record for base in BASES for record in _records(golden(f"{base:020d}.log"))]
    return [record[:4] for record in found if record[0] >= TRIMMED]


def _records(data: bytes) -> list[Record]:
    return [one for batch in scan(data) for one in iterate(batch.view)]


async def stored(log: AbstractLog) -> list[tuple[int, int, bytes | None, bytes | None]]:
    position, found = log.log_start_offset, []
    while position < log.high_watermark:
        fetched = await log.fetch(position, 1000)
        for record in _records(b"".join(fetched.parts)):
            if record[0] >= position:
                found.append(record[:4])
        position = fetched.next_offset
    return found


@asynccontextmanager
async def opened(place: Path) -> AsyncIterator[AbstractLog]:
    async with log_in(place, PARTITION, CONFIGS, ManualClock(MADE_MS)) as log:
        yield log


@pytest.fixture
def place(tmp_path: Path) -> Path:
    shutil.copytree(GOLDEN, tmp_path / "data")
    return tmp_path / "data"


@pytest.mark.parametrize("name", AT_TOP)
def test_offset_checkpoints(name: str) -> None:
    data = (GOLDEN / name).read_bytes()
    offsets = decode_offsets(name, data)
    assert offsets[PARTITION] == (TRIMMED if name.startswith("log-start") else END)
    # Kafka keeps no order of the partitions.
    assert sorted(encode_offsets(offsets).split(b"\n")) == sorted(data.split(b"\n"))


def test_small_files_come_out_as_they_came_in() -> None:
    epochs = golden("leader-epoch-checkpoint")
    assert decode_epochs("epochs", epochs) == [(0, TRIMMED)]
    assert encode_epochs([(0, TRIMMED)]) == epochs
    metadata = golden("partition.metadata")
    assert encode_partition_metadata(decode_partition_metadata("metadata", metadata)) == metadata
    meta = decode_meta_properties("meta", (GOLDEN / "meta.properties").read_bytes())
    assert (meta.node_id, len(meta.cluster_id)) == (1, 22)


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_producer_snapshots(name: str) -> None:
    entries = decode_snapshot(name, golden(name))
    assert encode_snapshot(entries) == golden(name)
    assert {entry.producer_id for entry in entries} == {0, 1}


def test_index_entries() -> None:
    aborted = decode_aborted(golden(f"{LAST}.txnindex"))
    assert encode_aborted(aborted) == golden(f"{LAST}.txnindex")
    assert len(aborted) == 2
    offsets = golden(f"{LAST}.index")
    assert offset_index.sound_prefix(offsets, END, 1 << 20) == len(offsets) > 0
    times = golden(f"{LAST}.timeindex")
    assert time_index.sound_times(times, END) == len(times) > 0


def test_a_log_that_kafka_left_is_read_whole(place: Path) -> None:
    async def body() -> None:
        async with opened(place) as log:
            assert (log.log_start_offset, log.log_end_offset) == (TRIMMED, END)
            assert [one.base_offset for one in log.segments] == BASES
            assert await stored(log) == expected()
            for offset, at_ms, _, _ in expected():
                found = await log.offset_for_timestamp(at_ms, Isolation.READ_UNCOMMITTED)
                first = next(one[0] for one in expected() if one[1] >= at_ms)
                assert found.offset == first <= offset

    asyncio.run(body())


@pytest.mark.parametrize("trusted", ["nothing", "the recovery point"])
def test_indexes_and_snapshots_are_made_as_kafka_made_them(place: Path, trusted: str) -> None:
    """Where they are missing, by reading every batch, or those of segments behind the recovery
    point alone."""
    for name in (*INDEXES, *SNAPSHOTS):
        (place / FOLDER / name).unlink()
    if trusted == "nothing":
        (place / "recovery-point-offset-checkpoint").unlink()
    seen_ms = MADE_MS - 60_000
    for base in BASES:
        os.utime(place / FOLDER / f"{base:020d}.log", (seen_ms // 1000, seen_ms // 1000))

    async def body() -> None:
        async with opened(place):
            pass

    asyncio.run(body())
    for name in INDEXES:
        if name.endswith(".txnindex") and trusted != "nothing":
            continue  # It is optional: below the recovery point a missing one says that none is.
        assert (place / FOLDER / name).read_bytes() == golden(name), name
    made = decode_snapshot("made", (place / FOLDER / SNAPSHOTS[-1]).read_bytes())
    # When the batches came is not known: not after the last change of their file.
    assert {one.timestamp_ms for one in made} == {seen_ms}
    kafkas = decode_snapshot("golden", golden(SNAPSHOTS[-1]))
    assert made == [one._replace(timestamp_ms=seen_ms) for one in kafkas]


def _cuts(data: bytes) -> list[bytes]:
    return [data[:size] for size in range(len(data))]


def _flips(data: bytes) -> list[bytes]:
    """One bit of each byte, or all of them where everything is asked for."""
    choose = random.Random(len(data))
    flipped = []
    for at in range(len(data)):
        for bit in range(8) if IS_WHOLE else (choose.randrange(8),):
            damaged = bytearray(data)
            damaged[at] ^= 1 << bit
            flipped.append(bytes(damaged))
    return flipped


@pytest.mark.parametrize("damage", [_cuts, _flips])
@pytest.mark.parametrize("name", REPLACED)
def test_damage_to_what_is_made_from_the_batches_changes_no_record(
    place: Path, name: str, damage: Callable[[bytes], list[bytes]]
) -> None:
    async def body() -> None:
        target = place / FOLDER / name
        for data in damage(golden(name)):
            shutil.rmtree(place / FOLDER)
            shutil.copytree(GOLDEN / FOLDER, place / FOLDER)
            target.write_bytes(data)
            async with opened(place) as log:
                assert await stored(log) == expected()
                for offset in range(TRIMMED, END, 31):
                    fetched = await log.fetch(offset, 1)
                    assert parse_header(fetched.parts[0]).base_offset <= offset
                    assert fetched.next_offset > offset
                if name.endswith(".timeindex") and len(data) % 12 == 0 and damage is _cuts:
                    continue  # Whole entries that are missing are missed by nobody, as in Kafka.
                for at_ms in [one[1] for one in expected()][::31]:
                    found = await log.offset_for_timestamp(at_ms, Isolation.READ_UNCOMMITTED)
                    assert found.offset == next(one[0] for one in expected() if one[1] >= at_ms)

    asyncio.run(body())


@pytest.mark.parametrize("damage", [_cuts, _flips])
def test_a_damaged_segment_is_an_error_and_never_another_record(
    place: Path, damage: Callable[[bytes], list[bytes]]
) -> None:
    """All of it was durable: nothing may be cut off."""
    name = f"{LAST}.log"

    async def body() -> None:
        errors = 0
        for data in damage(golden(name))[:: 1 if IS_WHOLE else 23]:
            shutil.rmtree(place / FOLDER)
            shutil.copytree(GOLDEN / FOLDER, place / FOLDER)
            shutil.copy(GOLDEN / AT_TOP[0], place / AT_TOP[0])
            (place / FOLDER / name).write_bytes(data)
            try:
                async with opened(place) as log:
                    found = await stored(log)
            except StreamlogError:
                errors += 1
                assert (place / FOLDER / name).read_bytes() == data
                continue
            # Fields that no CRC covers, and nobody reads: the leader epoch.
            assert found == expected()
        assert errors

    asyncio.run(body())


@pytest.mark.parametrize("damage", [_cuts, _flips])
@pytest.mark.parametrize("name", SMALL)
def test_damage_to_a_small_file_shows_no_other_record(
    place: Path, name: str, damage: Callable[[bytes], list[bytes]]
) -> None:
    """A number that still is one may hide records, as it would from a Kafka; none is another."""
    everything = [record[:4] for base in BASES for record in _records(golden(f"{base:020d}.log"))]

    async def body() -> None:
        opens = refusals = 0
        for data in damage((GOLDEN / name).read_bytes()):
            shutil.rmtree(place)
            shutil.copytree(GOLDEN, place)
            (place / name).write_bytes(data)
            try:
                async with opened(place) as log:
                    found = await stored(log)
                    assert found == [one for one in everything if one[0] >= log.log_start_offset]
                    opens += 1
            except StreamlogError:
                refusals += 1
        assert opens + refusals == len(damage((GOLDEN / name).read_bytes()))

    asyncio.run(body())


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("meta.properties", b"version=1", b"version=2"),
        (f"{FOLDER}/partition.metadata", b"version: 0", b"version: 1"),
        ("recovery-point-offset-checkpoint", b"0\n", b"1\n"),
        (f"{FOLDER}/leader-epoch-checkpoint", b"0\n", b"1\n"),
        (f"{FOLDER}/{SNAPSHOTS[-1]}", b"\0\x01", b"\0\x02"),
    ],
)
def test_a_folder_of_a_newer_version_is_refused_or_made_anew(
    place: Path, name: str, old: bytes, new: bytes
) -> None:
    """What a later Kafka writes may mean something else: nothing is guessed, or changed by it."""
    sound = (place / name).read_bytes()
    assert sound.startswith(old) or old in sound
    newer = sound.replace(old, new, 1)
    (place / name).write_bytes(newer)

    async def body() -> None:
        if name.endswith((".snapshot", "-checkpoint")):
            async with opened(place) as log:
                assert await stored(log) == expected()
            return
        with pytest.raises((UnsupportedVersion, StoreUnavailable)):
            async with opened(place):
                pass
        assert (place / name).read_bytes() == newer

    asyncio.run(body())
