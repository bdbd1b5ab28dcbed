"""The one RocksDB of a store, as blocking calls: open, read, write one synced batch, recover.

1. Every write batch is synced and has the state record, so that state and data stay together.
2. After a failed write the handle is not used again: the database is opened anew, and its state
   record says whether the write took effect.
3. An open iterator keeps RocksDB's own lock, so iterators are dropped before the handle is closed.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import cast

from rocksdict import (
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
)

from streamlog.errors import (
    Corrupt,
    DataInUse,
    DiskFull,
    MetadataUnavailable,
    StreamlogError,
)
from streamlog.kvstore.interface import StoredKeyValue
from streamlog.kvstore.rocks import format as layout
from streamlog.kvstore.settings import KVSettings

Item = tuple[bytes, bytes]

OPENING = "opening the metadata"
_NO_ROOM = ("no space left", "disk quota exceeded", "file too large")


def _options(settings: KVSettings) -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    # RocksDB's default drops everything behind a flipped bit without a word; this mode refuses the
    # flip and accepts a torn tail.
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    options.set_paranoid_checks(True)
    options.set_write_buffer_size(settings.write_buffer_bytes)
    options.set_max_write_buffer_number(2)
    options.set_max_background_jobs(2)
    options.set_max_open_files(256)
    options.set_keep_log_file_num(3)
    options.set_max_log_file_size(4 << 20)
    options.set_compression_type(DBCompressionType.none())
    # A log of records that are deleted soon after: compact where many deletions pile up.
    options.add_compact_on_deletion_collector_factory(1024, 256, 0.5)
    table = BlockBasedOptions()
    table.set_block_cache(Cache(settings.block_cache_bytes))
    table.set_bloom_filter(10, False)
    options.set_block_based_table_factory(table)
    return options


def translate(error: Exception, path: str, doing: str) -> StreamlogError:
    """The typed error for RocksDB's message; the binding has no error classes."""
    text = str(error)
    lowered = text.lower()
    if any(sign in lowered for sign in _NO_ROOM):
        return DiskFull(
            f"{doing} failed, for {path} has no room: {text}; free some space", path=path
        )
    if "corruption" in lowered:
        torn = (
            f"`streamlog meta repair --meta rocksdb://{path}` says whether a power cut tore the "
            "last, never acknowledged write, and cuts that; else "
        )
        return Corrupt(
            f"{doing} found damaged metadata in {path}: {text}; "
            f"{torn if doing == OPENING else ''}restore the folder from a "
            "backup or rebuild the metadata from the object store",
            object_key=path,
        )
    if "lock" in lowered and ("hold by" in lowered or "unavailable" in lowered):
        return DataInUse(
            f"{path} is in use by another process: {text}; stop it or use another folder",
            path=path,
            pid=0,
            host="",
        )
    return MetadataUnavailable(
        f"{doing} failed in {path}: {text}; look at the disk and the right to write there",
        path=path,
    )


class RangeCursor:
    """The keys of a range as they were when the cursor was made, page by page."""

    def __init__(self, iterator: Iterator[Item]) -> None:
        self._iterator: Iterator[Item] | None = iterator

    def page(self, bytes_max: int, count_max: int) -> tuple[list[StoredKeyValue], bool]:
        """The next keys (`count_max` 0: no bound), at least one of any size; False at the end."""
        if self._iterator is None:
            raise MetadataUnavailable("the metadata store was closed or reopened during a read")
        kvs: list[StoredKeyValue] = []
        size = 0
        for key, value in self._iterator:
            kvs.append(layout.decode_kv(key[1:], value))
            size += len(key) + len(value)
            if size >= bytes_max or len(kvs) == count_max:
                return kvs, True
        return kvs, False

    def close(self) -> None:
        self._iterator = None


