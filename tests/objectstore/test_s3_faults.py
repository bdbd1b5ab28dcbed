"""The S3 store when answers are late, wrong, cut or lost, over a real server."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from urllib.parse import parse_qs, urlsplit

import pytest
from prometheus_client import CollectorRegistry

from streamlog.errors import (
    AlreadyExists,
    ObjectNotFound,
    OutcomeUnknown,
    StoreUnavailable,
    StreamlogError,
    ValueConflict,
)
from streamlog.objectstore.opening import open_s3
from streamlog.objectstore.s3.boto3_requests import Boto3Requests
from streamlog.objectstore.s3.obstore_requests import ObstoreRequests
from streamlog.objectstore.s3.store import S3ObjectStore
from streamlog.objectstore.store_config import MIB, StoreConfig
from streamlog.objectstore.store_metrics import StoreMetrics
from streamlog.objectstore.url import S3Url, parse_store_url
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.clock import SystemClock
from streamlog.runtime.offload import ThreadOffload
from streamlog.runtime.rand import SystemRandom
from tests.support.fault_proxy import (
    Always,
    Answer,
    Cut,
    Fault,
    FaultProxy,
    Hold,
    Place,
    Request,
    Reset,
    Script,
    fault_proxy,
)
from tests.support.metrics import value_of
from tests.support.s3 import BUCKET, S3Tests

T = TypeVar("T")

SLOW_DOWN = Answer(503, "SlowDown")
LOST = Reset(Place.AFTER)
NEVER_SENT = Reset(Place.BEFORE)
QUICK = StoreConfig(
    connect_timeout_ms=5000,
    read_timeout_ms=10_000,
    request_deadline_ms=10_000,
    retry_backoff_ms=1,
    retry_backoff_ms_max=10,
    multipart_bytes_min=5 * MIB,
    part_bytes=5 * MIB,
)
IMPATIENT = dataclasses.replace(QUICK, request_deadline_ms=200)
CLIENTS: dict[str, type[Boto3Requests | ObstoreRequests]] = {
    "boto3": Boto3Requests,
    "obstore": ObstoreRequests,
}


@dataclasses.dataclass
class World:
    store: S3ObjectStore
    proxy: FaultProxy
    metrics: StoreMetrics
    registry: CollectorRegistry
    direct: S3ObjectStore
    """The same objects, past the proxy."""

    async def patiently(self, use: Callable[[], Awaitable[T]]) -> T:
        """What a caller does: again, until the store has answered within its deadline."""
        while True:
            try:
                return await use()
            except StreamlogError as error:
                if not error.is_retryable:
                    raise

    def count(self, operation: str, outcome: str) -> float:
        labels = {"operation": operation, "outcome": outcome}
        return self.registry.get_sample_value("streamlog_store_requests_total", labels) or 0.0


Body = Callable[[World], Awaitable[None]]


class Faults:
    def __init__(self, s3: S3Tests, client: str) -> None:
        self._s3 = s3
        self._client = client

    @asynccontextmanager
    async def _world(self, config: StoreConfig) -> AsyncIterator[World]:
        offload, clock, random = ThreadOffload(), SystemClock(), SystemRandom()
        url = parse_store_url(self._s3.new_url(client=self._client))
        assert isinstance(url, S3Url)
        registry = CollectorRegistry()
        metrics = StoreMetrics(registry, clock)
        # obstore ends a request at the deadline, connecting included: a machine that is busy would
        # make an impatient store's requests fail that no fault was meant for.
        patient = dataclasses.replace(config, request_deadline_ms=QUICK.request_deadline_ms)
        async with fault_proxy(self._s3.server.port) as proxy:
            through = dataclasses.replace(url, endpoint=proxy.endpoint)
            requests = await CLIENTS[self._client].open(through, offload, patient, metrics)
            store = S3ObjectStore(through, requests, config, clock, random, metrics)
            await store.check()
            direct = await open_s3(
                dataclasses.replace(url, client="boto3"),
                offload,
                clock,
                random,
                StoreConfig(),
                StoreMetrics(CollectorRegistry(), clock),
            )
            yield World(store, proxy, metrics, registry, direct)
            proxy.plan = lambda request: None
            await store.close()
            await direct.close()
        await offload.close()

    def run(self, body: Body, config: StoreConfig = QUICK) -> None:
        async def main() -> None:
            async with self._world(config) as world:
                await body(world)

        asyncio.run(asyncio.wait_for(main(), 90))


@pytest.fixture(params=["boto3", "obstore"])
def faults(s3: S3Tests, request: pytest.FixtureRequest) -> Faults:
    return Faults(s3, request.param)


@pytest.fixture
def boto3_faults(s3: S3Tests) -> Faults:
    return Faults(s3, "boto3")


def puts(request: Request) -> bool:
    return request.method == "PUT"


def gets(request: Request) -> bool:
    return request.method == "GET" and "list-type" not in request.path


@pytest.mark.parametrize(
    "fault", [SLOW_DOWN, Answer(500), NEVER_SENT, LOST], ids=lambda fault: str(fault)[:20]
)
def test_every_call_is_repeated(faults: Faults, fault: Fault) -> None:
    async def body(world: World) -> None:
        async def after_faults(use: Coroutine[Any, Any, Any]) -> Any:
            script = world.proxy.plan = Script(lambda request: True, fault, fault)
            result = await use
            assert script.hits >= 3
            return result

        store = world.store
        await after_faults(store.put("a/b", (b"one", b"two")))
        assert bytes(await after_faults(store.get("a/b", 2, 3))) == b"etw"
        assert (await after_faults(store.head("a/b"))).size_bytes == 6
        assert len((await after_faults(store.list("a/"))).objects) == 1
        await after_faults(store.delete(["a/b", "a/c"]))
        await after_faults(store.delete(["a/d"]))
        assert (await world.direct.list("")).objects == ()

    faults.run(body)


def test_a_cut_body_is_read_again(faults: Faults) -> None:
    async def body(world: World) -> None:
        data = bytes(range(256)) * 1000
        await world.store.put("a", (data,))
        script = world.proxy.plan = Script(gets, Cut(), Cut())
        assert await world.store.get("a") == data
        assert script.hits == 3

    faults.run(body)


def test_a_repeated_get_goes_on_behind_the_pieces_that_arrived(boto3_faults: Faults) -> None:
    async def body(world: World) -> None:
        data = bytes(range(256)) * 4000
        await world.store.put("a", (data,))
        told: list[tuple[int, Buffer]] = []

        def arrived(number: int, piece: Buffer) -> bool:
            told.append((number, piece))
            return True

        script = world.proxy.plan = Script(gets, Cut(), LOST, Cut())
        await world.store.get_pieces("a", 0, (100_000,) * 10 + (24_000,), arrived)
        assert [number for number, _ in told] == list(range(11))
        assert b"".join(piece for _, piece in told) == data
        assert script.hits == 4
        ranges = [one.headers["range"] for one in world.proxy.requests if gets(one)]
        # Half of what was asked for came, twice.
        firsts = (0, 500_000, 500_000, 700_000)
        assert ranges == [f"bytes={first}-{len(data) - 1}" for first in firsts]

    boto3_faults.run(body)


def test_a_store_without_ranges_sends_everything(boto3_faults: Faults) -> None:
    async def body(world: World) -> None:
        data = bytes(range(100)) * 30_000
        world.proxy.plan = Always(gets, Answer(200, body=data.decode(), headers='ETag: "x"\r\n'))
        told: list[Buffer] = []

        def arrived(number: int, piece: Buffer) -> bool:
            told.append(piece)
            return True

        for start, sizes in ((2_000_001, (10, 600_000, 10)), (0, (1, 2)), (2_999_990, (5, 5))):
            told.clear()
            await world.store.get_pieces("a", start, sizes, arrived)
            wanted = data[start : start + sum(sizes)]
            assert b"".join(told) == wanted
            assert [len(piece) for piece in told] == list(sizes)
            assert await world.store.get("a", start, sum(sizes)) == wanted

    boto3_faults.run(body)


def test_a_silent_store_is_asked_again(faults: Faults) -> None:
    async def body(world: World) -> None:
        forever = asyncio.Event()
        await world.store.put("a", (b"x",))
        for place in Place:
            script = world.proxy.plan = Script(lambda _: True, Hold(place, forever))
            await world.store.put("a", (b"y",))
            assert script.hits >= 2
            script = world.proxy.plan = Script(gets, Hold(place, forever))
            assert bytes(await world.store.get("a")) == b"y"
            assert script.hits >= 2
        forever.set()

    faults.run(body, dataclasses.replace(QUICK, read_timeout_ms=200))


def test_a_condition_whose_answer_was_lost_is_known_to_hold(faults: Faults) -> None:
    async def body(world: World) -> None:
        world.proxy.plan = Script(puts, LOST)
        made = await world.store.put("a", (b"mine",), if_absent=True)
        assert made.etag == (await world.direct.head("a")).etag
        world.proxy.plan = Script(puts, LOST)
        changed = await world.store.put_if_match("a", (b"mine again",), made.etag)
        assert changed.etag == (await world.direct.head("a")).etag
        assert bytes(await world.direct.get("a")) == b"mine again"

    faults.run(body)


def test_a_condition_of_a_large_object_whose_answer_was_lost_is_known_to_hold(
    faults: Faults,
) -> None:
    """Neither client may take its own first try for somebody else's object."""

    async def body(world: World) -> None:
        def answered(request: Request) -> bool:
            is_whole = request.method == "PUT" and "partNumber" not in request.path
            return is_whole or (request.method == "POST" and "uploadId" in request.path)

        script = world.proxy.plan = Script(answered, LOST)
        made = await world.store.put("a", large(b"m"), if_absent=True)
        assert script.hits >= 1
        assert made.etag == (await world.direct.head("a")).etag

    faults.run(body)


