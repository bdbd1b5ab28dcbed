"""What generated messages stand on: lengths, strings, blobs, tags, and the structures' base.

Bytes are big-endian. A variable-length value follows its length; in flexible versions the length is
an unsigned varint of length + 1 (0: null), before them an int16 (strings) or int32 (-1: null).

    uvarint   7 bits a byte, lowest first; the high bit says that another follows; 5 bytes at most
    tags      uvarint count, then (uvarint tag, uvarint size, size bytes) for each

Decoders read from a memoryview `data` at `at` and compare each length with the bytes that are left
before anything is allocated. `room` is how many elements a message may still have: an array of a
few bytes for each element would otherwise make objects of many times the frame's size.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct, error, pack
from typing import Any, ClassVar, TypeVar

from streamlog.errors import Invalid
from streamlog.runtime.buffers import Buffer

Records = Buffer | Sequence[Buffer]
"""A field of type `records` or `bytes`: decoded, one memoryview of the frame; to be encoded, one
buffer or several that stand one after the other."""
_Value = TypeVar("_Value")

ELEMENTS_MAX = 1 << 18
"""Array elements and unknown tags in one request. A node's partitions are fewer."""
RESPONSE_ELEMENTS_MAX = 1 << 24
"""The same for responses, which only tools and tests decode."""
STRING_BYTES_MAX = 0x7FFF
"""Kafka's bound for strings, also where the length is a varint."""
ERROR_TEXT_BYTES_MAX = 4096
"""Of an error message. What a client sent stands in some, and is as long as the client likes."""
UVARINT_BYTES_MAX = 5

ZERO_UUID = bytes(16)
SHORT = tuple(bytes((n + 1,)) for n in range(127))
"""Compact length of n < 127."""
SHORT_MAX = len(SHORT)

OUT_OF_BYTES = (error, IndexError, UnicodeDecodeError)
"""What reading past the end, and a string that is not UTF-8, raise within a decoder."""


class Malformed(Invalid):
    """Bytes are not a message of that API and version. Field: `message_name`."""


class Structure:
    """Base of messages and their structures: equal where all fields are, printable."""

    __slots__: ClassVar[tuple[str, ...]] = ()
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(
            _comparable(getattr(self, name)) == _comparable(getattr(other, name))
            for name in self.__slots__
        )

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={_shown(getattr(self, name))}" for name in self.__slots__)
        return f"{type(self).__name__}({fields})"


