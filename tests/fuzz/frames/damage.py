"""Changes a request, by a seed: one change that knows the fields, and sometimes one that does not.

What it may do to a request is the list `CHANGES`; each kind is counted by its name.
"""

from __future__ import annotations

import random
import struct
from collections import Counter
from collections.abc import Callable, Container, Sequence
from typing import NamedTuple, TypeVar

from streamlog.codec.batch import HEADER_BYTES, resealed
from streamlog.kafka.protocol.apis import APIS, ApiKey
from streamlog.kafka.protocol.primitives import uvarint
from tests.fuzz.frames.corpus import Corpus, Sample
from tests.fuzz.frames.fields import CORRELATION_ID_AT, Place

_T = TypeVar("_T")
NUMBERS = tuple(
    near
    for bits in (0, 1, 3, 7, 8, 14, 15, 16, 20, 24, 31, 32, 62, 63, 64)
    for near in ((1 << bits) - 2, (1 << bits) - 1, 1 << bits, (1 << bits) + 2)
)
"""Taken modulo the width of their field."""
SIZES = (
    *(0, 1, 9, 10, 1 << 20, 100 << 20, (100 << 20) + 1, (1 << 31) - 1),
    *(0x80000000, 0xFFFFFFFF, 0x47455420, 0x16030100),
)
"""Of a frame; the last two are how HTTP and TLS begin."""
WAITS = ("max_wait_ms", "timeout_ms")
TRIES = 8
LONG_WAIT_SHARE = 0.01
KEYS = [int(key) for key in APIS]
EACH_BATCH_FIELD = (
    *((0, 8), (8, 4), (12, 4), (16, 1), (21, 2), (23, 4), (27, 8), (35, 8), (43, 8)),
    *((51, 2), (53, 4), (57, 4)),
)
"""Place and width of each field of a batch's header, but for the checksum."""


class Request(NamedTuple):
    """What is sent. `is_valid`: a request as a client may send it; an answer is owed."""

    data: bytes
    change: str
    is_valid: bool
    api: int


