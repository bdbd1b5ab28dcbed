"""Kafka's own test vectors (UtilsTest.testMurmur2) and partitions of Java's DefaultPartitioner."""

from __future__ import annotations

import pytest

from streamlog.codec.murmur2 import murmur2, partition_for_key

VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("key", "signed"), VECTORS.items())
def test_vectors(key, signed):
    assert murmur2(key) == signed & 0xFFFFFFFF
    assert murmur2(memoryview(key)) == signed & 0xFFFFFFFF


def test_partition_is_the_positive_hash_modulo():
    for key, signed in VECTORS.items():
        assert partition_for_key(key, 7) == (signed & 0x7FFFFFFF) % 7
    assert 0 <= partition_for_key(b"", 3) < 3
