"""A node that is started while its store is away waits, says what for, and serves later."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

import streamlog
from streamlog.client import Admin, Consumer, Producer
from streamlog.codec.records import decode
from streamlog.compaction.plan.config import CompactionConfig
from streamlog.demo.ports import free_port
from streamlog.demo.s3_server import S3Server
from streamlog.engine.config import StreamEngineConfig
from streamlog.errors import (
    AlreadyExists,
    Corrupt,
    DiskFull,
    ForeignCluster,
    MetadataUnavailable,
    StoreUnavailable,
    StoreUntrusted,
    StreamlogError,
    Unauthorized,
    Unavailable,
)
from streamlog.kvstore.memory.store import MemoryKVStore
from streamlog.model.partition import TopicPartition
from streamlog.objectstore.interface import ObjectInfo
from streamlog.objectstore.memory import MemoryObjectStore
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.rand import SeededRandom
from streamlog.server.node import Node
from streamlog.server.starting import Starting, open_patiently
from streamlog.settings import load
from streamlog.testing.torn_disk import TornDisk
from streamlog.v1 import admin_pb2
from streamlog.v1.admin_pb2_grpc import AdminServiceStub
from streamlog.v1support.errors import from_rpc_error
from streamlog.wal.config import WalMode
from streamlog.wiring import Components, OpenEngine
from tests.engine.remote import InlineOffload, LoopClock, virtually
from tests.support.command import environment
from tests.support.s3 import BUCKET
from tests.support.server_harness import batch

OUTAGE_S = 600.0
TP = TopicPartition("t", 0)
STORE_CALLS = ("put", "put_if_match", "get", "head", "list", "delete")
KV_CALLS = ("range", "txn", "revision", "grant_lease", "keep_alive", "compact")
CALLS = frozenset((*STORE_CALLS, *KV_CALLS))


class _Away:
    """A part that is away for a while, in virtual time: each call waits a bit, then fails."""

    is_away = False

    def __getattribute__(self, name: str) -> Any:
        attribute = super().__getattribute__(name)
        if name not in CALLS or not self.is_away:
            return attribute
        error = StoreUnavailable if isinstance(self, MemoryObjectStore) else MetadataUnavailable

        async def call(*_: Any, **__: Any) -> Any:
            await asyncio.sleep(5)
            raise error("nobody listens there")

        return call


class AwayStore(_Away, MemoryObjectStore):
    pass


class AwayKV(_Away, MemoryKVStore):
    pass


class Machine:
    """The disk, store and metadata, which outlive the node's process, and that process."""

    def __init__(self, mode: WalMode) -> None:
        self.mode: WalMode = mode
        self.clock = LoopClock()
        self.store = AwayStore(self.clock)
        self.kv = AwayKV(self.clock)
        self.disk = TornDisk(SeededRandom(3))
        self.engine: OpenEngine | None = None
        self.starting: Starting | None = None
        self._life: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._life = asyncio.create_task(self._live())

    async def _live(self) -> None:
        self.starting = starting = Starting(self.clock)

        async def attempt() -> tuple[AsyncExitStack, OpenEngine]:
            parts = Components(
                clock=self.clock,
                random=SeededRandom(7),
                offload=InlineOffload(),
                disk=self.disk if self.mode == "disk" else None,
                store=self.store,
                kv=self.kv,
            )
            async with AsyncExitStack() as stack:
                engine = await stack.enter_async_context(
                    streamlog.open(
                        "s3://bucket/prefix",
                        meta="memory://",
                        wal=self.mode,
                        config=StreamEngineConfig(
                            compaction=CompactionConfig(compaction_process="off")
                        ),
                        components=parts,
                        check_store=True,
                        on_step=starting.begin_step,
                    )
                )
                return stack.pop_all(), engine

        stack, engine = await open_patiently(attempt, starting)
        async with stack:
            self.engine = engine
            try:
                await asyncio.Event().wait()
            finally:
                self.engine = None
                await engine.kill()

    async def kill(self) -> None:
        assert self._life is not None
        self._life.cancel()
        await asyncio.wait({self._life})
        self.disk.restart()

    async def serving(self) -> OpenEngine:
        """A client that tries again after every error."""
        while (engine := self.engine) is None:  # noqa: ASYNC110
            await asyncio.sleep(1)
        return engine


