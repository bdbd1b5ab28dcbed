"""Columns of unsigned integers as little-endian bytes, whatever the machine's own order is."""

from __future__ import annotations

import sys
from array import array
from typing import Literal

from streamlog.runtime.buffers import Buffer

assert array("I").itemsize == 4
assert array("Q").itemsize == 8

IS_LITTLE_ENDIAN = sys.byteorder == "little"


def to_le(column: array[int]) -> bytes:
    if not IS_LITTLE_ENDIAN:
        column = array(column.typecode, column)
        column.byteswap()
    return column.tobytes()


def from_le(typecode: Literal["B", "I", "Q"], data: Buffer) -> array[int]:
    """The column in `data`, whose length is a multiple of the item size."""
    column = array(typecode)
    column.frombytes(data)
    if not IS_LITTLE_ENDIAN:
        column.byteswap()
    return column


def to_planes(column: array[int]) -> bytes:
    """All lowest bytes, then all second ones, and so on: so small numbers compress far better."""
    data, size = to_le(column), column.itemsize
    return b"".join(data[plane::size] for plane in range(size))


def from_planes(typecode: Literal["I", "Q"], data: Buffer) -> array[int]:
    size = array(typecode).itemsize
    count = len(data) // size
    items = bytearray(count * size)
    for plane in range(size):
        items[plane::size] = data[plane * count : (plane + 1) * count]
    return from_le(typecode, items)
