"""Scrub of a node that runs: what it had at one moment is checked, while it goes on.

1. The driver pins the node's objects, and renews the pin until it is done.
2. Then it takes the node's metadata: its keys at one revision, as for a backup, and a copy of the
   checkpoint files that they name, for the node deletes those when it has newer ones.
3. The walk and the checks are those at rest. What came after the snapshot is for the next scrub.
4. After each wave of tasks the pin must still be there: else an object that is missing may have
   been deleted by right, and the wave counts for nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from streamlog.client import Admin
from streamlog.errors import NotFound, Unavailable
from streamlog.reading.stores import open_store
from streamlog.reading.views import node_view
from streamlog.repair.findings import Progress, Report, no_progress
from streamlog.runtime.clock import SystemClock
from streamlog.runtime.offload import Lane, ThreadOffload
from streamlog.runtime.rand import SystemRandom
from streamlog.spark.cluster.cluster import Cluster, ServerCluster
from streamlog.spark.cluster.pin_keeper import PinKeeper
from streamlog.spark.jobs.scrub.job import scrub_view

PIN_TTL_MS = 600_000
ISOLATION = "read_uncommitted"
"""No record is read."""


async def scrub_node(
    spark: Any,
    server: str,
    *,
    store: str | None = None,
    state_file: Path | None = None,
    progress: Progress = no_progress,
    pin_ttl_ms: int = PIN_TTL_MS,
) -> Report:
    """As `scrub` of what the node has in objects now. `store`: where this machine and executors
    find the store, if not where the node does.

    Errors: as of scrub; NotFound (the pin has ended: nothing renewed it in time), Unauthorized.
    """
    clock, random, offload = SystemClock(), SystemRandom(), ThreadOffload()

    async def take_backup() -> bytes:
        return await offload.run(Lane.CPU, _backup, server)

    cluster = ServerCluster(server, ISOLATION, store=store)
    keeper = PinKeeper(ServerCluster(server, ISOLATION), pin_ttl_ms)
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
        """It ends by itself."""


def _backup(server: str) -> bytes:
    with Admin(server) as admin:
        return b"".join(admin.backup())