class Clients:
    """A producer and a reader, which see the outage as retriable errors alone."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.acknowledged: dict[int, bytes] = {}
        self.read: dict[int, bytes] = {}
        self.is_over = False

    async def produce(self) -> None:
        number = 0
        while not self.is_over:
            value = b"%06d" % number
            try:
                log = await (await self.machine.serving()).logs.log(TP)
                async with asyncio.timeout(30):
                    outcome = await (await log.append(batch(value)))
            except (StreamlogError, TimeoutError):
                await asyncio.sleep(1)
                continue
            self.acknowledged[outcome.base_offset] = value
            number += 1
            await asyncio.sleep(0.2)

    async def consume(self) -> None:
        offset = 0
        while not self.is_over or len(self.read) < max(self.acknowledged) + 1:
            try:
                log = await (await self.machine.serving()).logs.log(TP)
                # One batch of one record at a time.
                fetched = await log.fetch(offset, 1)
            except StreamlogError:
                await asyncio.sleep(1)
                continue
            if fetched.next_offset == offset:
                await asyncio.sleep(0.2)
                continue
            (record,) = decode(b"".join(map(bytes, fetched.parts)))
            assert record[3] is not None
            self.read[offset] = record[3]
            offset = fetched.next_offset


@pytest.mark.parametrize("dead", ["store", "metadata"])
@pytest.mark.parametrize("mode", ["disk", "object"])
def test_an_outage_of_ten_minutes_with_three_kills_of_the_node(mode: WalMode, dead: str) -> None:
    async def scenario() -> None:
        machine = Machine(mode)
        clients = Clients(machine)
        machine.start()
        await (await machine.serving()).logs.create_topic("t", 1)
        producer = asyncio.create_task(clients.produce())
        reader = asyncio.create_task(clients.consume())
        await asyncio.sleep(10)
        away: _Away = machine.store if dead == "store" else machine.kv
        away.is_away = True
        went_at = machine.clock.monotonic()
        for alive_s in (20, 150, 200):
            await asyncio.sleep(alive_s)
            await machine.kill()
            await asyncio.sleep(1)
            machine.start()
        before = len(clients.acknowledged)
        assert before > 20
        await asyncio.sleep(OUTAGE_S - (machine.clock.monotonic() - went_at))
        assert machine.engine is None
        assert machine.starting is not None
        name = "the object store s3://bucket/prefix" if dead == "store" else "memory://"
        assert name in machine.starting.reason
        assert "nobody listens there" in machine.starting.reason
        away.is_away = False
        await asyncio.sleep(60)
        clients.is_over = True
        await asyncio.gather(producer, reader)
        assert len(clients.acknowledged) > before + 100
        for offset, value in clients.acknowledged.items():
            assert clients.read[offset] == value
        await machine.kill()

    assert virtually(scenario) > OUTAGE_S


def test_the_reason_of_a_start_leaves_out_failures_of_earlier_steps() -> None:
    async def scenario() -> None:
        starting = Starting(LoopClock())
        reasons: list[str] = []

        async def attempt() -> None:
            starting.begin_step("the object store s3://bucket")
            if not reasons:
                reasons.append("")
                raise StoreUnavailable("nobody listens there")
            starting.begin_step("the streams")
            reasons.append(starting.reason)

        opening = asyncio.ensure_future(open_patiently(attempt, starting))
        await asyncio.sleep(0.1)
        assert "the object store s3://bucket" in starting.reason
        assert "nobody listens there" in starting.reason
        await opening
        assert "waits for the streams" in reasons[1]
        assert "nobody listens there" not in reasons[1]

    virtually(scenario)


@pytest.mark.parametrize(
    "error",
    [
        ForeignCluster("another cluster"),
        Corrupt("damage"),
        StoreUntrusted("no conditional put", check="store.if_absent"),
        Unauthorized("AccessDenied"),
        DiskFull("no room", path="/x"),
        Unavailable("a folder that cannot be written", path="/x", waiting_helps=False),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_that_waiting_cannot_mend_end_the_start(error: StreamlogError) -> None:
    async def scenario() -> None:
        tries = 0

        async def attempt() -> None:
            nonlocal tries
            tries += 1
            raise StoreUnavailable("away") if tries < 3 else error

        with pytest.raises(type(error)):
            await open_patiently(attempt, Starting(LoopClock()))
        assert tries == 3

    virtually(scenario)


@pytest.mark.parametrize("fails", [1, 2])
def test_an_outage_during_the_quick_check_is_not_taken_for_a_broken_contract(fails: int) -> None:
    """A store forgets a conditional put during an outage; if it does so again, it is refused."""

    class Confused(MemoryObjectStore):
        left = fails

        async def put(
            self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False
        ) -> ObjectInfo:
            try:
                return await super().put(key, parts, if_absent=if_absent)
            except AlreadyExists:
                if not self.left:
                    raise
                self.left -= 1
                return await super().put(key, parts)

    async def scenario() -> None:
        parts = Components(
            store=Confused(LoopClock()), kv=MemoryKVStore(LoopClock()), offload=InlineOffload()
        )

        async def opened() -> None:
            async with streamlog.open(
                "s3://bucket/prefix", meta="memory://", components=parts, check_store=True
            ):
                pass

        if fails == 1:
            await opened()
        else:
            with pytest.raises(StoreUntrusted):
                await opened()

    asyncio.run(scenario())


# processes


class Waiting:
    """A `serve` process that may have no banner yet; its addresses stay the same over starts."""

    def __init__(self, folder: Path, store: str, wal: str) -> None:
        self.grpc, self.http = (f"127.0.0.1:{free_port()}" for _ in range(2))
        self.log = folder / "node.log"
        self._arguments = [
            *("--store", store, "--meta", f"rocksdb://{folder}/meta", "--wal", wal),
            *("--listen", self.grpc, "--http-listen", self.http, "--json"),
            *(("--wal-dir", str(folder / "wal")) if wal == "disk" else ()),
        ]
        self._process: subprocess.Popen[str] | None = None

    @contextmanager
    def run(self, *more: str) -> Iterator[subprocess.Popen[str]]:
        with self.log.open("a") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "streamlog.cli.main", "serve", *self._arguments, *more],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment(),
            )
        self._process = process
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate(timeout=30)

    def page(self, path: str) -> tuple[int, str]:
        """Status and text, as soon as the node listens."""
        while True:
            try:
                with urllib.request.urlopen(f"http://{self.http}{path}", timeout=10) as answer:
                    return answer.status, answer.read().decode()
            except urllib.error.HTTPError as error:
                return error.code, error.read().decode()
            except urllib.error.URLError:
                assert self._process is not None
                assert self._process.poll() is None, self.log.read_text()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """An S3 server of its own, with a bucket."""
    with S3Server(tmp_path / "s3") as started:
        started.make_bucket(BUCKET)
        for name, value in started.environment.items():
            monkeypatch.setenv(name, value)
        yield started


def check_that_it_waits(node: Waiting) -> None:
    status, text = node.page("/readyz")
    assert status == 503
    assert "starting: waits for the object store s3://" in text
    assert node.page("/livez")[0] == 200
    assert "streamlog_ready 0.0" in node.page("/metrics")[1]
    with grpc.insecure_channel(node.grpc) as channel:
        with pytest.raises(grpc.RpcError) as raised:
            AdminServiceStub(channel).GetStatus(admin_pb2.GetStatusRequest(), wait_for_ready=True)
        assert raised.value.code() == grpc.StatusCode.UNAVAILABLE
        error = from_rpc_error(raised.value, may_have_happened=True)
    assert type(error) is Unavailable
    assert error.is_retryable
    assert error.has_no_side_effects
    assert "starting: waits for the object store s3://" in error.message


@pytest.mark.slow
def test_clients_go_on_by_themselves_when_the_store_comes_back(
    server: S3Server, tmp_path: Path
) -> None:
    node = Waiting(tmp_path, server.url(BUCKET, "waits"), "disk")
    with Producer(node.grpc) as producer, Consumer(node.grpc) as consumer:
        with node.run() as process:
            assert process.stdout is not None
            assert process.stdout.readline()
            with Admin(node.grpc) as admin:
                admin.create_topic("t", 1)
            consumer.assign([("t", 0)])
            assert producer.send("t", b"before").result(30).offset == 0
            server.kill()
            # wal=disk: a node that runs goes on.
            assert producer.send("t", b"in the log alone").result(30).offset == 1
            process.kill()
        sent = producer.send("t", b"sent while node and store were away")
        with node.run():
            check_that_it_waits(node)
        with node.run() as process:
            check_that_it_waits(node)
            server.start()
            assert sent.result(60).offset == 2
            values: list[bytes | None] = []
            while len(values) < 3:
                values += [record.value for record in consumer.poll(10)]
            assert values == [
                b"before",
                b"in the log alone",
                b"sent while node and store were away",
            ]
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["grpc"] == node.grpc
            assert node.page("/readyz") == (200, "ready\n")
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "some")


@pytest.mark.usefixtures("credentials")
@pytest.mark.parametrize("how", ["refuses", "hangs"])
def test_a_signal_ends_the_waiting(how: str, tmp_path: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        if how == "hangs":
            silent.listen(64)
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        store = f"s3://b/p?endpoint={endpoint}&region=r&path_style=true"
        node = Waiting(tmp_path, store, "object")
        with node.run() as process:
            assert node.page("/readyz")[0] == 503
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
            assert process.stdout is not None
            assert process.stdout.read() == ""
        assert "Traceback" not in node.log.read_text()


@pytest.mark.usefixtures("credentials")
def test_no_wait_ends_with_the_error(tmp_path: Path) -> None:
    store = f"s3://b/p?endpoint=http://127.0.0.1:{free_port()}&region=r&path_style=true"
    node = Waiting(tmp_path, store, "object")
    with node.run("--no-wait", "--set", "engine.store.request_deadline_ms=500") as process:
        assert process.wait(60) == 1
    last_line = node.log.read_text().splitlines()[-1]
    assert last_line.startswith("streamlog: StoreUnavailable: ")
    assert "is it up" in last_line


@pytest.mark.parametrize("how", ["fails", "is cancelled"])
def test_a_start_that_ends_after_the_node_was_open_leaves_nothing_open(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the engine and its listeners stayed, and kept the data from the next start."""
    flags = {"listen": "127.0.0.1:0", "http_listen": "127.0.0.1:0", "data": str(tmp_path / "data")}

    async def main() -> None:
        at_its_end = asyncio.Event()

        async def status(_: OpenEngine) -> Any:
            at_its_end.set()
            if how == "fails":
                raise MetadataUnavailable("it left just now")
            await asyncio.Event().wait()

        node = Node(load(None, {}, flags), mode="dev")
        with monkeypatch.context() as patch:
            patch.setattr(OpenEngine, "status", status)
            start = asyncio.create_task(node.start())
            await at_its_end.wait()
            if how == "is cancelled":
                start.cancel()
            with pytest.raises((MetadataUnavailable, asyncio.CancelledError)):
                await start
        again = Node(load(None, {}, flags), mode="dev")
        await again.start()
        await again.stop()

    asyncio.run(main())
