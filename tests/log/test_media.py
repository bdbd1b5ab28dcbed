"""The two media that ship for tests keep the stream contract, and carry shared logs."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest

from streamlog.errors import Corrupt
from streamlog.model.batch import CreateStreamOptions, OpenStreamOptions
from streamlog.runtime.offload import ThreadOffload
from streamlog.testing.basic_streams import BasicStreamClient
from streamlog.testing.clocks import ManualClock
from streamlog.testing.file_streams import FileMedium
from streamlog.testing.logs.condition_conformance import ConditionConformance
from streamlog.testing.logs.log_conformance import LogConformance
from streamlog.testing.logs.transaction_conformance import TransactionConformance
from streamlog.testing.memory_streams import MemoryMedium
from streamlog.testing.stream_conformance import StreamConformance, record
from tests.log.harness import shared_log

ROOM = 1000


class MemoryUnderTest:
    room_bytes = ROOM

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.medium = MemoryMedium()
        self.client = self.medium.client(self.clock, budget_bytes=ROOM)

    async def restarted(self) -> None:
        await self.client.stop()
        self.client = self.medium.client(self.clock, budget_bytes=ROOM)

    async def crashed(self) -> None:
        await self.client.kill()
        self.client = self.medium.client(self.clock, budget_bytes=ROOM)

    async def other(self) -> BasicStreamClient:
        return self.medium.client(self.clock)

    def hold(self) -> None:
        self.client.hold()

    def release(self) -> None:
        self.client.release()

    def deadline(self, seconds: float) -> float:
        return self.clock.monotonic() + seconds


class FileUnderTest(MemoryUnderTest):
    def __init__(self, folder, offload) -> None:
        self.clock = ManualClock()
        self.folder = folder
        self.offload = offload

    async def start(self) -> None:
        self.medium = await FileMedium.open(self.folder, self.offload)  # type: ignore[assignment]
        self.client = self.medium.client(self.clock, budget_bytes=ROOM)

    async def restarted(self) -> None:
        await self.client.stop()
        await self.start()

    async def crashed(self) -> None:
        await self.client.kill()
        await self.start()


class TestMemoryStreams(StreamConformance):
    @asynccontextmanager
    async def make(self):
        under_test = MemoryUnderTest()
        yield under_test
        await under_test.client.stop()


class TestFileStreams(StreamConformance):
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path):
        self.path = tmp_path

    @asynccontextmanager
    async def make(self):
        offload = ThreadOffload()
        under_test = FileUnderTest(self.path, offload)
        await under_test.start()
        yield under_test
        await under_test.client.stop()
        await offload.close()

    def test_a_torn_tail_is_cut_and_damage_before_it_is_reported(self):
        async def test(m: FileUnderTest):
            stream = await m.client.create_and_open_stream(CreateStreamOptions())
            for text in ("first", "second"):
                await stream.append(record(text))
            path = m.folder / f"{stream.stream_id}.stream"
            whole = path.read_bytes()
            path.write_bytes(whole[:-3])
            await m.crashed()
            stream = await m.client.open_stream(stream.stream_id, OpenStreamOptions())
            assert stream.next_offset == 1
            damaged = bytearray(whole)
            damaged[60] ^= 1
            path.write_bytes(damaged)
            with pytest.raises(Corrupt):
                await m.crashed()

        self.run(test)  # type: ignore[arg-type]


class TestSharedLogOverMemory(ConditionConformance, LogConformance, TransactionConformance):
    def make(self, configs):
        medium = MemoryMedium()

        async def client_of(clock):
            return medium.client(clock)

        return shared_log(client_of, configs)


class TestSharedLogOverFiles(ConditionConformance, LogConformance, TransactionConformance):
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path):
        self.path = tmp_path

    @asynccontextmanager
    async def make(self, configs):
        offload = ThreadOffload()

        async def client_of(clock):
            return (await FileMedium.open(self.path, offload)).client(clock)

        async with shared_log(client_of, configs) as under_test:
            yield under_test
        await offload.close()
