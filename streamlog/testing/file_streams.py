"""A medium of plain files: one per stream, one for the list of streams, one for keys.

Every file is a run of frames, big-endian, appended and synced, never rewritten:

    length u32 of what follows the CRC, CRC-32C u32 of it, kind u8, fields

    file           kind         fields
    streams        1 created    stream ids u64…: their files are whole
                   2 removed    stream id u64
    <id>.stream    3 row        epoch u64, state u8, start i64, holder, tags, token as JSON
                   4 batch      base offset i64, count u32, timestamp i64, attribute bytes u8,
                                attributes, payload
    keys           5 put        revision u64, namespace and name with u16 lengths, value
                   6 delete     as put, without a value

A torn last frame is cut off at opening; a bad frame before others is Corrupt. Files of streams that
the list does not name are removed: their creation was never finished. Trimmed data stays.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from struct import Struct

from streamlog.codec.crc import crc32c, crc32c_parts
from streamlog.errors import Corrupt
from streamlog.model.batch import StoredBatch, StreamState
from streamlog.model.kv import Key, KVChange, Value
from streamlog.runtime.buffers import Buffer, parts_size
from streamlog.runtime.clock import Clock
from streamlog.runtime.offload import Lane, Offload
from streamlog.testing.basic_kv import BasicKV
from streamlog.testing.basic_streams import BasicStreamClient, StoredStream

CREATED, REMOVED, ROW, BATCH, PUT, DELETE = range(1, 7)
_FRAME = Struct(">II")
_ID = Struct(">Q")
_ROW = Struct(">QBqI")
_BATCH = Struct(">qIqB")
_KEY = Struct(">QHH")


class FrameFile:
    """Frames appended to one file. Calls block: they go through Offload."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[bytes]:
        """The payload of each frame; cuts a torn tail off. Errors: Corrupt."""
        if not self.path.exists():
            return []
        data = self.path.read_bytes()
        frames, position = [], 0
        while position < len(data):
            end = position + _FRAME.size
            length, crc = _FRAME.unpack_from(data.ljust(end, b"\0"), position)
            body = data[end : end + length]
            if len(body) < length or length == 0 or crc32c(body) != crc:
                if end + length < len(data) and length:
                    raise Corrupt(
                        f"{self.path.name} has a damaged frame at byte {position}",
                        object_key=self.path.name,
                        start=position,
                        end=end + length,
                    )
                os.truncate(self.path, position)
                break
            frames.append(body)
            position = end + length
        return frames

    def append(self, frames: Sequence[Sequence[Buffer]]) -> None:
        """The frames are durable on return; after a crash a prefix of them may exist."""
        with open(self.path, "ab", buffering=0) as file:
            pieces: list[Buffer] = []
            for parts in frames:
                pieces.append(_FRAME.pack(parts_size(parts), crc32c_parts(tuple(parts))))
                pieces += parts
            file.write(b"".join(pieces))
            os.fdatasync(file.fileno())


class FileKV(BasicKV):
    def __init__(self, path: Path, offload: Offload) -> None:
        super().__init__()
        self._file = FrameFile(path)
        self._offload = offload

    async def load(self) -> None:
        for frame in await self._offload.run(Lane.META, self._file.read):
            revision, space, name = _KEY.unpack_from(frame, 1)
            start = 1 + _KEY.size
            namespace = frame[start : start + space].decode()
            key = Key(frame[start + space : start + space + name], namespace)
            data = frame[start + space + name :]
            value = Value(data, revision) if frame[0] == PUT else None
            self._apply(KVChange(key, value, revision))

    async def _save(self, change: KVChange) -> None:
        space = change.key.namespace.encode()
        kind = DELETE if change.value is None else PUT
        data = b"" if change.value is None else change.value.data
        head = bytes([kind]) + _KEY.pack(change.revision, len(space), len(change.key.name))
        frame = (head, space, change.key.name, data)
        await self._offload.run(Lane.META, self._file.append, [frame])


