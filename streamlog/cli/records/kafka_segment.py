"""Record batches as a segment of Kafka's log: what its tools read and its brokers serve.

A `.log` file holds record batches one behind the other, at their offsets; nothing else. Its name
is the offset of its first batch, 20 digits wide, and Kafka takes the offset from there. Indexes are
made anew by the broker that finds none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import BinaryIO, NamedTuple

from streamlog.codec.batch import scan
from streamlog.errors import Invalid
from streamlog.runtime.buffers import Buffer

SEGMENT_BYTES_MAX = (1 << 31) - 1
"""Kafka's positions in a segment are int32."""
ROLL_BYTES = 1 << 30
"""Where Kafka rolls by default (`segment.bytes`)."""
OFFSETS_MAX = (1 << 31) - 1
"""Kafka's index holds offsets relative to the segment's base, in an int32."""

NewFile = Callable[[Path], AbstractContextManager[BinaryIO]]


class KafkaSegment(NamedTuple):
    """A file that was written: offsets base_offset (inclusive) to next_offset (exclusive)."""

    path: Path
    base_offset: int
    next_offset: int
    batches: int
    size_bytes: int


def segment_name(base_offset: int) -> str:
    return f"{base_offset:020d}.log"


def write_segments(
    target: Path, first_offset: int, pieces: Iterable[Buffer], new_file: NewFile
) -> list[KafkaSegment]:
    """Writes the batches of all pieces into `target`, or, where that is a folder, into files of it
    that have Kafka's names and size.

    `first_offset` names the file of a partition without any batch. Errors: Invalid, where one file
    cannot hold them; CorruptMessage, InvalidRecord.
    """
    with ExitStack() as stack:
        writer = _Writer(target, new_file, stack)
        for piece in pieces:
            for batch in scan(piece):
                header = batch.header
                writer.write(batch.view, header.base_offset, header.next_offset)
        if not writer.segments:
            writer.open(first_offset)
    return writer.segments


class _Writer:
    """Writes one file after another; only the last one is open."""

    def __init__(self, target: Path, new_file: NewFile, stack: ExitStack) -> None:
        self._target = target
        self._is_folder = target.is_dir()
        self._new_file = new_file
        self._stack = stack
        self._file: BinaryIO | None = None
        self.segments: list[KafkaSegment] = []

    def write(self, data: memoryview, base_offset: int, next_offset: int) -> None:
        size = len(data)
        if not self.segments or self._is_full(size, base_offset, next_offset):
            self.open(base_offset)
        segment = self.segments[-1]
        assert self._file is not None
        self._file.write(data)
        self.segments[-1] = segment._replace(
            next_offset=next_offset,
            batches=segment.batches + 1,
            size_bytes=segment.size_bytes + size,
        )

    def _is_full(self, size: int, base_offset: int, next_offset: int) -> bool:
        segment = self.segments[-1]
        bytes_max = ROLL_BYTES if self._is_folder else SEGMENT_BYTES_MAX
        too_large = segment.size_bytes + size > bytes_max
        if not too_large and next_offset - segment.base_offset <= OFFSETS_MAX:
            return False
        if not self._is_folder:
            raise Invalid(
                f"a Kafka segment cannot hold more than {SEGMENT_BYTES_MAX} bytes and "
                f"{OFFSETS_MAX} offsets, and {self._target} would at offset {base_offset}: give a "
                "folder, which gets as many segments as are needed"
            )
        return True

    def open(self, base_offset: int) -> None:
        """Closes the file before, which has its name from then on."""
        self._stack.close()
        path = self._target / segment_name(base_offset) if self._is_folder else self._target
        self._file = self._stack.enter_context(self._new_file(path))
        self.segments.append(KafkaSegment(path, base_offset, base_offset, 0, 0))