class RocksDatabase:
    """Blocking; one thread at a time calls it, except for `peek`."""

    def __init__(self, path: str, settings: KVSettings) -> None:
        self._path = path
        self._settings = settings
        self._cursors: weakref.WeakSet[RangeCursor] = weakref.WeakSet()
        self._db: Rdict | None = None

    @property
    def is_open(self) -> bool:
        return self._db is not None

    def open(self) -> layout.StoreState:
        """Errors: DataInUse, Corrupt, UnsupportedVersion, DiskFull, MetadataUnavailable."""
        try:
            db = Rdict(self._path, _options(self._settings))
            value = db.get(layout.STATE_KEY)
        except Exception as error:
            raise translate(error, self._path, OPENING) from error
        self._db = db
        try:
            return layout.StoreState(1, 1, 0) if value is None else layout.decode_state(value)
        except StreamlogError:
            self.close()
            raise

    def close(self) -> None:
        """Acknowledged writes are durable without it. Errors: MetadataUnavailable, DiskFull."""
        for cursor in list(self._cursors):
            cursor.close()
        db, self._db = self._db, None
        if db is None:
            return
        try:
            db.close()
        except Exception as error:
            raise translate(error, self._path, "closing the metadata") from error

    def get(self, key: bytes) -> StoredKeyValue | None:
        db = self._handle()
        try:
            value = db.get(layout.DATA_PREFIX + key)
        except Exception as error:
            raise translate(error, self._path, "a read") from error
        return None if value is None else layout.decode_kv(key, value)

    def peek(self, key: bytes) -> tuple[bool, StoredKeyValue | None]:
        """(True, the key) if that is known without I/O, else (False, None). From any thread."""
        if self._db is None:
            return False, None
        try:
            answer = self._db.key_may_exist(layout.DATA_PREFIX + key, fetch=True)
        except Exception as error:
            raise translate(error, self._path, "a read") from error
        may_exist, value = cast(tuple[bool, bytes | None], answer)
        if not may_exist:
            return True, None
        return (False, None) if value is None else (True, layout.decode_kv(key, value))

    def scan(self, start: bytes, end: bytes) -> Iterator[StoredKeyValue]:
        cursor = self.cursor(start, end)
        more = True
        while more:
            page, more = cursor.page(self._settings.page_bytes_max, 0)
            yield from page

    def cursor(self, start: bytes, end: bytes) -> RangeCursor:
        cursor = RangeCursor(self._items(layout.DATA_PREFIX + start, layout.DATA_PREFIX + end))
        self._cursors.add(cursor)
        return cursor

    def leases(self) -> Iterator[tuple[int, int]]:
        """(lease id, ttl_ms)"""
        for key, value in self._items(layout.LEASE_PREFIX, layout.LEASED_PREFIX):
            yield layout.decode_lease(key, value)

    def leased_keys(self) -> Iterator[tuple[int, bytes]]:
        """(lease id, user key)"""
        for key, _ in self._items(layout.LEASED_PREFIX, layout.DATA_PREFIX):
            yield layout.decode_leased_key(key)

    def write(self, batch: WriteBatch) -> None:
        """Durable on return. After an error call `close` and `open`: the state tells the outcome.

        Errors: DiskFull, MetadataUnavailable, Corrupt; after each the batch may have taken effect.
        """
        db = self._handle()
        try:
            db.write(batch)
            # rocksdict holds the GIL during a synced write, and releases it here. A sync takes
            # milliseconds on a busy disk, and would stop the whole process.
            db.flush_wal(sync=True)
        except Exception as error:
            raise translate(error, self._path, "a write") from error

    def _handle(self) -> Rdict:
        if self._db is None:
            raise MetadataUnavailable(f"the metadata in {self._path} is not open")
        return self._db

    def _items(self, start: bytes, end: bytes) -> Iterator[Item]:
        """The database as it is now, in [start, end)."""
        options = ReadOptions()
        options.set_iterate_upper_bound(end)
        db = self._handle()
        try:
            items = cast(Iterator[Item], db.items(from_key=start, read_opt=options))
        except Exception as error:
            raise translate(error, self._path, "a range read") from error
        return self._guarded(items, end)

    def _guarded(self, items: Iterator[Item], bound: bytes) -> Iterator[Item]:
        """`items` with typed errors. The frame keeps `bound` alive: RocksDB's iterator points into
        its bytes, and the binding holds no reference.
        """
        try:
            yield from items
        except Exception as error:
            raise translate(error, self._path, "a range read") from error