def _comparable(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        if value and all(isinstance(one, (bytes, bytearray, memoryview)) for one in value):
            return [bytes(one) for one in value]
        return list(value)
    return bytes(value) if isinstance(value, (bytearray, memoryview)) else value


def _shown(value: Any) -> str:
    if isinstance(value, (bytes, bytearray, memoryview)) and len(value) > 16:
        return f"<{len(value)} bytes>"
    return repr(value)


# ---- decoding


def malformed(message: str, reason: str) -> Malformed:
    return Malformed(f"{message} cannot be parsed: {reason}", message_name=message)


def out_of_bytes(message: str, cause: Exception) -> Malformed:
    if isinstance(cause, UnicodeDecodeError):
        return malformed(message, "a string is not UTF-8")
    return malformed(message, "the bytes end before the message does")


class Wrong(Exception):
    """A rule of the format is broken; the message's decoder makes `Malformed` of it."""


def longer(data: memoryview, at: int, low: int) -> tuple[int, int]:
    """The value and end of a uvarint whose first byte, before `at`, was `low` >= 128."""
    value = low & 127
    for shift in (7, 14, 21, 28):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise Wrong(f"a varint is longer than {UVARINT_BYTES_MAX} bytes")


def uvarint_at(data: memoryview, at: int) -> tuple[int, int]:
    low = data[at]
    return (low, at + 1) if low < 128 else longer(data, at + 1, low)


def text(data: memoryview, at: int, size: int) -> tuple[str, int]:
    """A string whose length was read already; null is refused."""
    end = at + size
    if size < 0:
        raise Wrong("a string is null that must not be")
    if end > len(data) or size > STRING_BYTES_MAX:
        raise Wrong(f"a string of {size} bytes does not fit")
    return str(data[at:end], "utf-8"), end


def text_or_null(data: memoryview, at: int, size: int) -> tuple[str | None, int]:
    return (None, at) if size == -1 else text(data, at, size)


def blob(data: memoryview, at: int, size: int) -> tuple[memoryview, int]:
    """Bytes whose length was read already, as a slice; null is refused."""
    end = at + size
    if size < 0:
        raise Wrong("bytes are null that must not be")
    if end > len(data):
        raise Wrong(f"{size} bytes do not fit")
    return data[at:end], end


def blob_or_null(data: memoryview, at: int, size: int) -> tuple[memoryview | None, int]:
    return (None, at) if size == -1 else blob(data, at, size)


def check_count(count: int, least: int, left: int, room: int) -> int:
    """What is left of `room` behind an array; `least` is the least size of an element in bytes."""
    if count < 0:
        raise Wrong("an array is null that must not be")
    if count * least > left:
        raise Wrong(f"a count claims {count} elements, but only {left} bytes follow")
    if count > room:
        raise Wrong("its arrays and tags have too many elements altogether")
    return room - count


def numbers(data: memoryview, at: int, count: int, code: str) -> list[Any]:
    """An array of fixed-width values; its size was checked."""
    return list(Struct(f">{count}{code}").unpack_from(data, at)) if count else []


def uuids(data: memoryview, at: int, count: int) -> list[bytes]:
    return [bytes(data[one : one + 16]) for one in range(at, at + 16 * count, 16)]


def skip_tags(data: memoryview, at: int, count: int, room: int) -> tuple[int, int]:
    """Passes over `count` tagged fields; their end and what is left of `room`."""
    if count > 127:
        count, at = longer(data, at, count)
    room = check_count(count, 2, len(data) - at, room)
    for _ in range(count):
        _, at, end = tag_at(data, at)
        at = end
    return at, room


def tag_at(data: memoryview, at: int) -> tuple[int, int, int]:
    """The tag, start and end of a tagged field."""
    tag, at = uvarint_at(data, at)
    size, at = uvarint_at(data, at)
    if at + size > len(data):
        raise Wrong(f"a tagged field of {size} bytes does not fit")
    return tag, at, at + size


def check_tag_end(at: int, end: int) -> None:
    if at != end:
        raise Wrong("a tagged field has another size than it says")


# ---- encoding


def required(value: _Value | None, field: str) -> _Value:
    if value is None:
        raise ValueError(f"{field} is null, which the message's version cannot say")
    return value


def uvarint(value: int) -> bytes:
    if value < 1 << 7:
        return bytes((value,))
    if value < 1 << 14:
        return bytes((value & 127 | 128, value >> 7))
    if value < 1 << 21:
        return bytes((value & 127 | 128, value >> 7 & 127 | 128, value >> 14))
    encoded = bytearray()
    while value >= 128:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


_short = Struct(">h").pack
_int = Struct(">i").pack


def _string_too_long(size: int) -> ValueError:
    return ValueError(f"a string of {size} bytes is above Kafka's {STRING_BYTES_MAX}")


def compact_text(value: str) -> bytes:
    encoded = value.encode()
    size = len(encoded)
    if size < SHORT_MAX:
        return SHORT[size] + encoded
    if size > STRING_BYTES_MAX:
        raise _string_too_long(size)
    return uvarint(size + 1) + encoded


def compact_text_or_null(value: str | None) -> bytes:
    return b"\0" if value is None else compact_text(value)


def plain_text(value: str) -> bytes:
    encoded = value.encode()
    if len(encoded) > STRING_BYTES_MAX:
        raise _string_too_long(len(encoded))
    return _short(len(encoded)) + encoded


def plain_text_or_null(value: str | None) -> bytes:
    return b"\xff\xff" if value is None else plain_text(value)


def error_text(value: str | None) -> str | None:
    """Cut to ERROR_TEXT_BYTES_MAX; an ellipsis marks a cut. Always UTF-8."""
    if value is None or (len(value) <= ERROR_TEXT_BYTES_MAX and value.isascii()):
        return value
    encoded = value.encode("utf-8", "backslashreplace")
    if len(encoded) <= ERROR_TEXT_BYTES_MAX:
        return encoded.decode()
    return encoded[: ERROR_TEXT_BYTES_MAX - 3].decode("utf-8", "ignore") + "…"


def packed(values: Sequence[Any], code: str) -> bytes:
    """An array of fixed-width values without its length."""
    if len(values) == 1:
        return pack(">" + code, values[0])
    return pack(f">{len(values)}{code}", *values)


def tagged(tag: int, pieces: list[bytes]) -> bytes:
    body = b"".join(pieces)
    return uvarint(tag) + uvarint(len(body)) + body


def add_blob(
    done: list[Buffer], pieces: list[bytes], value: Buffer | Sequence[Buffer], is_compact: bool
) -> None:
    """Adds length and bytes: what was gathered in `pieces` becomes one piece before them."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        size = len(value)
        pieces.append(uvarint(size + 1) if is_compact else _int(size))
        if size:
            done.append(b"".join(pieces))
            pieces.clear()
            done.append(value)
        return
    size = sum(map(len, value))
    pieces.append(uvarint(size + 1) if is_compact else _int(size))
    if size:
        done.append(b"".join(pieces))
        pieces.clear()
        done.extend(part for part in value if len(part))
