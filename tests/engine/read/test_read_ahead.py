"""How far readers in sequence read ahead, by how many there are."""

from __future__ import annotations

from streamlog.engine.config import MIB, ReadConfig
from streamlog.engine.read.object_scan import ObjectScans
from streamlog.engine.read.read_ahead import Reader, Readers
from streamlog.testing.clocks import ManualClock

CONFIG = ReadConfig(
    block_cache_bytes=64 * MIB,
    read_ahead_bytes_first=4 * MIB,
    read_ahead_bytes_max=32 * MIB,
    read_ahead_bytes_min=MIB,
)


def a_step_beside(others: int, *, is_at_end: bool) -> int:
    """Size of the GET of a reader in sequence, beside other active readers."""
    clock = ManualClock()
    readers = Readers(CONFIG, clock, ObjectScans(CONFIG, clock))
    for stream_id in range(others):
        for offset in (0, 10):
            reader, is_sequential = readers.at(stream_id, offset)
            assert is_sequential is (offset > 0)
            readers.step(reader)
            is_last = offset == 10
            readers.moved(stream_id, reader, offset, offset + 10, is_at_end=is_last and is_at_end)
    clock.advance(1000)
    reader = Reader()
    reader.began_at = 7, 0
    readers.step(reader)
    return readers.step(reader)


def test_readers_share_the_cache() -> None:
    assert a_step_beside(0, is_at_end=False) == 32 * MIB
    assert a_step_beside(8, is_at_end=False) == 4 * MIB
    assert a_step_beside(200, is_at_end=False) == MIB


def test_a_reader_at_the_end_has_no_share_of_the_cache() -> None:
    assert a_step_beside(200, is_at_end=True) == 32 * MIB


def test_a_reader_that_repeats_its_last_fetch_is_recognised() -> None:
    readers = Readers(CONFIG, ManualClock(), ObjectScans(CONFIG, ManualClock()))
    first, _ = readers.at(1, 0)
    readers.moved(1, first, 0, 10, is_at_end=False)
    # An answer was lost, or its last batch was not wanted.
    assert readers.at(1, 0) == (first, True)
    readers.moved(1, first, 0, 10, is_at_end=True)
    assert readers.at(1, 10) == (first, True)
    readers.moved(1, first, 10, 20, is_at_end=False)
    assert readers.at(1, 0)[1] is False
    assert readers.at(2, 10)[1] is False
    assert readers.at(1, 10) == (first, True)
    assert readers.at(1, 20)[1] is False


def test_a_reader_seen_once_has_no_share_of_the_cache() -> None:
    clock = ManualClock()
    readers = Readers(CONFIG, clock, ObjectScans(CONFIG, clock))
    for stream_id in range(200):
        reader, _ = readers.at(stream_id, 0)
        assert readers.step(reader) <= 4 * MIB
        readers.moved(stream_id, reader, 0, 10, is_at_end=False)
    clock.advance(1000)
    met, is_sequential = readers.at(0, 10)
    assert is_sequential
    readers.step(met)
    assert readers.step(met) == 32 * MIB