class Damage:
    def __init__(self, corpus: Corpus, served: Container[int], seed: int) -> None:
        """`served`: the numbers of the APIs that the node has."""
        self.corpus = corpus
        self._served = served
        self.counts: Counter[str] = Counter()
        self.rng = random.Random(seed)
        self._correlation_id = 0
        self._changes: list[Callable[[Sample, bytearray], bytes | bytearray]] = []
        for change, weight in self._weights().items():
            self._changes += [change] * weight

    def _weights(self) -> dict[Callable[[Sample, bytearray], bytes | bytearray], int]:
        return {
            self.unchanged: 12,
            self.unknown_tag: 6,
            self.flipped: 12,
            self.number: 12,
            self.length: 10,
            self.elements: 6,
            self.wrong_tags: 4,
            self.field_of_another: 14,
            self.halves: 5,
            self.another_api: 5,
            self.cut: 5,
            self.grown: 4,
            self.batch: 8,
            self.size: 2,
        }

    def next(self) -> Request:
        """The next request, with its size."""
        sample = self._sample()
        change = self._one(self._changes)
        frame = bytearray(sample.frame)
        self._correlation_id = self._correlation_id + 1 & 0x7FFFFFFF
        struct.pack_into(">i", frame, CORRELATION_ID_AT, self._correlation_id)
        self._shorten_waits(sample, frame)
        name = change.__name__
        self.counts[name] += 1
        data = change(sample, frame)
        is_valid = name in ("unchanged", "unknown_tag") and sample.api in self._served
        if name == "size":
            return Request(bytes(data), name, is_valid, sample.api)
        if not is_valid and self.rng.random() < 0.1:
            data = self.flipped(sample, bytearray(data))
        return Request(len(data).to_bytes(4, "big") + data, name, is_valid, sample.api)

    # ---- choices

    def _below(self, bound: int) -> int:
        return int(self.rng.random() * bound)

    def _one(self, values: Sequence[_T]) -> _T:
        return values[int(self.rng.random() * len(values))]

    def _sample(self) -> Sample:
        return self._one(self._one(self._one(self.corpus.by_client)))

    def _place(self, sample: Sample, is_wanted: Callable[[Place], bool]) -> Place | None:
        """A place at random; None: there is none that is wanted among the first few tries."""
        for _ in range(TRIES if sample.places else 0):
            place = self._one(sample.places)
            if is_wanted(place):
                return place
        return None

    def _shorten_waits(self, sample: Sample, frame: bytearray) -> None:
        """Clients wait half a second for records: that many requests would take months."""
        if self.rng.random() < LONG_WAIT_SHARE:
            return
        for place in sample.places:
            if place.name in WAITS:
                frame[place.start : place.end] = self._below(3).to_bytes(4, "big")

    # ---- changes that leave the request valid

    def unchanged(self, sample: Sample, frame: bytearray) -> bytearray:
        return frame

    def unknown_tag(self, sample: Sample, frame: bytearray) -> bytearray:
        """A tagged field of a version to come, which has to be passed over."""
        place = self._place(sample, lambda place: place.kind == "tags")
        if place is None or frame[place.start] > 100:
            return frame
        frame[place.end : place.end] = self._tag(1000 + self._below(1000))
        frame[place.start] += 1
        return frame

    def _tag(self, number: int) -> bytes:
        data = self.rng.randbytes(self._below(20))
        return uvarint(number) + uvarint(len(data)) + data

    # ---- changes that know the fields

    def number(self, sample: Sample, frame: bytearray) -> bytearray:
        """Another number in a field of fixed width."""
        place = self._place(sample, lambda place: place.kind.startswith(("int", "bool")))
        if place is None:
            return self.flipped(sample, frame)
        width = place.end - place.start
        number = self._one(NUMBERS) & ((1 << 8 * width) - 1)
        frame[place.start : place.end] = number.to_bytes(width, "big")
        return frame

    def length(self, sample: Sample, frame: bytearray) -> bytearray:
        """A length or count that lies."""
        place = self._place(sample, lambda place: place.has_length)
        if place is None:
            return self.flipped(sample, frame)
        number = self._one(NUMBERS) if self._below(2) else place.end - place.head + self._below(5)
        if place.kind[-1] in "26":
            width = place.head - place.start
            lie = (number & ((1 << 8 * width) - 1)).to_bytes(width, "big")
        else:
            lie = uvarint(number & 0xFFFFFFFF)
        frame[place.start : place.head] = lie
        return frame

    def elements(self, sample: Sample, frame: bytearray) -> bytearray:
        """An array whose elements are there twice, many times, or not at all."""
        place = self._place(sample, lambda place: place.kind.startswith("array"))
        if place is None or place.head == place.end:
            return self.flipped(sample, frame)
        is_compact = place.kind.startswith("arraycompact")
        times = self._one((0, 2, 2, 3, 20))
        if is_compact:
            count = max(frame[place.start] - 1, 0) * times
            head = uvarint(count + 1)
        else:
            count = int.from_bytes(frame[place.start : place.head], "big", signed=True)
            head = (max(count, 0) * times).to_bytes(4, "big")
        frame[place.start : place.end] = head + frame[place.head : place.end] * times
        return frame

    def wrong_tags(self, sample: Sample, frame: bytearray) -> bytearray:
        """A known tag with other bytes, a tag twice, tags that claim too much."""
        place = self._place(sample, lambda place: place.kind == "tags")
        if place is None:
            return self.grown(sample, frame)
        kind = self._below(3)
        if kind == 0:
            frame[place.start : place.head] = uvarint(self._one(NUMBERS) & 0xFFFFFFFF)
            return frame
        tags = b"".join(self._tag(self._below(4)) for _ in range(kind))
        frame[place.head : place.head] = tags
        frame[place.start : place.head] = uvarint(frame[place.start] + kind)
        return frame

    def field_of_another(self, sample: Sample, frame: bytearray) -> bytearray:
        """A field in place of which stands that of another request."""
        place = self._place(sample, lambda place: True)
        if place is None:
            return self.flipped(sample, frame)
        frame[place.start : place.end] = self._one(self.corpus.by_kind[place.kind])
        return frame

    def another_api(self, sample: Sample, frame: bytearray) -> bytearray:
        """The body of one API or version under the number of another one."""
        if self._below(3):
            api = APIS[ApiKey(sample.api)]
            version = api.first + self._below(api.last - api.first + 3) - 1
            frame[2:4] = (version & 0xFFFF).to_bytes(2, "big")
        elif self._below(4):
            frame[0:2] = self._one(KEYS).to_bytes(2, "big")
        else:
            frame[0:2] = (self._one(NUMBERS) & 0xFFFF).to_bytes(2, "big")
        return frame

    def batch(self, sample: Sample, frame: bytearray) -> bytearray:
        """A record batch whose fields lie, mostly under a checksum that is right."""
        found = [place for place in sample.places if place.kind.startswith("records")]
        if not found or found[0].end - found[0].head < HEADER_BYTES:
            return self.field_of_another(sample, frame)
        place = self._one(found)
        batch = frame[place.head : place.end]
        for _ in range(1 + self._below(2)):
            at, width = self._one(EACH_BATCH_FIELD)
            if self._below(4) == 0 and len(batch) > HEADER_BYTES:
                at, width = HEADER_BYTES + self._below(len(batch) - HEADER_BYTES), 1
            number = self._one(NUMBERS) & ((1 << 8 * width) - 1)
            batch[at : at + width] = number.to_bytes(width, "big")
        if self._below(5):
            batch = resealed(batch[: place.end - place.head])
        frame[place.head : place.end] = batch
        return frame

    # ---- changes that know nothing

    def flipped(self, sample: Sample, frame: bytearray) -> bytearray:
        for _ in range(self._below(3) + 1 if frame else 0):
            at = self._below(len(frame))
            frame[at] ^= 1 << self._below(8)
        return frame

    def cut(self, sample: Sample, frame: bytearray) -> bytearray:
        del frame[self._below(len(frame)) :]
        return frame

    def grown(self, sample: Sample, frame: bytearray) -> bytearray:
        at = len(frame) if self._below(2) else self._below(len(frame))
        frame[at:at] = self.rng.randbytes(self._one((1, 1, 2, 4, 30, 300)))
        return frame

    def halves(self, sample: Sample, frame: bytearray) -> bytearray:
        other = self._sample().frame
        at = self._below(len(frame))
        frame[at:] = other[self._below(len(other)) if self._below(2) else at :]
        return frame

    def size(self, sample: Sample, frame: bytearray) -> bytes:
        """A size in front that is not the frame's."""
        size = self._one(SIZES) if self._below(2) else max(0, len(frame) + self._below(9) - 4)
        return size.to_bytes(4, "big") + frame
