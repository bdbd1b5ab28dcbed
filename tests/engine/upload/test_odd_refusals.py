"""A store that refuses PUTs for unexpected reasons: sequenced appends wait for it."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

import streamlog
from streamlog.compaction.collect.collector import CollectorConfig
from streamlog.compaction.plan.config import CompactionConfig
from streamlog.errors import (
    Internal,
    Invalid,
    ObjectNotFound,
    OutcomeUnknown,
    QuotaExceeded,
    StoreUnavailable,
    StreamlogError,
    Unauthorized,
    ValueConflict,
)
from streamlog.kvstore.memory.store import MemoryKVStore
from streamlog.metadata.config import MetadataConfig
from streamlog.model.batch import CreateStreamOptions
from streamlog.objectstore.errors import StoreRefused
from streamlog.objectstore.interface import ObjectInfo
from streamlog.objectstore.memory import MemoryObjectStore
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.clock import SystemClock
from streamlog.wal.config import WalMode
from streamlog.wiring import Components, OpenEngine
from tests.engine.harness import QUICK, batch, error_of, payloads, run, sent, until

ODD: list[StreamlogError] = [
    StoreRefused("KMS.DisabledException", operation="put"),
    Invalid("EntityTooLarge", operation="put"),
    Unauthorized("AccessDenied", operation="put", resource="data"),
    ObjectNotFound("NoSuchUpload", object_key="data/1"),
    ValueConflict("412 of a proxy"),
    QuotaExceeded("later", retry_after_ms=1),
    OutcomeUnknown("499"),
]
odd = pytest.mark.parametrize("error", ODD, ids=lambda error: type(error).__name__)
both = pytest.mark.parametrize("mode", ["disk", "object"])
CONFIG = dataclasses.replace(
    QUICK, metadata=MetadataConfig(retry_backoff_ms=1, retry_backoff_max_ms=5)
)


COMPACTING = dataclasses.replace(
    CONFIG,
    collector=CollectorConfig(deletion_delay_ms=0, collect_interval_ms=150),
    compaction=CompactionConfig(
        compaction_process="inline", compaction_interval_ms=10**6, small_objects_min=2
    ),
)


class OddStore(MemoryObjectStore):
    """PUTs below `folder` meet `error`, if there is one."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.folder = ""
        self.error: Exception | None = None
        self.delete_error: StreamlogError | None = None
        self.refused = 0

    async def delete(self, keys: Sequence[str]) -> None:
        if self.delete_error is not None:
            self.refused += 1
            raise self.delete_error
        await super().delete(keys)

    def keys_below(self, folder: str) -> int:
        return sum(key.startswith(folder) for key in self._keys)

    async def put(
        self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False
    ) -> ObjectInfo:
        if self.error is not None and key.startswith(self.folder):
            self.refused += 1
            raise self.error
        return await super().put(key, parts, if_absent=if_absent)


def opened(
    store: OddStore, mode: WalMode, tmp_path: Path
) -> AbstractAsyncContextManager[OpenEngine]:
    return streamlog.open(
        "memory://",
        wal=mode,
        wal_dir=tmp_path / "wal" if mode == "disk" else None,
        config=CONFIG,
        components=Components(store=store, kv=MemoryKVStore(SystemClock())),
    )


