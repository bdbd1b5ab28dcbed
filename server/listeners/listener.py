"""A listener: one address of a node, over one protocol."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from prometheus_client import CollectorRegistry

from streamlog.runtime.offload import Offload
from streamlog.server.addresses import Endpoint
from streamlog.server.composition import Services


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node's health and metrics, for the pages that people and supervisors read.

    `offload` None: the metrics page is made on the event loop.
    """

    registry: CollectorRegistry
    not_ready_reason: Callable[[], str | None]
    is_alive: Callable[[], bool]
    before_scrape: Callable[[], None]
    offload: Offload | None


class Listener(Protocol):
    """Called in the order bind, start, serve, drain, stop; `stop` may follow any of them.

    A listener owns its socket and its connections. It does not own the services, their bounds or
    the drain (`Services.resources`), which all listeners share.
    """

    @property
    def endpoint(self) -> Endpoint:
        """Its port is the one that was chosen, from `bind` on."""
        ...

    async def bind(self) -> None:
        """Takes the address: connections wait, unanswered. Errors: Invalid, Unavailable."""
        ...

    async def start(self) -> None:
        """Answers from now on; until `serve`, with what the node waits for."""
        ...

    async def serve(self, services: Services, view: NodeView) -> None:
        """Requests go to the services from now on."""
        ...

    async def drain(self) -> None:
        """Tells clients to use another node; requests are still served."""
        ...

    async def stop(self, grace_s: float) -> None:
        """No new requests; those under way are cut off after `grace_s`."""
        ...

    def connections(self) -> int:
        """Open connections of clients, for status and metrics."""
        ...
