"""What a handler of Kafka's protocol gets with a request, and what it may return.

A handler is `async (KafkaCall, request) -> response | Reply`, both of the API's generated classes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from streamlog.errors import StreamlogError
from streamlog.runtime.buffers import Buffer
from streamlog.server.context import RequestContext
from streamlog.server.limits.quotas.limited_client import LimitedClient

Message: TypeAlias = Any
"""A request or response of `streamlog.kafka.messages`; each API has a class of its own."""


class KafkaCall(NamedTuple):
    """One request, beside its message.

    `api` is Kafka's number of the API. `listener` names the address that the client connected to,
    `advertised` is the host and port that its clients are told. `frame_bytes` is the size of the
    whole request, whose memory every slice of the message keeps alive (`unpinned`). `received_at`
    is when it was there, on the clock, and later by the time for which its connection was muted
    since: it may have waited for those before it; None: now.
    `limited`: the quotas of its client; None: it has none.
    """

    context: RequestContext
    api: int
    version: int
    correlation_id: int
    listener: str
    advertised: tuple[str, int]
    frame_bytes: int
    received_at: float | None = None
    limited: LimitedClient | None = None

    @property
    def deadline(self) -> float | None:
        """On the injected clock's monotonic scale, seconds; None: the request names no end."""
        return self.context.deadline


class Encoded(NamedTuple):
    """A response that its handler has encoded, without the header.

    The same pieces may go to other connections as well.
    """

    pieces: Sequence[Buffer]


class CloseConnection(Exception):
    """Raised by a handler or a Reply: the connection ends, without an answer to this request.

    Kafka's way to report an error of `acks=0`. `reason` goes into the log, for people.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Reply(ABC):
    """An answer that comes later: its request has its place in the order already.

    Only routes with `is_pipelined` may return one. The connection waits with `wait` until it is
    ready, and calls `response` or `final_response` once, in the order of the requests; or it calls
    `abandon` once.
    """

    __slots__ = ()

    @abstractmethod
    async def wait(self) -> None:
        """Until the response is ready. Cancelled or failed, it has done what `abandon` does."""

    @abstractmethod
    def response(self) -> Message | None:
        """The response; None: this request has no answer (`acks=0`).

        Errors: StreamlogError, which becomes the API's answer with that error; CloseConnection.
        """

    def final_response(self) -> Message | None:
        """As `response`, called in its place where nothing is put into the response any more: it
        may be Encoded."""
        return self.response()

    @abstractmethod
    def is_ready(self) -> bool:
        """`wait` would not wait: the response can share a write with the answers before it."""

    @abstractmethod
    def abandon(self) -> None:
        """The client has left: what was begun goes on, without a wait for `response`."""


Handle: TypeAlias = Callable[[KafkaCall, Any], Awaitable[Any]]
"""Returns a response, perhaps Encoded, or a Reply where the route is pipelined; None: no answer.

A response that is not Encoded is the request's own: a throttle is put into it.

Errors: StreamlogError, which becomes the API's answer with that error; CloseConnection.
"""
HandleMany: TypeAlias = Callable[
    [Sequence[tuple[KafkaCall, Any]]], Awaitable[Sequence[Reply | StreamlogError]]
]
"""Requests of one connection that lay ready together; one result for each, in their order."""
MayWait: TypeAlias = Callable[[KafkaCall, Any], bool]
"""Whether the request's place may have to be waited for; costs little, and awaits nothing."""
Refused: TypeAlias = Callable[[KafkaCall, Any, StreamlogError], None]
"""Awaits nothing."""
ErrorResponse: TypeAlias = Callable[[KafkaCall, Any, StreamlogError], Message]
"""The answer of a request that failed as a whole: every part of it has the error."""


@dataclass(frozen=True, slots=True)
class Route:
    """How one API is served.

    `is_pipelined`: the request is begun while those before it still wait for their answers, as
    produce requires; every other request is begun after the one before it has been answered.
    `handle_many` needs `is_pipelined`; it gets requests that lie ready one after another. A request
    for which `may_wait` holds goes to a later call than those before it, whose answers would wait
    with it; None: none has to wait for its place.
    `refused` hears of a pipelined request that is answered with an error and never gets to the
    handler.
    `error_response` None: the answer is made from the shape of the API's messages
    (`server/kafka/error_answers.py`).
    """

    handle: Handle
    is_pipelined: bool = False
    handle_many: HandleMany | None = None
    may_wait: MayWait | None = None
    refused: Refused | None = None
    error_response: ErrorResponse | None = None


PINNED_SHARE_MAX = 4
"""A slice below this part of its frame is copied when it is kept."""


def unpinned(data: Buffer, frame_bytes: int) -> Buffer:
    """`data` for keeping: itself, or a copy where it would keep a frame many times its size alive.

    A view of 200 bytes out of a frame of 1 MiB holds 1 MiB until the batch is uploaded.
    """
    return data if len(data) * PINNED_SHARE_MAX >= frame_bytes else bytes(data)
