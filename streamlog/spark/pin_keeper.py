"""Renews a pin from a thread."""

from __future__ import annotations

import logging
import threading

from streamlog.errors import StreamlogError
from streamlog.spark.cluster import Cluster

log = logging.getLogger(__name__)

RENEWALS_PER_TTL = 3
"""A pin is renewed so many times before it would end."""


class PinKeeper:
    """Renews one pin at a time from a thread, for as long as it is set."""

    def __init__(self, cluster: Cluster, ttl_ms: int) -> None:
        """`cluster` is used by this thread alone."""
        self._cluster = cluster
        self._interval_s = ttl_ms / 1000 / RENEWALS_PER_TTL
        self._changed = threading.Condition()
        self._pin_id: int | None = None
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def set(self, pin_id: int | None) -> int | None:
        """The pin to keep; returns the one before."""
        with self._changed:
            before, self._pin_id = self._pin_id, pin_id
            if pin_id is not None and self._thread is None:
                self._thread = threading.Thread(target=self._run, name="pins", daemon=True)
                self._thread.start()
            return before

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        self._cluster.close()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed, self._interval_s)
                if self._is_closed:
                    return
                pin_id = self._pin_id
            if pin_id is None:
                continue
            renew(self._cluster, pin_id)


def renew(cluster: Cluster, pin_id: int) -> None:
    """Once; what goes wrong is logged: the read goes on, and meets it if an object is gone."""
    try:
        if not cluster.renew(pin_id):
            log.warning("pin %d has ended: objects that are read may be deleted", pin_id)
    except StreamlogError as error:
        log.warning("pin %d could not be renewed: %s", pin_id, error)
