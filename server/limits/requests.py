"""Requests under way through all listeners: counted, bounded, and named in the log."""

from __future__ import annotations

from contextvars import Token
from typing import TypeAlias

from streamlog.errors import Overloaded
from streamlog.runtime.logs import client_id as current_client_id
from streamlog.runtime.logs import trace_id as current_trace_id
from streamlog.server.context import RequestContext
from streamlog.server.metrics import ClientMetrics, ServerMetrics

Named: TypeAlias = tuple[Token[str], Token[str]]


class ActiveRequests:
    """Every listener begins and ends its requests here, so that one bound holds for all of them."""

    def __init__(self, bound: int, metrics: ServerMetrics, clients: ClientMetrics) -> None:
        self.bound = bound
        """May be changed at any time."""
        self._metrics = metrics
        self._clients = clients
        self._count = 0
        metrics.requests_active.set_function(lambda: self._count)

    @property
    def count(self) -> int:
        """Requests under way."""
        return self._count

    def begin(self) -> None:
        """Counts a request; each call needs one of `end`."""
        self._count += 1

    def begin_many(self, count: int) -> int:
        """As `begin` for each of `count` requests; how many of them, the first ones, are within
        the bound. Each needs a call of `end`."""
        self._count += count
        return min(count, max(0, self.bound - self._count + count))

    def check_bound(self) -> None:
        """Called after `begin`. Errors: Overloaded."""
        if self._count > self.bound:
            raise self.overloaded()

    def overloaded(self) -> Overloaded:
        """The error of a request above the bound."""
        return Overloaded(
            f"{self.bound} requests are under way; retry with back-off", bound=self.bound
        )

    def name(self, context: RequestContext) -> Named:
        """Log lines carry the request's trace id and client id, until `end`."""
        self.count_client(context.client_id)
        return current_trace_id.set(context.trace_id), current_client_id.set(context.client_id)

    def count_client(self, client_id: str, requests: int = 1) -> None:
        """Counts requests of the client; `name` counts one, too."""
        self._clients.requested(client_id, requests)

    def unname(self, named: Named) -> None:
        """Ends what `name` began, in the same task, for a request that goes on in another one."""
        current_trace_id.reset(named[0])
        current_client_id.reset(named[1])

    def end(self, method: str, status: str, named: Named | None) -> None:
        """`named`: what `name` returned; None if the request ended before it."""
        self._count -= 1
        self._metrics.requests.labels(method, status).inc()
        if named is not None:
            self.unname(named)
