"""The seed's index of a partition's remote records: three files of one name (KIP-405's draft).

`<base offset, 20 digits>.remotelogindex`: entries one behind the other, big-endian.

    at  field            type  meaning
    0   magic            i16   0; others are refused
    2   length           i16   of the whole entry, magic included: 46 + that of the RDI
    4   crc              u32   CRC-32C of all that follows, from the first offset to the end
    8   first offset     i64   of the entry's records
    16  last offset      i64   inclusive
    24  first timestamp  i64   of the record at the first offset
    32  last timestamp   i64   the latest of the remote segment that the entry points into
    40  data length      i32   bytes of the remote data
    44  RDI length       i16
    46  RDI              ...   remote data identifier: what the storage finds the data by

`.remoteoffsetindex`: 8 bytes an entry, as Kafka's offset index.

    0   offset           i32   the entry's last offset, relative to the file's base offset
    4   position         i32   where the entry begins in the .remotelogindex file

`.remotetimeindex`: 12 bytes an entry, as Kafka's time index; entries alone whose last timestamp is
later than those of all entries before them.

    0   timestamp        i64   the entry's last timestamp
    8   position         i32   where the entry begins in the .remotelogindex file

Entries of a file do not overlap and are in the order of their offsets. The draft leaves open what
`length` covers, which checksum it means, and what a sparse index points at; here all entries are in
the offset index, so that a look-up reads one entry. A file takes entries as long as offsets and
positions have room in an i32. Another version takes another magic. Source: KIP-405, version 36.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple

from streamlog.codec.crc import crc32c
from streamlog.errors import Corrupt, Invalid, UnsupportedVersion
from streamlog.runtime.buffers import Buffer

MAGIC = 0
LOG_SUFFIX, OFFSET_SUFFIX, TIME_SUFFIX = ".remotelogindex", ".remoteoffsetindex", ".remotetimeindex"
FILE_BYTES_MAX = 1 << 20
"""Where a file ends by default: some 15,000 entries."""
_HEAD = Struct(">hhI")
_BODY = Struct(">qqqqih")
_OFFSET = Struct(">ii")
OFFSET_ENTRY_BYTES = _OFFSET.size
_TIME = Struct(">qi")
RDI_BYTES_MAX = (1 << 15) - 1 - _HEAD.size - _BODY.size
_I32_MAX = (1 << 31) - 1


class RemoteIndexEntry(NamedTuple):
    """A run of records in the remote storage. Offsets are inclusive, times in ms."""

    first_offset: int
    last_offset: int
    first_timestamp_ms: int
    last_timestamp_ms: int
    data_length: int
    rdi: bytes

    @property
    def size_bytes(self) -> int:
        """Of the entry in its file."""
        return _HEAD.size + _BODY.size + len(self.rdi)


class RemoteIndexFiles(NamedTuple):
    """The bytes of the three files that have one base offset."""

    base_offset: int
    log_index: bytes
    offset_index: bytes
    time_index: bytes

    @property
    def stem(self) -> str:
        """With what the names of the files begin."""
        return stem_of(self.base_offset)


@dataclass(frozen=True, slots=True)
class RemoteIndex:
    """What three files say, checked against each other. `positions` are those of `entries`."""

    base_offset: int
    entries: Sequence[RemoteIndexEntry]
    positions: Sequence[int]
    times: Sequence[tuple[int, int]]
    """Timestamp and position in the log index."""

    def at(self, offset: int) -> RemoteIndexEntry | None:
        """The entry that has the offset."""
        found = bisect_left(self.entries, offset, key=lambda entry: entry.last_offset)
        if found == len(self.entries) or self.entries[found].first_offset > offset:
            return None
        return self.entries[found]

    def first_at_or_after(self, timestamp_ms: int) -> RemoteIndexEntry | None:
        """The first entry whose records may be as late as the timestamp, or later."""
        found = bisect_left(self.times, timestamp_ms, key=lambda time: time[0])
        if found == len(self.times):
            return None
        return self.entries[bisect_left(self.positions, self.times[found][1])]


def stem_of(base_offset: int) -> str:
    return f"{base_offset:020d}"


def encode_entry(entry: RemoteIndexEntry) -> bytes:
    """Errors: Invalid (a number that its field cannot hold)."""
    _check(entry)
    body = _BODY.pack(*entry[:-1], len(entry.rdi)) + entry.rdi
    return _HEAD.pack(MAGIC, _HEAD.size + len(body), crc32c(body)) + body


def _check(entry: RemoteIndexEntry) -> None:
    if not 0 <= entry.first_offset <= entry.last_offset:
        raise Invalid(
            f"a remote index entry would go from offset {entry.first_offset} to {entry.last_offset}"
        )
    if not 0 <= entry.data_length <= _I32_MAX or len(entry.rdi) > RDI_BYTES_MAX:
        raise Invalid(
            f"the remote index entry of offset {entry.first_offset} would have "
            f"{entry.data_length} bytes of data and {len(entry.rdi)} of its identifier; "
            f"at most {_I32_MAX} and {RDI_BYTES_MAX} have room"
        )


def encode_files(
    entries: Iterable[RemoteIndexEntry], file_bytes_max: int = FILE_BYTES_MAX
) -> Iterator[RemoteIndexFiles]:
    """Triples of files of at most so many bytes of log index each, and of one entry at least.

    Errors: Invalid (also where entries overlap).
    """
    run: list[RemoteIndexEntry] = []
    size, last = 0, -1
    for entry in entries:
        _check(entry)
        if entry.first_offset <= last:
            raise Invalid(f"the remote index entry of offset {entry.first_offset} overlaps another")
        last = entry.last_offset
        is_far = bool(run) and last - run[0].first_offset > _I32_MAX
        if run and (size + entry.size_bytes > file_bytes_max or is_far):
            yield _encoded(run)
            run, size = [], 0
        run.append(entry)
        size += entry.size_bytes
    if run:
        yield _encoded(run)


def _encoded(run: Sequence[RemoteIndexEntry]) -> RemoteIndexFiles:
    base = run[0].first_offset
    if run[0].last_offset - base > _I32_MAX:
        raise Invalid(f"the remote index entry of offset {base} has more than {_I32_MAX} offsets")
    log, offsets, times = bytearray(), bytearray(), bytearray()
    latest: int | None = None
    for entry in run:
        offsets += _OFFSET.pack(entry.last_offset - base, len(log))
        if latest is None or entry.last_timestamp_ms > latest:
            latest = entry.last_timestamp_ms
            times += _TIME.pack(latest, len(log))
        log += encode_entry(entry)
    return RemoteIndexFiles(base, bytes(log), bytes(offsets), bytes(times))


def decode_entry(data: Buffer, position: int = 0) -> RemoteIndexEntry:
    """The entry that begins at the position. Errors: Corrupt, UnsupportedVersion."""
    view = memoryview(data)[position:]
    if len(view) < _HEAD.size + _BODY.size:
        raise _damaged(position, f"it is cut off after {len(view)} bytes")
    magic, length, crc = _HEAD.unpack_from(view)
    if magic != MAGIC and magic > 0:
        raise UnsupportedVersion(
            f"a remote index entry has magic {magic}, this program knows {MAGIC}; use the program "
            "that wrote it, or a newer one",
            found=magic,
            supported=MAGIC,
        )
    if magic != MAGIC or not _HEAD.size + _BODY.size <= length <= len(view):
        raise _damaged(position, f"its magic is {magic}, its length {length} of {len(view)} bytes")
    body = view[_HEAD.size : length]
    if crc32c(body) != crc:
        raise _damaged(position, "its checksum is wrong")
    first, last, first_ms, last_ms, data_length, rdi_length = _BODY.unpack_from(body)
    rdi = bytes(body[_BODY.size :])
    if rdi_length != len(rdi):
        raise _damaged(position, f"its identifier has {len(rdi)} bytes, not {rdi_length}")
    entry = RemoteIndexEntry(first, last, first_ms, last_ms, data_length, rdi)
    try:
        _check(entry)
    except Invalid as error:
        raise _damaged(position, str(error)) from error
    return entry


def decode_files(files: RemoteIndexFiles) -> RemoteIndex:
    """Errors: Corrupt (also where the three do not agree), UnsupportedVersion."""
    entries: list[RemoteIndexEntry] = []
    positions: list[int] = []
    position = 0
    while position < len(files.log_index):
        entry = decode_entry(files.log_index, position)
        last = entries[-1].last_offset if entries else files.base_offset - 1
        if entry.first_offset <= last:
            raise _damaged(position, f"it begins at offset {entry.first_offset}, after {last}")
        if entry.last_offset - files.base_offset > _I32_MAX:
            raise _damaged(position, f"offset {entry.last_offset} is too far for its file")
        entries.append(entry)
        positions.append(position)
        position += entry.size_bytes
    if not entries or entries[0].first_offset != files.base_offset:
        raise Corrupt(f"{files.stem}{LOG_SUFFIX} does not begin with its base offset")
    expected = _encoded(entries)
    for suffix, found, wanted in (
        (OFFSET_SUFFIX, files.offset_index, expected.offset_index),
        (TIME_SUFFIX, files.time_index, expected.time_index),
    ):
        if found != wanted:
            raise Corrupt(
                f"{files.stem}{suffix} does not agree with {files.stem}{LOG_SUFFIX}: build both "
                "anew by `streamlog remote-index build`"
            )
    times = [_TIME.unpack_from(files.time_index, at) for at in range(0, len(files.time_index), 12)]
    return RemoteIndex(files.base_offset, entries, positions, times)


def _damaged(position: int, what: str) -> Corrupt:
    return Corrupt(
        f"the remote index entry at byte {position} is damaged: {what}; build the files anew by "
        "`streamlog remote-index build`",
        start=position,
    )
