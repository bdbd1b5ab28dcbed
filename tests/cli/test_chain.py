from __future__ import annotations

import pytest

from streamlog.cli.records.chain import ChainReader, ChainWriter


def _written(count: int = 50) -> list[bytes]:
    return ChainWriter("t", 3, record_bytes=40, seed=1).values(count)


def _check(values: list[bytes]) -> ChainReader:
    reader = ChainReader("t", 3)
    reader.check(values)
    return reader


def test_a_whole_chain_holds() -> None:
    reader = _check(_written())
    assert reader.broken is None
    assert reader.count == 50


def test_a_lost_a_doubled_and_a_swapped_record_are_found() -> None:
    values = _written()
    lost = _check(values[:7] + values[8:]).broken
    assert lost is not None
    assert (lost.position, lost.fault) == (7, "records 7 to 7 are missing")
    doubled = _check(values[:8] + values[7:]).broken
    assert doubled is not None
    assert doubled.fault == "record 7 is there twice"
    assert _check([*values[:5], values[6], values[5], *values[7:]]).broken is not None


@pytest.mark.parametrize("at", [0, 8, 23, 24, 39])
def test_a_flipped_byte_is_found_by_the_record_after_it(at: int) -> None:
    values = _written()
    changed = bytearray(values[10])
    changed[at] ^= 1
    values[10] = bytes(changed)
    broken = _check(values).broken
    assert broken is not None
    assert broken.position in (10, 11)


def test_another_partitions_chain_is_not_taken() -> None:
    reader = ChainReader("t", 4)
    reader.check(_written())
    assert reader.broken is not None
    assert reader.broken.position == 0


def test_foreign_records_are_named() -> None:
    broken = _check([b"hello"]).broken
    assert broken is not None
    assert "5 bytes" in broken.fault