def test_a_proxy_without_its_server_is_waited_for(faults: Faults) -> None:
    """The proxy answers by itself, in HTML, which says nothing about objects."""

    async def body(world: World) -> None:
        def page(status: int) -> Answer:
            return Answer(status, body="<html><body>default backend</body></html>")

        for status in (404, 400, 502):
            world.proxy.plan = Script(puts, page(status))
            await world.patiently(lambda: world.store.put("a", (b"x",)))
            world.proxy.plan = Script(gets, page(status))
            assert bytes(await world.patiently(lambda: world.store.get("a"))) == b"x"
        world.proxy.plan = Always(lambda _: True, page(404))
        for call in (world.store.put("a", (b"y",)), world.store.get("a"), world.store.list("")):
            with pytest.raises(StoreUnavailable, match="404"):
                await call
        assert bytes(await world.direct.get("a")) == b"x"

    faults.run(body, IMPATIENT)


def test_an_answer_that_cannot_be_read_is_a_lost_one(boto3_faults: Faults) -> None:
    async def body(world: World) -> None:
        for page in ("<html>", "<html><body>It works!</body></html>"):
            nonsense = Answer(200, body=page)
            for calls in (puts, gets, lambda request: "list-type" in request.path):
                script = world.proxy.plan = Script(calls, nonsense)
                await world.patiently(lambda: world.store.put("a", (b"x",)))
                assert bytes(await world.patiently(lambda: world.store.get("a"))) == b"x"
                listed = await world.patiently(lambda: world.store.list(""))
                assert [info.key for info in listed.objects] == ["a"]
                assert script.hits >= 2

    async def always(world: World) -> None:
        page = "<html><body>It works!</body></html>"
        world.proxy.plan = Always(puts, Answer(200, body=page))
        with pytest.raises(OutcomeUnknown, match="no ETag"):
            await world.store.put("a", (b"y",))

    # botocore makes a 500 of a page that is no XML: a try again needs time, on a busy machine too.
    boto3_faults.run(body)
    boto3_faults.run(always, IMPATIENT)


