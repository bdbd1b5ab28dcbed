"""Bounds on the requests of readers that fetch objects from the store themselves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, closing
from typing import Any

import grpc
import pytest

from streamlog.client.calls import locate as locate_calls
from streamlog.client.channel import Caller
from streamlog.errors import DeadlinePassed, Invalid, QuotaExceeded, Unavailable
from streamlog.model.located import OffsetWindow
from streamlog.server.context import RequestContext, allow_all
from streamlog.server.grpc import admin as grpc_admin
from streamlog.server.services.locating import WAITING_PER_TURN_MAX, LocateService
from streamlog.settings.limits import LimitsConfig
from streamlog.testing.basic_streams import BasicStreamClient
from streamlog.testing.clocks import ManualClock
from streamlog.testing.logs.cleaning_conformance import COMPACT, clean, filled
from streamlog.testing.memory_streams import MemoryMedium
from streamlog.v1.admin_pb2 import LocateRecordsRequest, LocateRecordsResponse
from tests.log.harness import shared_log
from tests.log.memory_log import turns
from tests.support.empty_log import EmptyLog

CONTEXT = RequestContext()


class Held:
    """Metadata whose answers wait until they are released."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.asked = 0

    async def catch_up(self) -> int:
        self.asked += 1
        await self.go_on.wait()
        return 7


class EmptyLogs:
    async def log(self, _: object) -> Any:
        return EmptyLog()


class CountedPins:
    def __init__(self) -> None:
        self.held = 0

    async def put(self, owner: str, ttl_ms: int) -> int:
        self.held += 1
        return self.held

    async def count(self, most: int) -> int:
        return min(self.held, most)

    async def renew(self, pin_id: int) -> None: ...

    async def remove(self, pin_id: int) -> None:
        self.held -= 1


def _service(metadata: Held, **limits: int) -> LocateService:
    return LocateService(
        EmptyLogs(),  # type: ignore[arg-type]
        metadata,  # type: ignore[arg-type]
        CountedPins(),
        authorize=allow_all,
        limits=LimitsConfig(**limits),
    )


async def _located(service: LocateService, *windows: OffsetWindow) -> int:
    async with aclosing(service.locate(CONTEXT, windows)) as parts:
        return len([part async for part in parts])


def test_locates_under_way_and_waiting_are_bounded() -> None:
    async def main() -> None:
        metadata = Held()
        service = _service(metadata, locates_max=2)
        window = OffsetWindow("t", 0, 0, 5)
        count = 2 + 2 * WAITING_PER_TURN_MAX
        calls = [asyncio.create_task(_located(service, window)) for _ in range(count)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert metadata.asked == 2
        with pytest.raises(QuotaExceeded, match=r"limits\.locates_max") as refused:
            await _located(service, window)
        assert refused.value.retry_after_ms
        # Who goes away makes room, whether it waits or has its turn.
        for left in (calls.pop(), calls.pop(0)):
            left.cancel()
            await asyncio.gather(left, return_exceptions=True)
        calls.append(asyncio.create_task(_located(service, window)))
        metadata.go_on.set()
        assert await asyncio.gather(*calls) == [1] * len(calls)
        assert metadata.asked == len(calls) + 1

    asyncio.run(main())


def test_overlapping_windows_are_refused() -> None:
    async def main() -> None:
        metadata = Held()
        metadata.go_on.set()
        service = _service(metadata)
        apart = [OffsetWindow("t", 0, 5, 9), OffsetWindow("t", 0, 0, 5), OffsetWindow("t", 1, 0, 9)]
        assert await _located(service, *apart) == 1
        for again in (OffsetWindow("t", 0, 8, 10), OffsetWindow("t", 1, 0, 9)):
            with pytest.raises(Invalid, match=f"t-{again.partition} overlap"):
                await _located(service, *apart, again)

    asyncio.run(main())


class SlowLookups(Held):
    """Look-ups of ranges wait."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on.set()
        self.looks, self.may_look = asyncio.Event(), asyncio.Event()

    async def warm(self, sections: Sequence[tuple[int, int, int]]) -> tuple[int, int]:
        self.looks.set()
        await self.may_look.wait()
        return max((stream_id, end) for stream_id, _, end in sections)

    async def ranges(self, *_: int) -> list[Any]:
        return []

    def attached(self) -> dict[int, Any]:
        return {}


@pytest.mark.parametrize("is_left", [False, True])
def test_a_cleaning_trims_no_slice_of_a_plan_that_is_being_made(is_left: bool) -> None:
    """`file.delete.delay.ms` may be 0: it says nothing of how long a plan takes."""

    async def main() -> None:
        medium = MemoryMedium()

        async def client_of(clock: ManualClock) -> BasicStreamClient:
            return medium.client(clock)

        def starts() -> list[int]:
            return [row.start for row in medium.rows.values() if row.tags["role"] == "data"]

        async with shared_log(client_of, COMPACT) as t:
            await filled(t.log, 40, 4)

            class Logs:
                async def log(self, _: object) -> Any:
                    return t.log

            metadata = SlowLookups()
            service = LocateService(
                Logs(),  # type: ignore[arg-type]
                metadata,  # type: ignore[arg-type]
                CountedPins(),
                authorize=allow_all,
                limits=LimitsConfig(),
            )
            planning = asyncio.create_task(_located(service, OffsetWindow("t", 0, 0, 40)))
            await metadata.looks.wait()
            await clean(t)
            await turns(50)
            assert starts() == [0]
            if is_left:
                planning.cancel()
            metadata.may_look.set()
            await asyncio.wait({planning})
            await turns(50)
            assert starts() == [40]

    asyncio.run(main())


def test_pins_are_bounded_and_held_pins_can_be_renewed() -> None:
    async def main() -> None:
        service = _service(Held(), pins_max=2)
        pins = [await service.pin(CONTEXT, None, "reader", 5000) for _ in range(2)]
        with pytest.raises(QuotaExceeded, match=r"limits\.pins_max.*pinTtlMs"):
            await service.pin(CONTEXT, None, "reader", 5000)
        assert await service.pin(CONTEXT, pins[0], "", 0) == pins[0]
        await service.unpin(CONTEXT, pins[0])
        assert await service.pin(CONTEXT, None, "reader", 5000)

    asyncio.run(main())


def test_the_call_of_a_client_that_does_not_read_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stuck:
        async def write(self, _: object) -> None:
            await asyncio.Event().wait()

    async def main() -> None:
        monkeypatch.setattr(grpc_admin, "UNREAD_S", 0.01)
        with pytest.raises(DeadlinePassed, match="took nothing"):
            await grpc_admin._write(Stuck(), LocateRecordsResponse())  # type: ignore[arg-type]

    asyncio.run(main())


def test_a_node_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    given_up = threading.Event()

    def hold(_: object, context: grpc.ServicerContext) -> Iterator[LocateRecordsResponse]:
        context.add_callback(given_up.set)
        given_up.wait(60)
        yield LocateRecordsResponse()

    handler = grpc.unary_stream_rpc_method_handler(
        hold,
        request_deserializer=LocateRecordsRequest.FromString,
        response_serializer=LocateRecordsResponse.SerializeToString,
    )
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(grpc_admin.SERVICE, {"LocateRecords": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    monkeypatch.setattr(locate_calls, "ANSWER_TIMEOUT_S", 0.2)
    try:
        with closing(Caller(f"127.0.0.1:{port}")) as caller, pytest.raises(Unavailable):
            locate_calls.locate_records(
                caller, [OffsetWindow("t", 0, 0, 5)], "read_committed", timeout_ms=1
            )
    finally:
        given_up.set()
        server.stop(None).wait()
