"""Renews pins from a thread."""

from __future__ import annotations

import logging
import threading

from streamlog.errors import StreamlogError
from streamlog.spark.cluster.cluster import Cluster

log = logging.getLogger(__name__)

RENEWALS_PER_TTL = 3
"""A pin is renewed so many times within its lifetime."""
CLOSE_WAIT_S = 5.0
"""How long the end of a query waits for a renewal under way, whose node may be away."""


class PinKeeper:
    """Renews pins from a thread of its own until `let_go`."""

    def __init__(self, cluster: Cluster, ttl_ms: int) -> None:
        """Owns `cluster`, which no other thread may use; the thread closes it."""
        self._cluster = cluster
        self._interval_s = ttl_ms / 1000 / RENEWALS_PER_TTL
        self._changed = threading.Condition()
        self._pin_ids: list[int] = []
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def keep(self, pin_id: int) -> None:
        with self._changed:
            self._pin_ids.append(pin_id)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="pins", daemon=True)
                self._thread.start()

    def let_go(self) -> list[int]:
        """Stops renewing, and returns the pins, which the caller removes."""
        with self._changed:
            pin_ids, self._pin_ids = self._pin_ids, []
            return pin_ids

    def close(self) -> None:
        """Waits CLOSE_WAIT_S at most: a renewal under way then ends behind it."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread is None:
            self._cluster.close()
            return
        self._thread.join(CLOSE_WAIT_S)
        if self._thread.is_alive():
            log.warning("%s is away; a renewal of pins ends by itself", self._cluster.server)

    def _run(self) -> None:
        try:
            self._renew_until_closed()
        finally:
            self._cluster.close()

    def _renew_until_closed(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed, self._interval_s)
                if self._is_closed:
                    return
                pin_ids = list(self._pin_ids)
            for pin_id in pin_ids:
                renew(self._cluster, pin_id)


def renew(cluster: Cluster, pin_id: int) -> None:
    """Renews once. An error is logged; the read goes on, and fails if an object is gone."""
    try:
        if not cluster.renew(pin_id):
            log.warning("pin %d has ended: objects that are read may be deleted", pin_id)
    except StreamlogError as error:
        log.warning("pin %d could not be renewed: %s", pin_id, error)