def test_an_empty_page_does_not_end_a_list(boto3_faults: Faults) -> None:
    """Behind many deleted versions S3 may list nothing, and say that there is more."""

    async def body(world: World) -> None:
        await world.store.put("a", (b"x",))
        empty = Answer(
            200,
            body="<ListBucketResult><IsTruncated>true</IsTruncated><KeyCount>0</KeyCount>"
            "<NextContinuationToken>more</NextContinuationToken></ListBucketResult>",
        )
        last = Answer(
            200,
            body="<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>",
        )
        asked: list[str] = []

        def plan(request: Request) -> Fault | None:
            asked.append(request.path)
            return empty if len(asked) == 1 else last

        world.proxy.plan = plan
        assert (await world.store.list("")).next_token is None
        assert "continuation-token=more" in asked[1]

    boto3_faults.run(body)


def test_a_lost_race_is_not_taken_for_an_own_write(faults: Faults) -> None:
    """The same bytes by somebody else, while our request got lost before it arrived."""

    async def body(world: World) -> None:
        def plan(fault: Fault) -> Script:
            return Script(puts, fault)

        world.proxy.plan = plan(NEVER_SENT)
        first = await world.direct.put("a", (b"same",), if_absent=True)
        with pytest.raises(AlreadyExists):
            await world.store.put("a", (b"same",), if_absent=True)
        await world.direct.put_if_match("a", (b"theirs",), first.etag)
        world.proxy.plan = plan(NEVER_SENT)
        with pytest.raises((ValueConflict, OutcomeUnknown)):
            await world.store.put_if_match("a", (b"ours",), first.etag)
        assert bytes(await world.direct.get("a")) == b"theirs"

    faults.run(body)


