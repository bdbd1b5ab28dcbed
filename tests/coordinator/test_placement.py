"""Where a transactional id belongs: Java's hash, Kafka's rule, the bounds of ids."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from streamlog.coordinator.placement import (
    ID_BYTES_MAX,
    check_id,
    java_abs,
    java_hash,
    partition_of,
)
from streamlog.errors import Invalid


@pytest.mark.parametrize(
    ("text", "hashed"),
    [
        # As Java's String.hashCode.
        ("", 0),
        ("a", 97),
        ("tx", 3716),
        ("polygenelubricants", -(1 << 31)),
        ("😀", 1772899),
        ("transactional-id-ü", 1051134094),
    ],
)
def test_the_hash_is_javas(text: str, hashed: int) -> None:
    assert java_hash(text) == hashed


def plainly(text: str) -> int:
    hashed = 0
    encoded = text.encode("utf-16-be", "surrogatepass")
    for high, low in zip(encoded[::2], encoded[1::2], strict=True):
        hashed = (31 * hashed + (high << 8 | low)) & 0xFFFFFFFF
    return hashed - (1 << 32) if hashed >> 31 else hashed


@given(some.text(), some.integers(1, 3000))
def test_a_long_id_has_the_hash_of_one_unit_after_the_other(text: str, times: int) -> None:
    assert java_hash(text * times) == plainly(text * times)


def test_the_least_number_has_no_absolute_value() -> None:
    assert java_abs(-(1 << 31)) == 0
    assert partition_of("polygenelubricants", 50) == 0
    assert partition_of("tx", 50) == 3716 % 50


@given(some.text(min_size=1), some.integers(1, 1000))
def test_every_id_has_a_partition(text: str, partitions: int) -> None:
    assert 0 <= partition_of(text, partitions) < partitions


def test_ids_have_kafkas_bounds() -> None:
    check_id("x" * ID_BYTES_MAX)
    for wrong in ("", "x" * (ID_BYTES_MAX + 1), "ü" * (ID_BYTES_MAX // 2 + 1), "\ud800"):
        with pytest.raises(Invalid):
            check_id(wrong)
