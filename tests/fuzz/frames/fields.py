"""Where the fields of a request lie in its bytes, by the shapes that the generator writes.

It is a reader of its own, slow and plain: it runs once for each request of the corpus, and says
which bytes a change has to replace to be a change of that field and of nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from streamlog.kafka.protocol.apis import APIS, Api
from tests.kafka.shapes import Shape, is_in

WIDTHS = {
    "int8": 1,
    "bool": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "float64": 8,
    "uuid": 16,
}
NEVER = (1, 0)
"""Versions in which an element is nullable: what may be null is the array."""
CORRELATION_ID_AT = 4
CLIENT_ID_AT = 8


class Place(NamedTuple):
    """One field, or one element of an array.

    `kind`: places of one kind may take each other's bytes. `start` to `head` is the length or
    count in front of it, `head` to `end` the rest.
    """

    kind: str
    start: int
    head: int
    end: int
    name: str = ""

    @property
    def has_length(self) -> bool:
        return self.head > self.start and not self.kind.startswith("tags")


def places(shape: Shape, version: int, frame: bytes) -> list[Place]:
    """Every field of a request that is as its API's shape says; bytes may follow it."""
    return list(_Walk(APIS[shape.key], shape, version, frame).request())


class _Walk:
    def __init__(self, api: Api, shape: Shape, version: int, frame: bytes) -> None:
        self._shape = shape
        self._version = version
        self._frame = frame
        self._is_flexible = version >= api.flexible
        self.at = 0

    def request(self) -> Iterator[Place]:
        yield Place("api", 0, 0, CORRELATION_ID_AT)
        self.at = CLIENT_ID_AT
        size = int.from_bytes(self._take(2), "big", signed=True)
        self._take(max(size, 0))
        yield Place("string16", CLIENT_ID_AT, CLIENT_ID_AT + 2, self.at, "client_id")
        if self._is_flexible:
            yield self._tags()
        yield from self._structure(self._shape.name)

    def _structure(self, name: str) -> Iterator[Place]:
        for field in self._shape.fields(name, self._version):
            if not is_in(field, "tagged", self._version):
                yield from self._array(field) if field.get("is_array") else self._one(field)
        if self._is_flexible:
            yield self._tags()

    def _array(self, field: dict[str, Any]) -> Iterator[Place]:
        start = self.at
        count = self._length(32)
        head = self.at
        inner: list[Place] = []
        element = {**field, "nullable": NEVER}
        for _ in range(max(count, 0)):
            begin = self.at
            inner += self._one(element)
            if field["type"] not in WIDTHS:
                inner.append(Place(f"element {field['type']}", begin, begin, self.at))
        form = "compact" if self._is_flexible else "32"
        yield Place(f"array{form} {field['type']}", start, head, self.at, field["name"])
        yield from inner

    def _one(self, field: dict[str, Any]) -> Iterator[Place]:
        kind, start = field["type"], self.at
        if kind in WIDTHS:
            self._take(WIDTHS[kind])
            yield Place(kind, start, start, self.at, field["name"])
        elif kind in ("string", "records", "bytes"):
            width = 16 if kind == "string" else 32
            size = self._length(width)
            head = self.at
            self._take(max(size, 0))
            form = "compact" if self._is_flexible else str(width)
            yield Place(f"{kind}{form}", start, head, self.at, field["name"])
        elif not is_in(field, "nullable", self._version) or self._is_there(self._take(1)):
            yield from self._structure(kind)

    @staticmethod
    def _is_there(marker: bytes) -> bool:
        """What stands before a structure that may be null."""
        return marker[0] < 128

    def _length(self, width: int) -> int:
        if self._is_flexible:
            return self._uvarint() - 1
        return int.from_bytes(self._take(width // 8), "big", signed=True)

    def _tags(self) -> Place:
        start = self.at
        count = self._uvarint()
        head = self.at
        for _ in range(count):
            self._uvarint()
            size = self._uvarint()
            self._take(size)
        return Place("tags", start, head, self.at)

    def _uvarint(self) -> int:
        value = shift = 0
        while True:
            byte = self._frame[self.at]
            self.at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7

    def _take(self, size: int) -> bytes:
        taken = self._frame[self.at : self.at + size]
        assert len(taken) == size
        self.at += size
        return taken