def test_a_store_that_refuses_is_unavailable_after_the_deadline(faults: Faults) -> None:
    async def body(world: World) -> None:
        world.proxy.plan = Always(lambda _: True, SLOW_DOWN)
        for use in (
            world.store.put("a", (b"x",)),
            world.store.put("a", (b"x",), if_absent=True),
            world.store.get("a"),
            world.store.list(""),
            world.store.delete(["a"]),
        ):
            with pytest.raises(StoreUnavailable) as raised:
                await use
            assert raised.value.is_retryable
            assert raised.value.has_no_side_effects
        assert world.count("put", "unavailable") > 2
        assert value_of(world.metrics.retries.labels("put")) > 1
        world.proxy.plan = lambda request: None
        await world.patiently(lambda: world.store.put("a", (b"x",), if_absent=True))
        assert bytes(await world.direct.get("a")) == b"x"

    faults.run(body, IMPATIENT)


def test_writes_whose_answers_are_lost_have_an_unknown_outcome(faults: Faults) -> None:
    async def body(world: World) -> None:
        world.proxy.plan = Always(lambda request: not gets(request), LOST)
        for use in (world.store.put("a", (b"x",)), world.store.put("b", (b"x",), if_absent=True)):
            with pytest.raises(OutcomeUnknown):
                await use
        with pytest.raises(OutcomeUnknown):
            await world.store.delete(["a"])
        with pytest.raises(StoreUnavailable):
            await world.store.list("")
        assert [info.key for info in (await world.direct.list("")).objects] == ["b"]

    faults.run(body, IMPATIENT)


def test_a_request_that_hangs_ends_at_the_deadline(faults: Faults) -> None:
    async def body(world: World) -> None:
        forever = asyncio.Event()
        world.proxy.plan = Always(lambda _: True, Hold(Place.BEFORE, forever))
        with pytest.raises(StoreUnavailable):
            await world.store.get("a")
        with pytest.raises(OutcomeUnknown):
            await world.store.put("a", (b"x",))
        forever.set()

    faults.run(body, dataclasses.replace(IMPATIENT, read_timeout_ms=1000))


def test_an_unreachable_store_is_unavailable_and_found_again(faults: Faults) -> None:
    async def body(world: World) -> None:
        await world.patiently(lambda: world.store.put("a", (b"x",)))
        await world.proxy.leave()
        # It meets the connection that is closed just then: a PUT's outcome would be unknown.
        with pytest.raises(StoreUnavailable, match="cannot be reached"):
            await world.store.get("a")
        with pytest.raises(StoreUnavailable, match="cannot be reached"):
            await world.store.put("a", (b"y",))
        await world.proxy.arrive()
        await world.patiently(lambda: world.store.put("a", (b"z",)))
        assert bytes(await world.direct.get("a")) == b"z"

    faults.run(body, IMPATIENT)