class FileMedium:
    """A Backing in one folder, of one process at a time; made by `open`."""

    def __init__(self, folder: Path, offload: Offload) -> None:
        self.rows: dict[int, StoredStream] = {}
        self.lock = asyncio.Lock()
        self.live_holders: set[str] = set()
        self.kv = FileKV(folder / "keys", offload)
        self._folder = folder
        self._offload = offload
        self._list = FrameFile(folder / "streams")
        self._stream_ids = 0
        self._clients = 0

    @classmethod
    async def open(cls, folder: Path, offload: Offload) -> FileMedium:
        """Restores the durable state; all earlier holders are dead. Errors: Corrupt."""
        medium = cls(folder, offload)
        await medium.kv.load()
        # On the lane of writes: those of a process that was killed end before this reads.
        await offload.run(Lane.WAL, medium._load)
        return medium

    def client(self, clock: Clock, *, budget_bytes: int = 64 << 20) -> BasicStreamClient:
        """A new process."""
        while f"node-{self._clients}" in self._holders():
            self._clients += 1
        return BasicStreamClient(self, f"node-{self._clients}", clock, budget_bytes=budget_bytes)

    def _holders(self) -> set[str]:
        return self.live_holders | {row.holder for row in self.rows.values()}

    def _load(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        ids: set[int] = set()
        for frame in self._list.read():
            found = [stream_id for (stream_id,) in _ID.iter_unpack(frame[1:])]
            self._stream_ids = max(self._stream_ids, *found)
            if frame[0] == CREATED:
                ids.update(found)
            else:
                ids.difference_update(found)
        for path in self._folder.glob("*.stream"):
            if int(path.stem) not in ids:
                path.unlink()
        for stream_id in ids:
            self.rows[stream_id] = _row_of(stream_id, self._file(stream_id).read())

    def _file(self, stream_id: int) -> FrameFile:
        return FrameFile(self._folder / f"{stream_id}.stream")

    def next_stream_id(self) -> int:
        self._stream_ids += 1
        return self._stream_ids

    async def create(self, rows: Sequence[StoredStream]) -> None:
        def write() -> None:
            for row in rows:
                frames = [_row_frame(row), *(_batch_frame(one) for one in row.batches)]
                self._file(row.stream_id).append(frames)
            _sync_folder(self._folder)
            ids = b"".join(_ID.pack(row.stream_id) for row in rows)
            self._list.append([(bytes([CREATED]), ids)])

        await self._offload.run(Lane.WAL, write)

    async def append(self, batches: Sequence[tuple[StoredStream, StoredBatch]]) -> None:
        by_stream: dict[int, list[Sequence[Buffer]]] = {}
        for row, batch in batches:
            by_stream.setdefault(row.stream_id, []).append(_batch_frame(batch))

        def write() -> None:
            for stream_id, frames in by_stream.items():
                self._file(stream_id).append(frames)

        await self._offload.run(Lane.WAL, write)

    async def update(self, row: StoredStream) -> None:
        file = self._file(row.stream_id)
        await self._offload.run(Lane.WAL, file.append, [_row_frame(row)])

    async def remove(self, stream_id: int) -> None:
        def write() -> None:
            self._list.append([(bytes([REMOVED]), _ID.pack(stream_id))])
            self._file(stream_id).path.unlink()

        await self._offload.run(Lane.WAL, write)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _row_frame(row: StoredStream) -> Sequence[Buffer]:
    fields = {"holder": row.holder, "tags": row.tags, "token": row.token.hex()}
    text = json.dumps(fields).encode()
    return (bytes([ROW]), _ROW.pack(row.epoch, row.state, row.start, len(text)), text)


def _batch_frame(batch: StoredBatch) -> Sequence[Buffer]:
    head = _BATCH.pack(
        batch.base_offset, batch.record_count, batch.base_timestamp_ms, len(batch.attributes)
    )
    return (bytes([BATCH]), head, batch.attributes, *batch.parts)


def _row_of(stream_id: int, frames: Sequence[bytes]) -> StoredStream:
    """Plays the frames of one stream's file."""
    row = StoredStream(stream_id, 0, StreamState.CLOSED, "", 0, 0, {})
    for frame in frames:
        if frame[0] == ROW:
            row.epoch, state, start, length = _ROW.unpack_from(frame, 1)
            text = json.loads(frame[1 + _ROW.size : 1 + _ROW.size + length])
            row.state, row.holder, row.tags = StreamState(state), text["holder"], text["tags"]
            row.token = bytes.fromhex(text["token"])
            row.trim(start)
        else:
            row.add(_batch_of(frame))
    return row


def _batch_of(frame: bytes) -> StoredBatch:
    base, count, stamp, length = _BATCH.unpack_from(frame, 1)
    start = 1 + _BATCH.size
    payload = memoryview(frame)[start + length :]
    return StoredBatch(base, count, stamp, (payload,), frame[start : start + length])


def stored_frames(path: Path) -> Iterator[tuple[int, int]]:
    """(kind, bytes) of each frame in a file, for inspection."""
    for frame in FrameFile(path).read():
        yield frame[0], len(frame)
