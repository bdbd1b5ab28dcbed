"""What every gRPC call goes through: context, counting, typed errors as status.

A handler is `async (RequestContext, request, ServicerContext) → response`; StreamlogError ends the
call with its status and details, anything else is a bug here and becomes Internal.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from streamlog.errors import Internal, Invalid, Overloaded, StreamlogError
from streamlog.runtime.clock import Clock
from streamlog.runtime.logs import client_id as current_client_id
from streamlog.runtime.logs import trace_id as current_trace_id
from streamlog.runtime.rand import Random
from streamlog.server.context import ANONYMOUS, RequestContext
from streamlog.server.grpc.ended_calls import is_ended
from streamlog.server.metrics import ClientMetrics, ServerMetrics
from streamlog.settings.limits import CLIENT_ID_BYTES_MAX, LimitsConfig
from streamlog.v1support import metadata
from streamlog.v1support.errors import to_status

log = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]
Handlers: TypeAlias = "grpc.GenericRpcHandler[Any, Any]"
Unary = Callable[[RequestContext, Any, Context], Awaitable[Any]]
Streaming = Callable[[RequestContext, Any, Context], Awaitable[None]]


def parse(message_type: Any, data: bytes) -> Any:
    """Errors: Invalid for bytes that are no such message."""
    try:
        return message_type.FromString(data)
    except DecodeError as error:
        raise Invalid(
            f"the bytes are no {message_type.DESCRIPTOR.name} (cut short, or not protobuf): {error}"
        ) from error


def deserializer(message_type: Any) -> Callable[[bytes], Any]:
    """For gRPC, which would turn an exception into a status without details: an Invalid instead of
    the message goes to the handler, where `checked` raises it."""

    def deserialize(data: bytes) -> Any:
        try:
            return parse(message_type, data)
        except Invalid as error:
            return error

    return deserialize


def checked(request: Any) -> Any:
    """Errors: Invalid, where the message could not be parsed."""
    if isinstance(request, StreamlogError):
        raise request
    return request


class Calls:
    """Makes gRPC handlers out of plain coroutines."""

    def __init__(
        self,
        *,
        clock: Clock,
        random: Random,
        limits: LimitsConfig,
        metrics: ServerMetrics,
        clients: ClientMetrics,
    ) -> None:
        self._clients = clients
        self._clock = clock
        self._random = random
        self._limits = limits
        self._metrics = metrics
        self._active = 0

    @property
    def active(self) -> int:
        """Calls under way."""
        return self._active

    def unary(self, name: str, handle: Unary) -> Callable[[Any, Context], Awaitable[Any]]:
        async def call(request: Any, context: Context) -> Any:
            async with self._enter(name, context) as known:
                return await handle(known, checked(request), context)

        return call

    def streaming(self, name: str, handle: Streaming) -> Callable[[Any, Context], Awaitable[None]]:
        """For calls that read or write through the ServicerContext themselves."""

        async def call(request: Any, context: Context) -> None:
            async with self._enter(name, context) as known:
                await handle(known, checked(request), context)

        return call

    @asynccontextmanager
    async def _enter(self, name: str, context: Context) -> AsyncIterator[RequestContext]:
        status, tokens = "OK", None
        self._active += 1
        self._metrics.requests_active.set(self._active)
        try:
            if self._active > self._limits.requests_max:
                raise Overloaded(
                    f"{self._limits.requests_max} requests are under way; retry with back-off",
                    bound=self._limits.requests_max,
                )
            known = self._request_context(context)
            tokens = current_trace_id.set(known.trace_id), current_client_id.set(known.client_id)
            self._clients.requested(known.client_id)
            yield known
        except StreamlogError as error:
            status = self._refuse(name, error, context)
        except grpc.aio.AbortError:
            status = "ABORTED"
            raise
        except Exception as error:
            if is_ended(error):
                status = "CANCELLED"
                raise
            log.exception("request failed by a bug", extra={"method": name})
            bug = Internal(f"a bug in the server: {type(error).__name__}: {error}")
            bug.has_no_side_effects = False
            status = self._refuse(name, bug, context)
        except BaseException:
            status = "CANCELLED"
            raise
        finally:
            self._active -= 1
            self._metrics.requests_active.set(self._active)
            self._metrics.requests.labels(name, status).inc()
            if tokens is not None:
                current_trace_id.reset(tokens[0])
                current_client_id.reset(tokens[1])

    def _refuse(self, name: str, error: StreamlogError, context: Context) -> str:
        """Sets status and details; the call ends with them."""
        wire = to_status(error)
        log.debug("request refused", extra={"method": name, "error": wire.message})
        context.set_trailing_metadata(wire.trailers)
        context.set_code(wire.code)
        context.set_details(wire.message)
        return wire.code.name

    def _request_context(self, context: Context) -> RequestContext:
        client_id = trace_id = ""
        for key, value in context.invocation_metadata() or ():
            if key == metadata.CLIENT_ID:
                client_id = str(value)
            elif key == metadata.TRACE_ID:
                trace_id = str(value)
            elif key == metadata.TRACEPARENT and not trace_id:
                trace_id = str(value).split("-")[1] if str(value).count("-") == 3 else ""
        if len(client_id) > CLIENT_ID_BYTES_MAX or len(trace_id) > CLIENT_ID_BYTES_MAX:
            raise Invalid(f"client id and trace id have at most {CLIENT_ID_BYTES_MAX} bytes")
        remaining = context.time_remaining()
        return RequestContext(
            principal=ANONYMOUS,
            client_id=client_id,
            trace_id=trace_id or self._random.bytes(8).hex(),
            deadline=None if remaining is None else self._clock.monotonic() + remaining,
            peer=context.peer(),
        )
