"""The frame of every gRPC call: request context, counting, typed errors as status.

A unary call is charged to its client's `request_percentage`, and waits before it begins while the
client is throttled for that: connections belong to gRPC's library, which cannot mute one.

A handler is `async (RequestContext, request, Rpc) → response`. A StreamlogError ends the call with
its status and details; any other exception is a bug of the server and becomes Internal.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from streamlog.errors import Internal, Invalid, StreamlogError
from streamlog.runtime.concurrency.loop_time import LoopTime
from streamlog.server.context import ANONYMOUS, RequestContext
from streamlog.server.grpc.library.ended_calls import is_ended
from streamlog.server.limits.quotas.quota_values import QuotaKind
from streamlog.server.limits.shared import ListenerResources
from streamlog.settings.limits import CLIENT_ID_BYTES_MAX
from streamlog.v1support import metadata
from streamlog.v1support.errors import to_status

log = logging.getLogger(__name__)

Rpc = grpc.aio.ServicerContext[Any, Any]
"""gRPC's side of one call: its metadata, its messages and its status."""
Handlers: TypeAlias = "grpc.GenericRpcHandler[Any, Any]"
Unary = Callable[[RequestContext, Any, Rpc], Coroutine[Any, Any, Any]]
PrincipalOf = Callable[[Rpc], str]
Streaming = Callable[[RequestContext, Any, Rpc], Coroutine[Any, Any, None]]


def parse(message_type: Any, data: bytes) -> Any:
    """Errors: Invalid for bytes that are no such message."""
    try:
        return message_type.FromString(data)
    except DecodeError as error:
        raise Invalid(
            f"the bytes are no {message_type.DESCRIPTOR.name} (cut short, or not protobuf): {error}"
        ) from error


def deserializer(message_type: Any) -> Callable[[bytes], Any]:
    """Gives the handler an Invalid for a message that cannot be parsed; `checked` raises it.

    An exception here would become a status without details.
    """

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
        self, resources: ListenerResources, principal_of: PrincipalOf = lambda rpc: ANONYMOUS
    ) -> None:
        self._principal_of = principal_of
        self._requests = resources.requests
        self._quotas = resources.quotas
        self._clock = resources.clock
        self._random = resources.random

    def unary(self, name: str, handle: Unary) -> Callable[[Any, Rpc], Awaitable[Any]]:
        async def call(request: Any, rpc: Rpc) -> Any:
            return await self._run(name, self._measured(handle), request, rpc)

        return call

    def _measured(self, handle: Unary) -> Unary:
        """`handle`, within its client's quota of time."""

        async def measured(context: RequestContext, request: Any, rpc: Rpc) -> Any:
            limited = self._quotas.of(context.client_id)
            if limited is None or not limited.is_work_measured:
                return await handle(context, request, rpc)
            await limited.turn(QuotaKind.REQUEST)
            work = LoopTime(handle(context, request, rpc), self._clock)
            try:
                return await work
            finally:
                limited.worked(work.seconds)

        return measured

    def streaming(self, name: str, handle: Streaming) -> Callable[[Any, Rpc], Awaitable[None]]:
        """For calls that read or write through the Rpc themselves."""

        async def call(request: Any, rpc: Rpc) -> None:
            await self._run(name, handle, request, rpc)

        return call

    async def _run(self, name: str, handle: Unary | Streaming, request: Any, rpc: Rpc) -> Any:
        """The response; None with a status in `rpc`, where the call ends by an error."""
        status, named = "OK", None
        self._requests.begin()
        try:
            self._requests.check_bound()
            context = self._request_context(rpc)
            named = self._requests.name(context)
            return await handle(context, checked(request), rpc)
        except StreamlogError as error:
            status = self._refuse(name, error, rpc)
            return None
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
            status = self._refuse(name, bug, rpc)
            return None
        except BaseException:
            status = "CANCELLED"
            raise
        finally:
            self._requests.end(name, status, named)

    def _refuse(self, name: str, error: StreamlogError, rpc: Rpc) -> str:
        """Sets status and details; the call ends with them."""
        wire = to_status(error)
        log.debug("request refused", extra={"method": name, "error": wire.message})
        rpc.set_trailing_metadata(wire.trailers)
        rpc.set_code(wire.code)
        rpc.set_details(wire.message)
        return wire.code.name

    def _request_context(self, rpc: Rpc) -> RequestContext:
        client_id = trace_id = ""
        for key, value in rpc.invocation_metadata() or ():
            if key == metadata.CLIENT_ID:
                client_id = str(value)
            elif key == metadata.TRACE_ID:
                trace_id = str(value)
            elif key == metadata.TRACEPARENT and not trace_id:
                trace_id = str(value).split("-")[1] if str(value).count("-") == 3 else ""
        if len(client_id) > CLIENT_ID_BYTES_MAX or len(trace_id) > CLIENT_ID_BYTES_MAX:
            raise Invalid(f"client id and trace id have at most {CLIENT_ID_BYTES_MAX} bytes")
        remaining = rpc.time_remaining()
        return RequestContext(
            principal=self._principal_of(rpc),
            client_id=client_id,
            trace_id=trace_id or self._random.bytes(8).hex(),
            deadline=None if remaining is None else self._clock.monotonic() + remaining,
            peer=rpc.peer(),
        )
