"""A second, simple fold: it replays the history and checks the invariants.

It shares only the decoders of keys and records with the code under test.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from streamlog.codec.crc import crc32c
from streamlog.format.records import record as record_format
from streamlog.format.records.compaction import CompactionRecord
from streamlog.kvstore.interface import Delete, Operation, Put
from streamlog.metadata.interface import Tenure
from streamlog.metadata.keys import checkpoint, counter, fence, head, transfer
from streamlog.metadata.keys.space import number_in, tenure_in


class Violation(AssertionError):
    """An invariant of docs/protocol.md, 3, does not hold."""


@dataclass
class Stream:
    epoch: int
    holder: Tenure
    is_open: bool = True
    start: int = 0
    end: int = 0
    token: bytes = b""
    ranges: list[tuple[int, int, int, int]] = field(default_factory=list)
    """start, end, object id, epoch, as committed; trims do not cut them."""
    objects: list[int] = field(default_factory=list)
    """The object of each offset, from 0."""


class Oracle:
    def __init__(self, prefix: bytes) -> None:
        self.prefix = prefix
        self.streams: dict[int, Stream] = {}
        self.fences: dict[Tenure, fence.Fence] = {}
        self.heads: dict[Tenure, int] = {}
        self.objects: dict[int, tuple[Tenure, int]] = {}
        """Committed object → tenure and record."""
        self.destroyed: dict[int, Stream] = {}
        self.compactions = 0
        self.pending: dict[tuple[str, Tenure, int], int] = {}
        """Records and transfer records in the KV store → their revision."""
        self.covered: checkpoint.CheckpointPointer | None = None
        self.revision = 0

    def apply(self, revision: int, writes: list[Operation]) -> None:
        """Applies one transaction. Errors: Violation."""
        self.revision = revision
        deletes = [w for w in writes if isinstance(w, Delete)]
        for write in sorted((w for w in writes if isinstance(w, Put)), key=lambda w: w.key):
            letter = chr(write.key[len(self.prefix)])
            if letter == "k":
                self._checkpoint(write.value)
            elif letter == "x":
                # The record, which sorts before it, is applied already.
                if counter.decode(write.value) != self.compactions:
                    raise Violation(f"I8: x is not {self.compactions}")
            elif letter in "fhcm":
                tenure = tenure_in(write.key, self.prefix)
                getattr(self, f"_{letter}")(tenure, write, revision)
        for delete in deletes:
            self._delete(delete)

    def live_ranges(self, stream_id: int) -> list[tuple[int, int, int]]:
        s = self.streams[stream_id]
        ranges: list[tuple[int, int, int]] = []
        for offset in range(s.start, s.end):
            object_id = s.objects[offset]
            if ranges and ranges[-1][2] == object_id:
                ranges[-1] = (ranges[-1][0], offset + 1, object_id)
            else:
                ranges.append((offset, offset + 1, object_id))
        return ranges

    def live_objects(self) -> set[int]:
        return {object_id for s in self.streams for _, _, object_id in self.live_ranges(s)}

    # one kind of key each

    def _c(self, tenure: Tenure, write: Put, revision: int) -> None:
        seq = number_in(write.key)
        own = self.fences.get(tenure)
        if own is None or not own.is_live:
            raise Violation(f"I1: the sealed tenure {tenure} committed")
        if seq != self.heads[tenure] + 1:
            raise Violation(f"I2: record {seq} of {tenure} follows {self.heads[tenure]}")
        self.heads[tenure] = seq
        self.pending["c", tenure, seq] = revision
        record = record_format.decode(write.value)
        if isinstance(record, CompactionRecord):
            self._compaction(tenure, seq, record)
            return
        rows = 0
        for entry in record.entries:
            for create in entry.creates:
                if create.stream_id in self.streams or create.stream_id in self.destroyed:
                    raise Violation(f"I4: stream {create.stream_id} was created twice")
                self.streams[create.stream_id] = Stream(create.epoch, tenure)
            for new in entry.objects:
                if new.object_id in self.objects:
                    raise Violation(f"I2: object {new.object_id} was committed twice")
                self.objects[new.object_id] = (tenure, seq)
                for stream_id, count in zip(new.streams, new.counts, strict=True):
                    s = self._held(tenure, stream_id, None)
                    if not s.is_open:
                        raise Violation(f"I1: rows of the closed stream {stream_id}")
                    row = (stream_id, s.epoch, s.end, s.end + count)
                    rows = crc32c(struct.pack("<4Q", *row), rows)
                    s.ranges.append((s.end, s.end + count, new.object_id, s.epoch))
                    s.objects += [new.object_id] * count
                    s.end += count
            for stream_id, epoch, token in entry.tokens:
                self._held(tenure, stream_id, epoch).token = token
            for stream_id, epoch, start in entry.trims:
                s = self._held(tenure, stream_id, epoch)
                s.start = max(s.start, start)
                if s.start > s.end:
                    raise Violation(f"I2: stream {stream_id} was trimmed past its end")
            for stream_id, epoch in entry.closes:
                self._held(tenure, stream_id, epoch).is_open = False
            for stream_id, epoch in entry.destroys:
                self._held(tenure, stream_id, epoch)
                self.destroyed[stream_id] = self.streams.pop(stream_id)
        if rows != record.rows_crc32c:
            raise Violation(f"I2: record {seq} of {tenure} was written for other offsets")

    def _compaction(self, tenure: Tenure, seq: int, record: CompactionRecord) -> None:
        self.compactions += 1
        if record.counter != self.compactions:
            raise Violation(f"I8: compaction {record.counter} comes as {self.compactions}")
        for new in record.outputs:
            if new.object_id in self.objects:
                raise Violation(f"I2: object {new.object_id} was committed twice")
            self.objects[new.object_id] = (tenure, seq)
            for stream_id, start, count in zip(new.streams, new.starts, new.counts, strict=True):
                s = self.streams.get(stream_id)
                if s is None:
                    continue
                if start + count > s.end:
                    raise Violation(f"I8: compaction made offsets of stream {stream_id}")
                for offset in range(max(start, s.start), start + count):
                    if s.objects[offset] not in record.inputs:
                        raise Violation(
                            f"I8: compaction replaced offset {offset} of stream {stream_id}, which "
                            f"lies in object {s.objects[offset]}"
                        )
                    s.objects[offset] = new.object_id

    def _held(self, tenure: Tenure, stream_id: int, epoch: int | None) -> Stream:
        s = self.streams.get(stream_id)
        if s is None or s.holder != tenure or epoch not in (None, s.epoch):
            raise Violation(f"I1: {tenure} committed to stream {stream_id}, which it lost")
        return s

    def _m(self, holder: Tenure, write: Put, revision: int) -> None:
        gen = number_in(write.key)
        if gen != self.fences[holder].gen:
            raise Violation(f"I4: move {gen} away from {holder} with gen {self.fences[holder].gen}")
        self.pending["m", holder, gen] = revision
        record = transfer.decode(write.value)
        if not self.fences[record.to].is_live:
            raise Violation(f"I1: the sealed tenure {record.to} took streams")
        if record.streams is None:
            moves = [
                (i, s.epoch + 1, s.is_open) for i, s in self.streams.items() if s.holder == holder
            ]
        else:
            moves = [(i, e, True) for i, e in record.streams]
        for stream_id, epoch, is_open in moves:
            s = self.streams.get(stream_id)
            if s is None or s.holder != holder:
                continue
            if epoch <= s.epoch:
                raise Violation(f"I4: stream {stream_id} went from epoch {s.epoch} to {epoch}")
            s.epoch, s.holder, s.is_open = epoch, record.to, is_open

    def _f(self, tenure: Tenure, write: Put, revision: int) -> None:
        new, old = fence.decode(write.value), self.fences.get(tenure)
        if old is not None and (new.gen < old.gen or (new.is_live and not old.is_live)):
            raise Violation(f"I1: the fence of {tenure} went back from {old} to {new}")
        self.fences[tenure] = new

    def _h(self, tenure: Tenure, write: Put, revision: int) -> None:
        if tenure not in self.heads:
            self.heads[tenure] = 0
        if head.decode(write.value) != self.heads[tenure]:
            raise Violation(f"I2: the head of {tenure} is not its last record")

    def _checkpoint(self, value: bytes) -> None:
        new, old = checkpoint.decode(value), self.covered
        if old is not None:
            for tenure, mark in old.tenures.items():
                now = new.tenures.get(tenure)
                if now is not None and (now.seq < mark.seq or now.gen < mark.gen):
                    raise Violation(f"I9: the checkpoint went back for {tenure}")
                if now is None and tenure in {s.holder for s in self.streams.values()}:
                    raise Violation(f"I9: the checkpoint forgot {tenure}")
            if new.revision < old.revision:
                raise Violation("I9: the checkpoint went back")
        self.covered = new

    def _delete(self, delete: Delete) -> None:
        if delete.end is None:
            return
        marks = self.covered.tenures if self.covered is not None else {}
        for letter, tenure, number in list(self.pending):
            mark = marks.get(tenure)
            base = self.prefix + letter.encode() + b"/" + struct.pack(">II", *tenure) + b"/"
            if delete.key <= base + struct.pack(">Q", number) < delete.end:
                if mark is None or number > (mark.seq if letter == "c" else mark.gen):
                    raise Violation(f"I9: {letter}/{tenure}/{number} is gone and in no checkpoint")
                del self.pending[letter, tenure, number]
