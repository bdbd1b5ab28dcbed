"""Which partition has a transactional id: Kafka's rule, so that its tools find it, too. Pure.

abs(h) % n, where h is Java's String.hashCode: sum of unit × 31^(units behind it) over the UTF-16
code units, as a signed int32. The absolute value of -2^31 is 0.
"""

from __future__ import annotations

import sys
from array import array
from functools import lru_cache
from operator import mul

from streamlog.errors import Invalid

ID_BYTES_MAX = 0x7FFF
"""Kafka's bound for strings, in UTF-8."""
_REMEMBERED = 4096
_REMEMBERED_CHARACTERS = 128
"""Each call of a transaction asks for its partition, four of them in all; hashing takes 20 µs. What
is remembered is 1 MB at most for ids in Latin letters."""
_CHUNK = 1024
_POWERS = [pow(31, exponent, 1 << 32) for exponent in reversed(range(_CHUNK))]


def check_id(transactional_id: str) -> None:
    """Errors: Invalid."""
    if not transactional_id:
        raise Invalid("the transactional id is empty: give one, or none for a plain producer")
    try:
        size = len(transactional_id.encode())
    except UnicodeEncodeError:
        raise Invalid("the transactional id cannot be written as UTF-8") from None
    if size > ID_BYTES_MAX:
        raise Invalid(f"the transactional id has {size} bytes, more than {ID_BYTES_MAX}")


def partition_of(transactional_id: str, partitions: int) -> int:
    is_short = len(transactional_id) <= _REMEMBERED_CHARACTERS
    hashed = (_remembered_hash if is_short else java_hash)(transactional_id)
    return java_abs(hashed) % partitions


def java_hash(text: str) -> int:
    """Java's String.hashCode, a signed int32."""
    units = array("H", text.encode("utf-16-be", "surrogatepass"))
    if sys.byteorder == "little":
        units.byteswap()
    hashed = 0
    for start in range(0, len(units), _CHUNK):
        chunk = units[start : start + _CHUNK]
        powers = _POWERS[_CHUNK - len(chunk) :]
        hashed = (hashed * pow(31, len(chunk), 1 << 32) + sum(map(mul, chunk, powers))) % (1 << 32)
    return hashed - (1 << 32) if hashed >= 1 << 31 else hashed


_remembered_hash = lru_cache(_REMEMBERED)(java_hash)


def java_abs(number: int) -> int:
    """Kafka's Utils.abs."""
    return 0 if number == -(1 << 31) else abs(number)
