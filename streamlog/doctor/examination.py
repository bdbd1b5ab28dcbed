"""`streamlog doctor`: opens the stores of a configuration, checks them, removes what it wrote."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from prometheus_client import CollectorRegistry

from streamlog import settings as settings_module
from streamlog.doctor import disk_checks, machine, meta_checks, ports, store_checks, store_speed
from streamlog.doctor.certificates import check_certificates
from streamlog.doctor.costs import PRICES_DATE, PRICES_OF, request_costs
from streamlog.doctor.findings import Check, CheckOutcome, CheckResult, T, failed
from streamlog.doctor.spare_folder import PREFIX, make_spare, remove_spare
from streamlog.errors import DataInUse, StreamlogError
from streamlog.kvstore.url import RocksUrl
from streamlog.objectstore.trust.scratch import Scratch
from streamlog.objectstore.url import LocalUrl, S3Url, parse_store_url
from streamlog.runtime.clock import SystemClock
from streamlog.runtime.offload import Lane, ThreadOffload
from streamlog.runtime.rand import SystemRandom
from streamlog.wiring import open_metadata_store, open_object_store
from streamlog.wiring.plan import meta_url_of

Say = Callable[[str], None]
_FOLDER_ADVICE = "give this user the right to write there, or name another folder"


class Examination:
    """Examines the node that these settings would start. Calls `say` with each check's name first.

    When it is cancelled, it still removes what it wrote.
    """

    def __init__(
        self,
        settings: settings_module.Settings,
        say: Say,
        kafka_listeners: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`kafka_listeners`: name → HOST:PORT."""
        self._settings = settings
        self._say = say
        self._listeners = {
            "grpc": settings.node.listen,
            "http": settings.node.http_listen,
            **kafka_listeners,
        }
        self._clock = SystemClock()
        self._random = SystemRandom()
        self._offload = ThreadOffload()
        assert settings.node.store is not None
        self._store_url = settings.node.store
        self._url = parse_store_url(self._store_url)

    @property
    def wal(self) -> Literal["disk", "object"]:
        """The mode that the node would choose."""
        wal = self._settings.node.wal or ("disk" if isinstance(self._url, LocalUrl) else "object")
        return "disk" if wal == "disk" else "object"

    async def run(self) -> list[CheckResult]:
        findings: list[CheckResult] = []
        try:
            for part in (
                self._machine,
                self._disk,
                self._logs,
                self._store,
                self._meta,
                self._costs,
            ):
                findings += [finding async for finding in part()]
        finally:
            await self._offload.close()
        return findings

    async def _machine(self) -> AsyncIterator[CheckResult]:
        self._say("versions, machine, ports")
        yield machine.check_versions()
        yield machine.check_memory(self._settings.engine, self._store_url)
        yield machine.check_files(self._settings.limits.connections_max, len(self._listeners))
        for name, address in self._listeners.items():
            yield await self._offload.run(Lane.CPU, ports.check_port, f"port.{name}", address)
        results = await self._offload.run(
            Lane.CPU, check_certificates, self._settings.tls, self._clock
        )
        if results is not None:
            yield results

    async def _disk(self) -> AsyncIterator[CheckResult]:
        if self.wal != "disk":
            return
        folder = self._settings.node.wal_dir
        if folder is None and isinstance(self._url, LocalUrl):
            folder = f"{self._url.path}/wal"
        if folder is None:
            yield CheckResult(
                "disk.sync",
                CheckOutcome.FAIL,
                f"wal=disk with the store {self._url} needs a local folder",
                "give --wal-dir DIR",
            )
            return
        subject = self._disk_subject(folder, self._settings.engine.wal.wal_bytes_max)
        async for result in self._each(disk_checks.CHECKS, subject):
            yield result

    async def _logs(self) -> AsyncIterator[CheckResult]:
        folder = self._settings.node.log_dir
        if folder is not None:
            subject = self._disk_subject(folder, self._settings.broker.log_segment_bytes)
            async for result in self._each(disk_checks.LOG_CHECKS, subject):
                yield result

    def _disk_subject(self, folder: str, bytes_max: int) -> disk_checks.DiskSubject:
        return disk_checks.DiskSubject(
            Path(folder), bytes_max, self._clock, self._offload, self._random
        )

    async def _store(self) -> AsyncIterator[CheckResult]:
        folder = self._url.path if isinstance(self._url, LocalUrl) else None
        async for result in self._in_place("store", folder, self._store_at):
            yield result

    async def _meta(self) -> AsyncIterator[CheckResult]:
        try:
            url = meta_url_of(self._settings.node.meta, self._url)
        except StreamlogError as error:
            yield failed("meta.open", error)
            return
        folder = url.path if isinstance(url, RocksUrl) else None
        async for result in self._in_place("meta", folder, self._meta_at):
            yield result

    async def _in_place(
        self,
        part: str,
        folder: str | None,
        examine: Callable[[str | None], AsyncIterator[CheckResult]],
    ) -> AsyncIterator[CheckResult]:
        """Examines the folder, or a spare one where nothing is in it. None: it is in no folder."""
        self._say(f"{part}.open")
        spare: Path | None = None
        if folder is not None:
            name = f"{PREFIX}{self._random.bytes(8).hex()}"
            try:
                # Not offloaded: a cancellation between would leave it behind.
                spare = make_spare(Path(folder), name)
            except OSError as error:
                what = f"{error.filename}: {error.strerror}"
                yield CheckResult(f"{part}.open", CheckOutcome.FAIL, what, _FOLDER_ADVICE)
                return
        left = ""
        try:
            async for result in examine(folder if spare is None else str(spare)):
                yield result
        finally:
            if spare is not None:
                # An open that a cancellation left to its thread makes files until it ends.
                await self._offload.close()
                left = await self._offload.run(Lane.STORE, remove_spare, spare)
                if left:
                    self._say(f"{spare} could not be removed: {left}")
        if left:
            yield CheckResult(
                f"{part}.cleanup",
                CheckOutcome.WARN,
                f"{spare} could not be removed: {left}",
                "delete that folder",
            )

    async def _store_at(self, folder: str | None) -> AsyncIterator[CheckResult]:
        try:
            store = await open_object_store(
                self._store_url if folder is None else str(LocalUrl(folder)),
                self._settings.engine,
                self._clock,
                self._random,
                self._offload,
                CollectorRegistry(),
            )
        except StreamlogError as error:
            yield failed("store.open", error)
            return
        scratch = Scratch(store, self._clock, self._random)
        left = ""
        try:
            speed = store_speed.CHECKS
            if folder is not None:
                free = (await self._offload.run(Lane.STORE, shutil.disk_usage, folder)).free
                if free < store_speed.LARGE_ROOM_BYTES:
                    speed = store_speed.NEARLY_FULL_CHECKS
            async for result in self._each((*store_checks.CHECKS, *speed), scratch):
                yield result
        finally:
            self._say(f"removing {scratch.prefix}")
            left = await scratch.remove()
            if left:
                self._say(f"{scratch.prefix} could not be removed: {left}")
            await store.close()
            if folder is not None:
                await self._offload.run(Lane.STORE, _remove_empty, Path(folder) / scratch.prefix)
        if left:
            yield CheckResult(
                "store.cleanup",
                CheckOutcome.WARN,
                f"{scratch.prefix} could not be removed: {left}",
                "delete what lies under that prefix",
            )

    async def _meta_at(self, folder: str | None) -> AsyncIterator[CheckResult]:
        url = self._settings.node.meta if folder is None else str(RocksUrl(folder))
        try:
            kv = await open_metadata_store(url, self._store_url, self._clock, self._offload)
        except DataInUse as error:
            yield CheckResult(
                "meta.open",
                CheckOutcome.WARN,
                f"not checked: {error.message.partition(';')[0]}",
                "if that is this node, all is well; to check its metadata store, stop it first",
            )
            return
        except StreamlogError as error:
            yield failed("meta.open", error)
            return
        scratch = meta_checks.MetaScratch(kv, self._clock, self._random)
        left = ""
        try:
            async for result in self._each(meta_checks.CHECKS, scratch):
                yield result
        finally:
            left = await scratch.remove()
            if left:
                self._say(f"{scratch.prefix!r} could not be removed: {left}")
            await kv.close()
        if left:
            yield CheckResult(
                "meta.cleanup",
                CheckOutcome.WARN,
                f"keys under {scratch.prefix.decode()} could not be removed: {left}",
                "run it again when the metadata store answers",
            )

    async def _costs(self) -> AsyncIterator[CheckResult]:
        if not isinstance(self._url, S3Url):
            yield CheckResult(
                "cost.requests",
                CheckOutcome.INFO,
                "requests to a store on this machine cost nothing",
            )
            return
        cost = request_costs(self._settings.engine, wal=self.wal)
        prices = f"{PRICES_OF}, list prices of {PRICES_DATE}"
        month = cost.put_dollars_per_month_max + cost.checkpoint_dollars_per_month_max
        month += cost.list_dollars_per_month
        yield CheckResult(
            "cost.month",
            CheckOutcome.INFO,
            f"at most ${month:.2f} in PUTs and LISTs: "
            f"{cost.put_rate_max_per_s:g} PUTs a second "
            f"(${cost.put_dollars_per_month_max:.2f}), checkpoints "
            f"(${cost.checkpoint_dollars_per_month_max:.2f}), lists "
            f"(${cost.list_dollars_per_month:.2f}); larger batches, and compaction, come on top, "
            f"by the GiB; {prices}",
            figures={"dollars_per_month_max": month},
        )
        yield CheckResult(
            "cost.gib",
            CheckOutcome.INFO,
            f"written in full batches ${cost.put_dollars_per_gib:.5f} "
            f"({cost.puts_per_gib:.0f} PUTs), at most ${cost.put_dollars_per_gib_max:.5f} "
            f"({cost.puts_per_gib_max:.0f} PUTs) beside small ones; "
            f"each time that compaction rewrites it at least "
            f"${cost.rewrite_dollars_per_gib:.5f} ({cost.rewrite_puts_per_gib:.0f} PUTs, "
            f"{cost.rewrite_gets_per_gib:.0f} GETs), once with few streams, twice with many; read "
            f"in sequence, when compacted, ${cost.get_dollars_per_gib_min:.5f} "
            f"({cost.gets_per_gib_min:.0f} GETs) by one reader, up to "
            f"${cost.get_dollars_per_gib_max:.5f} ({cost.gets_per_gib_max:.0f}) where many share "
            "the block cache, and more where streams' parts are shorter than a GET",
            figures={
                "put_dollars_per_gib": cost.put_dollars_per_gib,
                "put_dollars_per_gib_max": cost.put_dollars_per_gib_max,
                "rewrite_dollars_per_gib": cost.rewrite_dollars_per_gib,
                "get_dollars_per_gib_max": cost.get_dollars_per_gib_max,
            },
        )

    async def _each(self, checks: Sequence[Check[T]], subject: T) -> AsyncIterator[CheckResult]:
        for check in checks:
            self._say(check.name)
            yield await check.run(subject)


def _remove_empty(folder: Path) -> None:
    """Removes the empty folders that a local store made for deleted keys. Blocking."""
    paths = sorted(folder.rglob("*"), reverse=True) if folder.is_dir() else []
    for path in (*paths, folder, folder.parent):
        # A folder that is not empty belongs to another examination.
        with contextlib.suppress(OSError):
            path.rmdir()
