"""An engine on an S3 store that misbehaves: nothing acknowledged is lost, nothing is there twice.

Through the public API, over a real server behind a proxy; wal=object.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import pytest

import streamlog
from streamlog.engine.config import AppendConfig, FlushConfig, ReadConfig, StreamEngineConfig
from streamlog.errors import OutcomeUnknown, Overloaded, StoreUnavailable
from streamlog.kvstore.memory.store import MemoryKVStore
from streamlog.model.batch import AppendContext, AppendResult, RecordBatch
from streamlog.model.stream import Stream
from streamlog.objectstore.keys import DATA_PREFIX
from streamlog.objectstore.store_config import StoreConfig
from streamlog.runtime.clock import SystemClock
from streamlog.wiring import Components, OpenEngine
from tests.support.fault_proxy import (
    Answer,
    Cut,
    Fault,
    FaultProxy,
    Hold,
    Place,
    Plan,
    Request,
    Reset,
    fault_proxy,
)
from tests.support.s3 import S3Tests

MIB = 1 << 20
CONFIG = StreamEngineConfig(
    append=AppendConfig(
        append_bytes_max=MIB,
        batch_bytes_max=MIB,
        retry_backoff_ms=5,
        retry_backoff_ms_max=50,
        drain_timeout_ms=5000,
    ),
    flush=FlushConfig(flush_interval_ms=5, put_rate_max_per_s=1000, hedge_delay_ms_min=100),
    # Nothing is read from memory.
    read=ReadConfig(tail_cache_bytes=0, block_cache_bytes=0, index_cache_bytes=0),
    store=StoreConfig(
        read_timeout_ms=300,
        # A machine that stands still for a second is no fault of the store's.
        request_deadline_ms=20_000,
        retry_backoff_ms=5,
        retry_backoff_ms_max=50,
        hedge_get_delay_ms_min=100,
        hedge_get_share_max=1.0,
    ),
)

# For a store that stays away until its readers are told.
IMPATIENT = dataclasses.replace(
    CONFIG, store=dataclasses.replace(CONFIG.store, request_deadline_ms=1500)
)

Body = Callable[["World"], Awaitable[None]]


@dataclasses.dataclass
class World:
    proxy: FaultProxy
    url: str
    kv: MemoryKVStore
    config: StreamEngineConfig = CONFIG

    @asynccontextmanager
    async def engine(self) -> AsyncIterator[OpenEngine]:
        async with streamlog.open(
            self.url, meta="memory://", config=self.config, components=Components(kv=self.kv)
        ) as engine:
            assert engine.wal == "object"
            yield engine


def run(s3: S3Tests, client: str, body: Body, config: StreamEngineConfig = CONFIG) -> None:
    async def main() -> None:
        async with fault_proxy(s3.server.port) as proxy:
            url = s3.new_url(client=client, endpoint=proxy.endpoint)
            kv = MemoryKVStore(SystemClock())
            await body(World(proxy, url, kv, config))
            await kv.close()

    asyncio.run(asyncio.wait_for(main(), 60))


def batch(payload: bytes) -> RecordBatch:
    return RecordBatch(1, 1000, (payload,), b"")


async def payloads(stream: Stream) -> list[bytes]:
    found: list[bytes] = []
    position = stream.start_offset
    while position < stream.confirm_offset:
        result = await stream.fetch(position, stream.confirm_offset, MIB)
        found += [b"".join(stored.parts) for stored in result.batches]
        position = result.batches[-1].end_offset
    return found


async def assert_stored_once(world: World, expected: Sequence[tuple[int, list[bytes]]]) -> None:
    """A new engine finds exactly these payloads, and in the bucket lie its objects alone."""
    world.proxy.plan = lambda request: None
    async with world.engine() as engine:
        for stream_id, sent in expected:
            stream = await engine.streams.open_stream(stream_id)
            assert await payloads(stream) == sent
        page = await engine.store.list(DATA_PREFIX)
        assert page.next_token is None
        assert len(page.objects) == engine.metadata.object_count


def every(nth: int, *faults: Fault) -> Plan:
    """One of the faults in turn for each nth request on data objects."""
    count = 0

    def plan(request: Request) -> Fault | None:
        nonlocal count
        if DATA_PREFIX not in request.path:
            return None
        count += 1
        return None if count % nth else faults[count // nth % len(faults)]

    return plan


FAULTS: dict[str, tuple[Fault, ...]] = {
    "slow down": (Answer(503, "SlowDown"), Answer(500)),
    "resets": (Reset(Place.BEFORE), Reset(Place.AFTER)),
    "cut": (Cut(), Reset(Place.AFTER)),
}


@pytest.mark.parametrize("client", ["boto3", "obstore"])
@pytest.mark.parametrize("kind", FAULTS)
def test_faults_in_every_third_request(s3: S3Tests, client: str, kind: str) -> None:
    async def body(world: World) -> None:
        async with world.engine() as engine:
            streams = [await engine.streams.create_and_open_stream() for _ in range(3)]
            sent = [[b"%d-%d-" % (s, n) * 50 for n in range(12)] for s in range(3)]
            world.proxy.plan = every(3, *FAULTS[kind])
            for n in range(12):
                await asyncio.gather(
                    *(streams[s].append(batch(sent[s][n])) for s in range(len(streams)))
                )
            for s, stream in enumerate(streams):
                assert await payloads(stream) == sent[s]
        ids = [stream.stream_id for stream in streams]
        await assert_stored_once(world, list(zip(ids, sent, strict=True)))

    run(s3, client, body)


def test_requests_that_hang_are_hedged_and_repeated(s3: S3Tests) -> None:
    """Held requests reach the server much later, with the bytes that are there already."""

    async def body(world: World) -> None:
        late = asyncio.Event()
        async with world.engine() as engine:
            stream = await engine.streams.create_and_open_stream()
            world.proxy.plan = every(3, Hold(Place.BEFORE, late), Hold(Place.AFTER, late))
            sent = [b"payload %d" % n for n in range(12)]
            for payload in sent:
                await stream.append(batch(payload))
            assert await payloads(stream) == sent
            late.set()
        await assert_stored_once(world, [(stream.stream_id, sent)])

    run(s3, "boto3", body)


def test_a_store_that_is_away_for_a_while(s3: S3Tests) -> None:
    async def body(world: World) -> None:
        async with world.engine() as engine:
            first = await engine.streams.create_and_open_stream()
            second = await engine.streams.create_and_open_stream()
            await first.append(batch(b"before"))
            await world.proxy.leave()

            payload = b"x" * (MIB // 8)
            waiting: list[asyncio.Future[AppendResult]] = []
            expected = {first: [b"before"], second: []}
            overloaded: list[Overloaded] = []
            while not overloaded:
                for stream, sent in expected.items():
                    deadline = engine.clock.monotonic() + 0.2
                    try:
                        room = await stream.reserve(len(payload), AppendContext(deadline=deadline))
                    except Overloaded as error:
                        overloaded.append(error)
                        continue
                    context = AppendContext(reservation=room)
                    waiting.append(asyncio.ensure_future(stream.append(batch(payload), context)))
                    sent.append(payload)
            assert overloaded[0].is_retryable
            assert overloaded[0].has_no_side_effects
            small = AppendContext(deadline=engine.clock.monotonic() + 0.2)
            expected[first].append(b"sequenced, so stored later")
            with pytest.raises(OutcomeUnknown):
                await first.append(batch(expected[first][-1]), small)

            # The process is up: metadata answers, and nobody was told anything wrong.
            third = await engine.streams.create_and_open_stream()
            assert engine.engine.failure is None
            assert len(waiting) >= 4
            assert not any(append.done() for append in waiting)

            await world.proxy.arrive()
            await asyncio.gather(*waiting)
            expected[third] = [b"after"]
            await third.append(batch(b"after"))
            for stream, sent in expected.items():
                assert await payloads(stream) == sent
        await assert_stored_once(
            world, [(stream.stream_id, sent) for stream, sent in expected.items()]
        )

    run(s3, "boto3", body)


@pytest.mark.parametrize(
    "answer",
    [Answer(404, "NoSuchBucket"), Answer(403, "InvalidAccessKeyId")],
    ids=["bucket", "credentials"],
)
def test_a_bucket_or_credentials_that_go_and_come_back(s3: S3Tests, answer: Answer) -> None:
    async def body(world: World) -> None:
        async with world.engine() as engine:
            stream = await engine.streams.create_and_open_stream()
            await stream.append(batch(b"before"))
            world.proxy.plan = lambda request: answer
            waiting = asyncio.ensure_future(stream.append(batch(b"waits")))
            with pytest.raises(StoreUnavailable) as raised:
                await stream.fetch(0, 1, MIB)
            assert raised.value.is_retryable
            context = AppendContext(deadline=engine.clock.monotonic() + 0.2)
            with pytest.raises(OutcomeUnknown):
                await stream.append(batch(b"told nothing"), context)
            assert engine.engine.failure is None
            assert not waiting.done()
            world.proxy.plan = lambda request: None
            await waiting
            await stream.append(batch(b"after"))
        expected = [b"before", b"waits", b"told nothing", b"after"]
        await assert_stored_once(world, [(stream.stream_id, expected)])

    run(s3, "boto3", body, IMPATIENT)


def test_reads_fail_typed_while_the_store_is_away_and_go_on_after(s3: S3Tests) -> None:
    async def body(world: World) -> None:
        async with world.engine() as engine:
            stream = await engine.streams.create_and_open_stream()
            await stream.append(batch(b"a"))
            await world.proxy.leave()
            with pytest.raises(StoreUnavailable):
                await stream.fetch(0, 1, MIB)
            await world.proxy.arrive()
            assert await payloads(stream) == [b"a"]

    run(s3, "boto3", body, IMPATIENT)
