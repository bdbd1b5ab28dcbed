"""Keys land where Kafka's own clients put them."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from streamlog.client.produce.partitioner import next_sticky, partition_for_key
from streamlog.codec.murmur2 import murmur2

# From Kafka's UtilsTest.testMurmur2.
VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("key", "expected"), VECTORS.items())
def test_murmur2_as_kafka_has_it(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected & 0xFFFFFFFF
    assert partition_for_key(key, 7) == (expected & 0x7FFFFFFF) % 7


def test_the_sticky_partition_changes_to_any_other_alike() -> None:
    choose = random.Random(1).randrange
    for current in range(4):
        counts = Counter(next_sticky(current, 4, choose) for _ in range(3000))
        assert set(counts) == {0, 1, 2, 3} - {current}
        assert min(counts.values()) > 800
    assert next_sticky(0, 1, choose) == 0