@both
@odd
def test_appends_wait_for_a_store_that_refuses_their_objects(
    mode: WalMode, error: StreamlogError, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        store = OddStore()
        async with opened(store, mode, tmp_path) as log:
            stream, other = await log.streams.create_and_open_streams([CreateStreamOptions()] * 2)
            store.folder, store.error = "data/", error
            appends = [sent(target.append(batch(b"a"))) for target in (stream, other)]
            log.engine.request_flush()
            await until(lambda: store.refused > 2)
            (waiting, *_) = log.engine.uploads_waiting
            assert waiting.error is error
            assert waiting.failures > 1
            assert log.clock.monotonic() >= waiting.since
            assert log.registry.get_sample_value("streamlog_engine_puts_retried") == len(
                log.engine.uploads_waiting
            )
            assert log.engine.failure is None
            store.error = None
            assert [(await append).base_offset for append in appends] == [0, 0]
            await log.drain()
            assert log.engine.uploads_waiting == []
            assert payloads((await stream.fetch(0, 1, 1)).batches) == [b"a"]

    with caplog.at_level(logging.INFO):
        run(scenario)
    (first,) = [record for record in caplog.records if "a PUT failed" in record.getMessage()][:1]
    assert str(error) in str(first.__dict__["reason"])
    assert any("a PUT succeeded" in record.getMessage() for record in caplog.records)


@odd
def test_checkpoints_wait_and_the_engine_goes_on(error: StreamlogError, tmp_path: Path) -> None:
    async def scenario() -> None:
        store = OddStore()
        async with opened(store, "object", tmp_path) as log:
            stream = await log.streams.create_and_open_stream()
            store.folder, store.error = "checkpoint/", error
            await stream.append(batch(b"a"))
            for _ in range(2):
                failure = await error_of(log.metadata.checkpoint())
                assert isinstance(failure, StoreUnavailable | OutcomeUnknown)
            assert (await stream.append(batch(b"b"))).base_offset == 1
            store.error = None
            await log.metadata.checkpoint()
            assert log.engine.failure is None

    run(scenario)


@odd
def test_creates_and_stages_fail_with_a_retryable_error(
    error: StreamlogError, tmp_path: Path
) -> None:
    async def scenario() -> None:
        store = OddStore()
        async with opened(store, "object", tmp_path) as log:
            stream = await log.streams.create_and_open_stream()
            store.folder, store.error = "data/", error
            created = log.streams.create_and_open_streams(
                [CreateStreamOptions()], lambda ids: [(ids[0], batch(b"first"))]
            )
            for call in (created, log.staging.stage("w", "1", {stream.stream_id: [batch(b"s")]})):
                failure = await error_of(call)
                assert isinstance(failure, StoreUnavailable)
                assert str(error) in failure.message
                assert failure.is_retryable
            assert store.refused == 10
            assert [row.stream_id for row in await log.streams.list_streams()] == [stream.stream_id]
            store.error = None
            await log.staging.stage("w", "1", {stream.stream_id: [batch(b"s")]})
            assert (await stream.append(batch(b"a"))).base_offset == 0

    run(scenario)


@odd
def test_compaction_and_deletion_continue_after_a_refusal(
    error: StreamlogError, tmp_path: Path
) -> None:
    async def scenario() -> None:
        store = OddStore()
        async with streamlog.open(
            "memory://",
            wal="object",
            config=COMPACTING,
            components=Components(store=store, kv=MemoryKVStore(SystemClock())),
        ) as log:
            stream = await log.streams.create_and_open_stream()
            for number in range(4):
                await stream.append(batch(b"%d" % number))
            compactor = log.compactor
            assert compactor is not None
            store.folder, store.error = "data/", error
            assert isinstance(await error_of(compactor.compact_all()), StoreUnavailable)
            assert store.refused
            store.error = None
            await compactor.compact_all()
            assert (await stream.append(batch(b"4"))).base_offset == 4
            await stream.trim(4)
            store.delete_error, store.refused = error, 0
            await log.metadata.checkpoint()
            await until(lambda: store.refused > 1)
            store.delete_error = None
            await until(lambda: store.keys_below("data/") == 1)
            assert log.engine.failure is None
            assert payloads((await stream.fetch(4, 5, 1)).batches) == [b"4"]

    run(scenario)


@both
@pytest.mark.parametrize(
    "error", [Internal("not a valid request"), TypeError("a bug")], ids=["Internal", "TypeError"]
)
def test_a_bug_ends_the_engine_with_its_reason(
    mode: WalMode, error: Exception, tmp_path: Path
) -> None:
    async def scenario() -> None:
        store = OddStore()
        async with opened(store, mode, tmp_path) as log:
            stream = await log.streams.create_and_open_stream()
            store.folder, store.error = "data/", error
            append = sent(stream.append(batch(b"a")))
            log.engine.request_flush()
            failure = await asyncio.wait_for(log.wait_stopped(), 30)
            assert str(error) in failure.message
            if mode == "object":
                outcome = await error_of(append)
                assert isinstance(outcome, Internal)
                assert not outcome.has_no_side_effects
            assert isinstance(await error_of(stream.append(batch(b"b"))), Internal)

    run(scenario)