def test_refused_credentials_are_waited_out_once_they_were_good(faults: Faults) -> None:
    async def body(world: World) -> None:
        denied = Answer(403, "AccessDenied")
        world.proxy.plan = Script(puts, denied, Answer(403, "InvalidAccessKeyId"))
        await world.patiently(lambda: world.store.put("a", (b"x",)))
        world.proxy.plan = Always(puts, denied)
        with pytest.raises(StoreUnavailable, match="read, write, list and delete"):
            await world.store.put("a", (b"y",))

    faults.run(body, IMPATIENT)


def test_a_bucket_that_goes_away_may_come_back(faults: Faults) -> None:
    async def body(world: World) -> None:
        gone = Answer(404, "NoSuchBucket")
        world.proxy.plan = Always(lambda _: True, gone)
        for call in (
            world.store.put("a", (b"x",)),
            world.store.put("a", (b"x",), if_absent=True),
            world.store.get("a"),
            world.store.list(""),
            world.store.delete(["a", "b"]),
        ):
            with pytest.raises(StoreUnavailable, match="there is no bucket"):
                await call
        world.proxy.plan = Script(puts, gone)
        await world.patiently(lambda: world.store.put("a", (b"x",)))

    faults.run(body, IMPATIENT)


# multipart


def large(fill: bytes) -> tuple[bytes, ...]:
    return (fill * (3 * MIB), fill * (3 * MIB), fill * (5 * MIB), b"end")


def test_parts_that_fail_are_sent_again(boto3_faults: Faults) -> None:
    async def body(world: World) -> None:
        parts = large(b"a")
        script = world.proxy.plan = Script(
            lambda request: "partNumber" in request.path, SLOW_DOWN, LOST, NEVER_SENT
        )
        await world.store.put("a", parts)
        assert script.hits == 3 + 3
        assert await world.direct.get("a") == b"".join(parts)
        assert world.count("create", "ok") == world.count("complete", "ok") == 1
        assert world.count("part", "ok") == 3

    boto3_faults.run(body)


def test_a_completion_whose_answer_was_lost_has_happened(boto3_faults: Faults) -> None:
    async def body(world: World) -> None:
        def completes(request: Request) -> bool:
            return request.method == "POST" and "uploadId" in request.path

        world.proxy.plan = Script(completes, LOST)
        info = await world.store.put("a", large(b"a"), if_absent=True)
        assert info.etag == (await world.direct.head("a")).etag
        world.proxy.plan = Script(completes, LOST)
        await world.store.put("a", large(b"b"))
        assert bytes(await world.direct.get("a", 0, 1)) == b"b"
        world.proxy.plan = Script(completes, LOST)
        with pytest.raises(AlreadyExists):
            await world.store.put("a", large(b"c"), if_absent=True)

    boto3_faults.run(body)


def test_an_upload_that_fails_is_aborted(boto3_faults: Faults, s3: S3Tests) -> None:
    async def body(world: World) -> None:
        def parts(request: Request) -> bool:
            return "partNumber" in request.path

        world.proxy.plan = Always(parts, LOST)
        with pytest.raises(StoreUnavailable):
            await world.store.put("a", large(b"a"))
        forever = asyncio.Event()
        reached = asyncio.Event()

        def upload(request: Request) -> str:
            query = parse_qs(urlsplit(request.path).query)
            return query.get("uploadId", [""])[0]

        failed = {upload(request) for request in world.proxy.requests}

        def hold(request: Request) -> Fault | None:
            # Threads of the upload that failed may still send a part.
            if not parts(request) or upload(request) in failed:
                return None
            reached.set()
            return Hold(Place.BEFORE, forever)

        world.proxy.plan = hold
        cancelled = asyncio.ensure_future(world.store.put("a", large(b"a")))
        await reached.wait()
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        forever.set()
        # Closing waits for the aborts.
        await world.store.close()
        assert world.count("create", "ok") == 2
        url = parse_store_url(world.store.url)
        assert isinstance(url, S3Url)
        assert s3.server.uploads(BUCKET, url.prefix) == []
        assert (await world.direct.list("")).objects == ()

    boto3_faults.run(body, IMPATIENT)


