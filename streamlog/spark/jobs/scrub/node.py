"""Scrub of a running node: checks its objects as of one moment, while it goes on.

1. The driver pins the node's objects, and renews the pin until the scrub ends.
2. Then it takes a view of the node's metadata (`reading.views`).
3. The checks are the same as offline. Later objects are left to the next scrub.
4. After each wave of tasks the pin must still exist: otherwise a missing object may have been
   deleted rightly, and the wave does not count.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from streamlog.client import Admin, Tls
from streamlog.errors import NotFound, Unavailable
from streamlog.reading.stores import open_store
from streamlog.reading.views import node_view
from streamlog.repair.findings import Progress, RepairReport, no_progress
from streamlog.runtime.clock import SystemClock
from streamlog.runtime.offload import Lane, ThreadOffload
from streamlog.runtime.rand import SystemRandom
from streamlog.spark.cluster.cluster import Cluster, ServerCluster
from streamlog.spark.cluster.pin_keeper import PinKeeper
from streamlog.spark.jobs.scrub.job import scrub_view

PIN_TTL_MS = 600_000
ISOLATION = "read_uncommitted"
"""Irrelevant: the scrub reads no records through the node."""


async def scrub_node(
    spark: Any,
    server: str,
    *,
    store: str | None = None,
    state_file: Path | None = None,
    progress: Progress = no_progress,
    pin_ttl_ms: int = PIN_TTL_MS,
    tls: Tls | None = None,
) -> RepairReport:
    """Scrubs the objects that the node has now. `store`: where this machine and executors find the
    store, if not where the node does.

    Errors: those of scrub; NotFound (the pin was not renewed in time and has ended), Unauthorized.
    """
    clock, random, offload = SystemClock(), SystemRandom(), ThreadOffload()

    async def take_backup() -> bytes:
        return await offload.run(Lane.CPU, _backup, server, tls)

    cluster = ServerCluster(server, ISOLATION, store=store, tls=tls)
    keeper = PinKeeper(ServerCluster(server, ISOLATION, tls=tls), pin_ttl_ms)
    try:
        url = await offload.run(Lane.CPU, lambda: cluster.store_url)
        opened = await open_store(url, clock, offload)
        try:
            pin_id = await offload.run(Lane.CPU, cluster.pin, pin_ttl_ms)
            keeper.keep(pin_id)
            try:
                async with node_view(take_backup, opened, clock, random, offload) as view:
                    return await scrub_view(
                        spark,
                        view,
                        opened,
                        url,
                        offload=offload,
                        state_file=state_file,
                        progress=progress,
                        check_kept=lambda: offload.run(Lane.CPU, _check_pin, cluster, pin_id),
                    )
            finally:
                keeper.let_go()
                await offload.run(Lane.CPU, _unpin, cluster, pin_id)
        finally:
            await opened.close()
    finally:
        await offload.run(Lane.CPU, keeper.close)
        cluster.close()
        await offload.close()


def _check_pin(cluster: Cluster, pin_id: int) -> None:
    if not cluster.renew(pin_id):
        raise NotFound(
            f"pin {pin_id} has ended: objects that were to be checked may have been deleted; run "
            "the scrub again"
        )


def _unpin(cluster: Cluster, pin_id: int) -> None:
    try:
        cluster.unpin(pin_id)
    except Unavailable:
        """The pin ends by itself."""


def _backup(server: str, tls: Tls | None) -> bytes:
    with Admin(server, tls=tls) as admin:
        return b"".join(admin.backup())
