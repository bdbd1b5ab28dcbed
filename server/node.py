"""A node: an engine opened from settings, the server over it, and their life as a process.

SIGINT, SIGTERM or SIGHUP drains and closes, within a bound; a second SIGINT or SIGTERM stops at
once, as a crash would (`stopping.py`). A start waits for a store or metadata that is away
(`starting.py`), and answers clients as soon as that takes longer than a second. Any other failure
to start is one line on stderr and exit code 1.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from prometheus_client import disable_created_metrics

import streamlog
from streamlog.engine.config import StreamEngineConfig
from streamlog.errors import Invalid, StreamlogError
from streamlog.kvstore.url import RocksUrl
from streamlog.metadata.compaction.pins import Pins
from streamlog.metadata.keys.space import prefix_of
from streamlog.objectstore.url import LocalUrl, parse_store_url
from streamlog.repair.backup.backup import backup
from streamlog.runtime import logs
from streamlog.runtime.allocator import collect_rarely, keep_large_blocks
from streamlog.runtime.clock import SystemClock
from streamlog.runtime.disk.lockfile import publish
from streamlog.runtime.threads import switch_often
from streamlog.server.banner import Banner
from streamlog.server.composition import Backend
from streamlog.server.listeners.checks import with_usable_listeners
from streamlog.server.listeners.listeners import Listeners, node_listeners
from streamlog.server.node_server import NodeServer
from streamlog.server.starting import WORDS_EVERY_S, Starting, open_patiently
from streamlog.server.stopping import SLACK_S, Signals, StopBound
from streamlog.server.tls.node_tls import NodeTls
from streamlog.settings import Settings
from streamlog.settings.node import NodeConfig
from streamlog.wiring import Components, lock_paths
from streamlog.wiring.plan import wal_folder

if TYPE_CHECKING:
    from streamlog.wal.config import WalMode
    from streamlog.wiring import OpenEngine

log = logging.getLogger(__name__)

DEV_DATA = "streamlog-data"
QUIET_S = 1.0
"""A start that takes longer answers clients meanwhile."""
STOP_WAITING_S = 3.0


def with_places(node: NodeConfig, mode: str) -> NodeConfig:
    """`data` spelled out as store, meta, wal_dir and log_dir; a dev node has a default for it.

    Errors: Invalid, when there is no place for the data.
    """
    data = node.data
    if data is None and node.store is None:
        if mode != "dev":
            raise Invalid(
                "where is the data? give --data DIR (a folder for everything), or --store URL with "
                "--meta URL"
            )
        data = DEV_DATA
    if data is None:
        return node
    if node.store is not None:
        raise Invalid("give --data DIR or --store URL, not both")
    folder = Path(data).expanduser().absolute()
    return replace(
        node,
        data=str(folder),
        store=str(LocalUrl(f"{folder}/objects")),
        meta=node.meta or str(RocksUrl(f"{folder}/meta")),
        wal_dir=node.wal_dir or str(folder / "wal"),
        log_dir=node.log_dir or str(folder / "logs"),
    )


def _with_compactor(engine: StreamEngineConfig, store: str) -> StreamEngineConfig:
    """The config with compaction in a process of its own, unless the settings choose."""
    if engine.compaction.compaction_process != "auto" or store.startswith("memory:"):
        return engine
    return replace(engine, compaction=replace(engine.compaction, compaction_process="process"))


class Node:
    """An engine and the server over it; of use between `start` and `stop`."""

    def __init__(self, settings: Settings, *, mode: str = "serve") -> None:
        settings = settings.for_mode(mode)
        self.mode = mode
        self.settings = replace(settings, node=with_places(settings.node, mode))
        self._exit = AsyncExitStack()
        self._server: NodeServer | None = None
        self.engine: OpenEngine | None = None
        self.stop_bound = StopBound()

    @property
    def tls(self) -> NodeTls | None:
        """The listeners' certificates; None: they speak no TLS, or the node has not started."""
        return None if self._server is None else self._server.tls

    async def start(self) -> Banner:
        """Opens the engine, waiting for its store and metadata, and serves; returns the addresses.

        Errors: DataInUse, ForeignCluster, LineageFenced, UnsupportedVersion, StoreUntrusted,
        Invalid, Unauthorized, Corrupt, WalPending; Unavailable of what waiting cannot mend, or with
        `wait_at_start` off. Cancelled, nothing stays open.
        """
        self.settings, note = with_usable_listeners(self.settings, self.mode)
        starting = Starting(SystemClock())
        listeners = node_listeners(self.settings, lambda: starting.reason)
        try:
            # The node knows its addresses before the engine registers it with the cluster.
            await listeners.bind()
            self._exit = await self._open_and_listen(listeners, starting)
            assert self.engine is not None
            server = self._server = NodeServer(backend_of(self.engine), self.settings, listeners)
            await server.start()
            banner = await self._banner(self.engine, listeners, note)
        except BaseException:
            async with self._exit:
                if self._server is not None:
                    await self._server.stop(0)
                await listeners.stop(0)
            raise
        _publish_address(banner)
        return banner

    async def _open_and_listen(self, listeners: Listeners, starting: Starting) -> AsyncExitStack:
        """Opens the engine, and answers clients meanwhile if that takes long; what closes it.

        When it raises, the engine is closed.
        """
        opening = asyncio.create_task(self._open(starting), name="node.open")
        listening = asyncio.create_task(
            self._listen_meanwhile(listeners, starting, opening), name="node.listen_meanwhile"
        )
        try:
            await asyncio.wait({opening, listening}, return_when=asyncio.FIRST_COMPLETED)
            if not opening.done():
                listening.result()  # It ends before `opening` only by an error.
            engine_exit = await opening
            await listening
            return engine_exit
        except BaseException:
            opening.cancel()
            await asyncio.gather(opening, listening, return_exceptions=True)
            if opening.done() and not opening.cancelled() and opening.exception() is None:
                await opening.result().aclose()
            raise

    async def _open(self, starting: Starting) -> AsyncExitStack:
        """Opens `engine`; returns what closes it."""

        async def attempt() -> AsyncExitStack:
            node = self.settings.node
            assert node.store is not None
            async with AsyncExitStack() as stack:
                self.engine = await stack.enter_async_context(
                    streamlog.open(
                        node.store,
                        meta=node.meta,
                        wal=cast("WalMode | None", node.wal),
                        wal_dir=node.wal_dir,
                        log_dir=node.log_dir,
                        accept_data_loss=node.accept_data_loss,
                        node_id=node.node_id,
                        config=_with_compactor(self.settings.engine, node.store),
                        logs=self.settings.log,
                        transactions=self.settings.transaction_config(),
                        tiers=self.settings.remote_log_config(),
                        components=Components(log_style=(node.log_format, node.log_level)),
                        check_store=True,
                        on_step=starting.begin_step,
                    )
                )
                return stack.pop_all()

        if not self.settings.node.wait_at_start:
            return await attempt()
        return await open_patiently(attempt, starting)

    async def _listen_meanwhile(
        self, listeners: Listeners, starting: Starting, opening: asyncio.Task[AsyncExitStack]
    ) -> None:
        """Answers clients, with what the node waits for, once opening fails or takes long.

        Before that their connections wait: most starts are over by then, and a client that is
        refused pauses before it tries again.
        """
        failed = asyncio.create_task(starting.is_waiting.wait())
        try:
            await asyncio.wait(
                {opening, failed}, timeout=QUIET_S, return_when=asyncio.FIRST_COMPLETED
            )
            if opening.done():
                return
            await listeners.start()
            log.info(
                "listening while the node starts",
                extra={endpoint.name: endpoint.address for endpoint in listeners.endpoints},
            )
            while not opening.done():
                await asyncio.wait({opening}, timeout=WORDS_EVERY_S)
                if not opening.done():
                    starting.log_reason()
        finally:
            failed.cancel()

    async def _banner(self, engine: OpenEngine, listeners: Listeners, note: str) -> Banner:
        status = await engine.status()
        node = self.settings.node
        assert node.store is not None
        wal_dir = wal_folder(node.wal_dir, parse_store_url(node.store))
        return Banner(
            version=version("streamlog-engine"),
            mode=self.mode,
            cluster_id=status.cluster_id,
            node_id=status.node_id,
            grpc=listeners.endpoint("grpc").address,
            http=listeners.endpoint("http").address,
            store=status.store_url,
            meta=status.meta_url,
            wal=status.wal,
            wal_dir=str(wal_dir or "") if status.wal == "disk" else "",
            log_dir=node.log_dir or "",
            insecure=listeners.is_insecure,
            pid=os.getpid(),
            note=note,
            listeners=listeners.endpoints,
            tls="" if listeners.tls is None else listeners.tls.describe(),
            https=listeners.endpoint("http").protocol == "https",
            requires_certificates=listeners.tls is not None and listeners.tls.requires_certificates,
        )

    async def stop(self) -> None:
        """Drains, ends the listeners, closes the engine, whatever goes wrong before it."""
        async with self._exit:
            if self._server is not None:
                await self._server.stop(self.settings.node.shutdown_grace_ms / 1000)

    async def serve(self, announce: Callable[[Banner], None]) -> None:
        """Runs until a signal, or until the engine fails for good. Errors: as for `start`."""
        self.stop_bound.prepare()
        with Signals(on_first=lambda: self.stop_bound.begin(self._stop_s)) as signals:
            banner = await self._start_unless(signals.came)
            if banner is None:
                return
            announce(banner)
            failure = await self._until(signals.came)
            await self._stop_in_time(str(failure) if failure else "signal")
            if failure is not None:
                raise failure

    @property
    def _stop_s(self) -> float:
        """How long a stop may take."""
        node, append = self.settings.node, self.settings.engine.append
        return (node.shutdown_grace_ms + append.drain_timeout_ms) / 1000 + SLACK_S

    async def _stop_in_time(self, reason: str) -> None:
        """`stop`, and says meanwhile what it waits for. The process ends if it takes too long."""
        assert self.engine is not None
        self.stop_bound.begin(self._stop_s)
        log.info("draining", extra={"reason": reason, "bound_s": f"{self._stop_s:g}"})
        stop = asyncio.create_task(self.stop(), name="node.stop")
        while not stop.done():
            await asyncio.wait({stop}, timeout=WORDS_EVERY_S)
            if not stop.done():
                waits_for = self.engine.stop_waits_for() or "uploads and threads"
                pending_bytes = self.engine.engine.pending_upload_bytes
                log.warning(
                    "still stopping; a second signal ends it at once",
                    extra={"waits_for": waits_for, "pending_bytes": pending_bytes},
                )
        await stop

    async def _start_unless(self, ended: asyncio.Event) -> Banner | None:
        """Starts the node; None if a signal came first. Then nothing stays open."""
        start = asyncio.create_task(self.start(), name="node.start")
        signalled = asyncio.create_task(ended.wait())
        try:
            await asyncio.wait({start, signalled}, return_when=asyncio.FIRST_COMPLETED)
            if start.done():
                return start.result()
            log.info("stopped before the node was open", extra={"reason": "signal"})
            start.cancel()
            await asyncio.wait({start}, timeout=STOP_WAITING_S)
            if not start.done():
                # A request to a store that hangs blocks a thread; nothing depends on that thread.
                logging.shutdown()
                os._exit(0)
            if not start.cancelled() and start.exception() is None:
                await self.stop()
            return None
        finally:
            signalled.cancel()

    async def _until(self, ended: asyncio.Event) -> StreamlogError | None:
        """Waits for the signal, or for a failure of the engine, which it returns."""
        assert self.engine is not None
        async with asyncio.TaskGroup() as group:
            failed = group.create_task(self.engine.wait_stopped())
            waiting = group.create_task(ended.wait())
            await asyncio.wait((failed, waiting), return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            failure = failed.result() if failed.done() else None
            failed.cancel()
        return failure


def _publish_address(banner: Banner) -> None:
    """Writes the node's gRPC address into its lock files, for the error of a second node."""
    for path in lock_paths(banner.meta, banner.wal_dir):
        try:
            publish(path, banner.grpc)
        except OSError as error:
            log.warning("address not published", extra={"path": path, "error": str(error)})


def backend_of(engine: OpenEngine) -> Backend:
    """What a server needs of an open engine."""

    async def is_live(object_id: int) -> bool:
        return await engine.metadata.object(object_id) is not None

    async def status() -> dict[str, Any]:
        fields = asdict(await engine.status())
        del fields["queued_bytes"]
        return {"version": version("streamlog-engine"), **fields}

    return Backend(
        streams=engine.streams,
        kv=engine.kv,
        kv_revision=engine.kv_store.revision,
        logs=engine.logs,
        transactions=engine.transactions,
        store=engine.store,
        is_live_object=is_live,
        metadata=engine.metadata,
        pins=Pins(engine.kv_store, prefix_of(engine.metadata.cluster_id)),
        status=status,
        backup=lambda: backup(engine.kv_store, clock=engine.clock, offload=engine.offload),
        is_alive=lambda: engine.engine.failure is None,
        not_ready_reason=engine.not_ready_reason,
        read_bytes=lambda: engine.engine.blocks.received_bytes,
        progress=engine.progress,
        registry=engine.registry,
        clock=engine.clock,
        random=engine.random,
        offload=engine.offload,
        cluster_id=engine.metadata.cluster_id,
        compactor=engine.compactor,
        tiers=engine.tiers,
    )


def run(
    settings: Settings, *, mode: str = "serve", json: bool = False, command: str = "streamlog"
) -> int:
    """Runs a node until it is stopped; returns the exit code.

    `command`: how the user typed our name, for the hints in the banner.
    """
    keep_large_blocks()
    collect_rarely()
    switch_often()
    # The creation time of each counter would be a third of the page, and has no reader.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    logs.set_up(sys.stderr, style=settings.node.log_format, level=settings.node.log_level)

    def announce(banner: Banner) -> None:
        try:
            print(banner.as_json() if json else banner.as_text(command), flush=True)
        except OSError as error:
            # Such as a closed stdout. The node is of use without its banner.
            log.warning("banner not printed", extra={"grpc": banner.grpc, "error": str(error)})

    try:
        node = Node(settings, mode=mode)
        try:
            asyncio.run(node.serve(announce))
        finally:
            node.stop_bound.end()
    except StreamlogError as error:
        print(
            f"streamlog: {type(error).__name__}: {' '.join(error.message.split())}", file=sys.stderr
        )
        return 1
    return 0