def test_an_object_grows_in_the_store(boto3_faults: Faults) -> None:
    """Small ones are one PUT; of others parts are sent again, and a lost completion is found."""

    async def body(world: World) -> None:
        upload = world.store.upload("small", 10)
        assert upload is not None
        await upload.write((b"a", b"b"))
        await upload.write((b"c",))
        await upload.finish()
        upload.give_up()
        assert await world.direct.get("small") == b"abc"
        assert world.count("create", "ok") == 0

        upload = world.store.upload("large", 0)
        assert upload is not None
        script = world.proxy.plan = Script(
            lambda request: "partNumber" in request.path, SLOW_DOWN, LOST
        )
        wanted = []
        for number in range(9):
            piece = bytearray([number]) * (2 * MIB - 7)
            wanted.append(bytes(piece))
            await upload.write((piece[:100], memoryview(piece)[100:]))
            # The caller's buffers may be used anew.
            piece[:] = bytes(len(piece))
        with pytest.raises(ObjectNotFound):
            await world.direct.head("large")

        def completes(request: Request) -> bool:
            return request.method == "POST" and "uploadId" in request.path

        assert script.hits >= 2
        world.proxy.plan = Script(completes, LOST)
        info = await upload.finish()
        upload.give_up()
        assert info.size_bytes == 9 * (2 * MIB - 7)
        assert await world.direct.get("large") == b"".join(wanted)
        assert world.count("part", "ok") == 4

    boto3_faults.run(body)


def test_an_object_that_is_given_up_leaves_nothing(boto3_faults: Faults, s3: S3Tests) -> None:
    async def body(world: World) -> None:
        for tells in (False, True):
            upload = world.store.upload("a", 0)
            assert upload is not None
            if tells:
                world.proxy.plan = Always(lambda request: "partNumber" in request.path, LOST)
                with pytest.raises(StoreUnavailable):
                    await upload.write(large(b"a"))
            else:
                await upload.write(large(b"a"))
            upload.give_up()
            upload.give_up()
        world.proxy.plan = lambda request: None
        # Closing waits for the aborts.
        await world.store.close()
        url = parse_store_url(world.store.url)
        assert isinstance(url, S3Url)
        assert s3.server.uploads(BUCKET, url.prefix) == []
        assert (await world.direct.list("")).objects == ()

    boto3_faults.run(body, IMPATIENT)


def test_keys_that_a_batch_could_not_delete_are_tried_again(boto3_faults: Faults) -> None:
    async def body(world: World) -> None:
        for key in ("a", "b", "c"):
            await world.direct.put(key, (b"x",))

        def failed(code: str) -> Answer:
            return Answer(
                200,
                body="<DeleteResult><Error><Key>b</Key>"
                f"<Code>{code}</Code><Message>injected</Message></Error></DeleteResult>",
            )

        def deletes(request: Request) -> bool:
            return request.method == "POST" and "delete" in request.path

        script = world.proxy.plan = Script(deletes, failed("InternalError"), failed("SlowDown"))
        await world.patiently(lambda: world.store.delete(["a", "b", "c"]))
        assert script.hits >= 3
        assert (await world.direct.list("")).objects == ()
        world.proxy.plan = Always(deletes, failed("InternalError"))
        with pytest.raises(OutcomeUnknown):
            await world.store.delete(["a", "b"])

    boto3_faults.run(body, IMPATIENT)


def test_keys_are_deleted_by_the_thousand(boto3_faults: Faults) -> None:
    async def body(world: World) -> None:
        await world.store.put("a", (b"x",))
        await world.store.delete([*(f"k{n}" for n in range(2100)), "a"])
        assert world.count("delete", "ok") == 3
        assert (await world.direct.list("")).objects == ()

    boto3_faults.run(body)


def test_foreign_objects_under_the_prefix_are_not_listed(boto3_faults: Faults, s3: S3Tests) -> None:
    async def body(world: World) -> None:
        await world.store.put("a/b", (b"x",))
        url = parse_store_url(world.store.url)
        assert isinstance(url, S3Url)
        folder = s3.server.bucket_folder(BUCKET) / url.prefix / "a"
        (folder / "Not A Key").write_bytes(b"")
        assert [info.key for info in (await world.store.list("")).objects] == ["a/b"]

    boto3_faults.run(body)
