"""Damage with the shape of binary formats in mind."""

from __future__ import annotations

import struct

from hypothesis import strategies as st

_NUMBERS = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 1 << 20, 1 << 30, (1 << 31) - 1, 1 << 31)
_LARGE = ((1 << 32) - 1, 1 << 32, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
_FORMS = ("<B", "<H", "<I", "<Q", ">H", ">I", ">Q")


@st.composite
def damaged(draw: st.DrawFn, samples: tuple[bytes, ...]) -> bytes:
    """One sample after one to four changes."""
    data = draw(st.sampled_from(samples))
    for _ in range(draw(st.integers(1, 4))):
        data = _change(draw, data, samples)
    return data


def _change(draw: st.DrawFn, data: bytes, samples: tuple[bytes, ...]) -> bytes:
    kind = draw(
        st.sampled_from(("cut", "flip", "number", "number", "splice", "twice", "out", "in", "add"))
    )
    at = draw(st.integers(0, len(data)))
    if kind == "cut":
        return data[:at]
    if kind == "flip" and data:
        changed = bytearray(data)
        changed[at % len(data)] ^= draw(st.integers(1, 255))
        return bytes(changed)
    if kind == "number":
        return _number(draw, data, at)
    other = draw(st.sampled_from(samples))
    first = draw(st.integers(0, len(other)))
    piece = other[first : first + draw(st.integers(0, 64))]
    if kind == "splice":
        return data[:at] + piece + data[at + len(piece) :]
    if kind == "twice":
        return data[:at] + data[at : at + 64] * draw(st.integers(2, 5)) + data[at + 64 :]
    if kind == "out":
        return data[:at] + data[at + draw(st.integers(1, 16)) :]
    if kind == "in":
        return data[:at] + piece + data[at:]
    return data + draw(st.binary(max_size=40))


def _number(draw: st.DrawFn, data: bytes, at: int) -> bytes:
    """A field that a length, a count or a position could be."""
    form = struct.Struct(draw(st.sampled_from(_FORMS)))
    number = draw(st.sampled_from(_NUMBERS + _LARGE) | st.integers(0, 2 * len(data) + 16))
    packed = form.pack(number & ((1 << 8 * form.size) - 1))
    return data[:at] + packed + data[at + form.size :]
