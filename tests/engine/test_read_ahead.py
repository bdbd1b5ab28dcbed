"""How far readers in sequence read ahead, by how many there are."""

from __future__ import annotations

from streamlog.engine.config import MIB, ReadConfig
from streamlog.engine.read_ahead import Reader, Readers
from streamlog.testing.clocks import ManualClock

CONFIG = ReadConfig(
    block_cache_bytes=64 * MIB,
    read_ahead_bytes_first=4 * MIB,
    read_ahead_bytes_max=32 * MIB,
    read_ahead_bytes_min=MIB,
)


def a_step_beside(others: int, *, is_at_end: bool) -> int:
    """The GET of a reader in sequence, beside others that have just moved."""
    clock = ManualClock()
    readers = Readers(CONFIG, clock)
    for stream_id in range(others):
        reader, is_sequential = readers.at(stream_id, 0)
        assert not is_sequential
        readers.step(reader)
        readers.moved(stream_id, reader, 10, is_at_end=is_at_end)
    clock.advance(1000)
    reader = Reader()
    readers.step(reader)
    return readers.step(reader)


def test_readers_share_the_cache() -> None:
    assert a_step_beside(0, is_at_end=False) == 32 * MIB
    assert a_step_beside(8, is_at_end=False) == 4 * MIB
    assert a_step_beside(200, is_at_end=False) == MIB


def test_a_reader_at_the_end_leaves_its_share_to_the_others() -> None:
    assert a_step_beside(200, is_at_end=True) == 32 * MIB
