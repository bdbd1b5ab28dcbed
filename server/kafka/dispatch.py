"""From a frame to its answer: header, decoding, the API's handler, encoding; errors on the way.

    frame → read → Request → answer            → pieces of the answer
                           → begin, wait, finish    the same in steps, for pipelined APIs

A client with quotas is charged on the way: produce by the bytes of its requests, before they begin;
fetch by those of its answers; and every API by the time that it holds the event loop. What is above
a quota is served and answered all the same; the answer says for how long its connection is muted.

Every request counts among the node's requests under way, and its log lines carry a trace id: the
connection's, with the correlation id that the client's own log shows.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple, NoReturn

from streamlog.errors import StreamlogError
from streamlog.kafka.protocol.apis import APIS, Api, ApiKey, request_codec, response_codec
from streamlog.kafka.protocol.errors import code_of
from streamlog.kafka.protocol.headers import (
    RequestHeader,
    decode_request_header,
    encode_response_header,
)
from streamlog.kafka.protocol.primitives import Malformed
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.concurrency.loop_time import LoopTime
from streamlog.server.context import ANONYMOUS, RequestContext
from streamlog.server.kafka.call import CloseConnection, Encoded, KafkaCall, Message, Reply, Route
from streamlog.server.kafka.error_answers import error_response
from streamlog.server.kafka.handlers.api_versions import unsupported_version
from streamlog.server.limits.quotas.client_quotas import ClientQuotas
from streamlog.server.limits.quotas.limited_client import LimitedClient
from streamlog.server.limits.requests import ActiveRequests
from streamlog.settings.limits import CLIENT_ID_BYTES_MAX

log = logging.getLogger(__name__)

OK = "OK"
_UNBOUNDED = (
    ApiKey.API_VERSIONS,
    ApiKey.METADATA,
    ApiKey.DESCRIBE_CLUSTER,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS,
)
"""APIs that are served above the bound on requests, too.

They are answered from memory, and a connection has one of them under way, so that the bound on
connections holds for them. Clients that are refused here do not just ask again. At ApiVersions they
take the node for one that is too old to know it, and do without what they have learnt since; at
Metadata, whose answer would have no brokers, the cluster for one without brokers and topics, or
fail. DescribeCluster and DescribeTopicPartitions ask for the same.
"""


class Peer(NamedTuple):
    """One connection, as its requests' contexts name it."""

    address: str
    trace_id: str
    """The beginning of its requests' trace ids."""
    listener: str
    advertised: tuple[str, int]
    principal: str = ANONYMOUS


class Request(NamedTuple):
    """A decoded request. `route` None: ApiVersions in a version to come, whose body is unread."""

    header: RequestHeader
    call: KafkaCall
    message: Message
    route: Route | None

    @property
    def is_pipelined(self) -> bool:
        return self.route is not None and self.route.is_pipelined


class Begun:
    """A pipelined request that has its place: what its answer will be made of.

    `outcome` counts where there is no `reply`: an answer, or what failed. `throttle_ms`: for how
    long its connection is to be muted.
    """

    __slots__ = ("frame_bytes", "outcome", "reply", "request", "throttle_ms")

    def __init__(self, request: Request, outcome: Reply | Message | StreamlogError) -> None:
        self.request = request
        self.frame_bytes = request.call.frame_bytes
        self.throttle_ms = 0
        # The check costs more than all the rest here: it is made once.
        self.reply = outcome if isinstance(outcome, Reply) else None
        self.outcome = outcome if self.reply is None else None

    def is_ready(self) -> bool:
        """`Dispatcher.finish` may be called."""
        return self.reply is None or self.reply.is_ready()


class Answered(NamedTuple):
    """The pieces of an answer, none where there is no answer; and for how long its connection is to
    be muted after it."""

    pieces: list[Buffer]
    throttle_ms: int = 0


class _Served(NamedTuple):
    """An answer, and the response that its pieces were made of."""

    pieces: list[Buffer]
    response: Message | None


class Bug(Exception):
    """A handler failed by a bug, which is in the log: its connection has to end."""


class Dispatcher:
    """Serves the APIs of `routes`; one for all connections of a listener."""

    def __init__(
        self, routes: Mapping[ApiKey, Route], requests: ActiveRequests, quotas: ClientQuotas
    ) -> None:
        self._routes = routes
        self._requests = requests
        self._quotas = quotas
        self._pipelined = frozenset(int(api) for api, route in routes.items() if route.is_pipelined)

    @property
    def apis(self) -> frozenset[int]:
        """Numbers of the APIs that are served."""
        return frozenset(int(api) for api in self._routes)

    def is_pipelined(self, frame: memoryview) -> bool:
        """Whether the frame's API is; its header has not been read yet."""
        return (frame[0] << 8 | frame[1]) in self._pipelined

    def read(self, frame: memoryview, peer: Peer, received_at: float | None = None) -> Request:
        """`received_at`: on the clock; None: now.

        Errors: CloseConnection for what is no request of an API and version that is served."""
        try:
            header = decode_request_header(frame)
            api, version = header.api, header.version
            route = self._routes.get(api.key)
            context = _context(header, peer)
            call = KafkaCall(
                context,
                api.key,
                version,
                header.correlation_id,
                peer.listener,
                peer.advertised,
                len(frame),
                received_at,
                self._quotas.of(context.client_id),
            )
            if version > api.last:
                return Request(header, call, None, None)
            if route is None:
                raise CloseConnection(f"the API {api.name} is not served here")
            # Bytes behind the message are passed over, as Kafka does: librdkafka asks for all
            # topics in a request that is three bytes too long.
            message, _ = request_codec(api.key).decode(frame, header.body_at, version)
        except Malformed as error:
            raise CloseConnection(error.message) from error
        return Request(header, call, message, route)

    async def answer(self, request: Request) -> Answered:
        """Serves the request. Errors: CloseConnection, Bug."""
        if request.route is None:
            return Answered(_encoded(request.header.api, 0, request.call, unsupported_version()))
        limited = request.call.limited
        if limited is None:
            return Answered((await self._serve(request, request.route)).pieces)
        return await self._serve_limited(request, request.route, limited)

    async def _serve_limited(
        self, request: Request, route: Route, limited: LimitedClient
    ) -> Answered:
        """Charges the client for what it is handed, and for the time."""
        throttle_ms = 0
        if limited.is_work_measured:
            work = LoopTime(self._serve(request, route), self._quotas.windows.clock)
            pieces, response = await work
            throttle_ms = limited.worked(work.seconds)
        else:
            pieces, response = await self._serve(request, route)
        if request.header.api.key is ApiKey.FETCH:
            throttle_ms = max(throttle_ms, limited.fetched(sum(map(len, pieces))))
        if throttle_ms and _tell(response, throttle_ms):
            pieces = _answer(request, response)
        return Answered(pieces, throttle_ms)

    async def _serve(self, request: Request, route: Route) -> _Served:
        """Errors: CloseConnection, Bug."""
        requests, status, named = self._requests, "CANCELLED", None
        requests.begin()
        try:
            if request.header.api.key not in _UNBOUNDED:
                requests.check_bound()
            named = requests.name(request.call.context)
            response = await route.handle(request.call, request.message)
            if route.is_pipelined and isinstance(response, Reply):
                await response.wait()
                response = response.response()
            served = _Served(_answer(request, response), response)
            status = OK
            return served
        except Exception as error:  # noqa: BLE001 - `_refusal` tells it or raises
            status = _status_of(error)
            return _refusal(request, error)
        finally:
            requests.end(_method(request), status, named)

    def may_wait(self, request: Request) -> bool:
        """Whether `begin` may have to wait for the place of this pipelined request."""
        route = request.route
        return (
            route is not None
            and route.may_wait is not None
            and route.may_wait(request.call, request.message)
        )

    def charge(self, request: Request) -> int:
        """Charges a pipelined request, once; for how many milliseconds it throttles its client."""
        limited = request.call.limited
        return 0 if limited is None else limited.produced(request.call.frame_bytes)

    async def begin(self, requests: Sequence[Request], throttle_ms: int = 0) -> list[Begun]:
        """Gives pipelined requests of one API their places, in order. `wait` for each and `finish`
        it, or `abandon` it.

        `throttle_ms`: for how long the last of them throttles its client.

        Errors: CloseConnection, Bug; then none of them is under way.
        """
        active, limited = self._requests, requests[-1].call.limited
        admitted = requests[: active.begin_many(len(requests))]
        try:
            if limited is not None and limited.is_work_measured:
                work = LoopTime(self._begun(admitted), self._quotas.windows.clock)
                outcomes = await work
                throttle_ms = max(throttle_ms, limited.worked(work.seconds))
            else:
                outcomes = await self._begun(admitted)
        except BaseException as error:
            for request in requests:
                active.end(_method(request), _status_of(error), None)
            raise
        begun = list(map(Begun, admitted, outcomes))
        for request in requests[len(admitted) :]:
            overload = active.overloaded()
            if request.route is not None and request.route.refused is not None:
                request.route.refused(request.call, request.message, overload)
            begun.append(Begun(request, overload))
        begun[-1].throttle_ms = throttle_ms
        return begun

    async def _begun(self, admitted: Sequence[Request]) -> Sequence[Reply | Message]:
        """The outcome of each request, in order. Errors: CloseConnection, Bug."""
        if not admitted:
            return ()
        first = admitted[0]
        route = first.route
        assert route is not None
        named = self._requests.name(first.call.context)
        others: dict[str, int] = {}
        for request in admitted[1:]:
            client_id = request.call.context.client_id
            others[client_id] = others.get(client_id, 0) + 1
        for client_id, count in others.items():
            self._requests.count_client(client_id, count)
        try:
            if route.handle_many is None:
                return await _one_by_one(route, admitted)
            outcomes = await route.handle_many([(one.call, one.message) for one in admitted])
            if len(outcomes) != len(admitted):
                raise RuntimeError(f"{len(outcomes)} outcomes of {len(admitted)} requests")
            return outcomes
        except StreamlogError as error:
            return [error] * len(admitted)
        except Exception as error:  # noqa: BLE001 - raised anew
            _end_connection(first, error)
        finally:
            self._requests.unname(named)

    async def wait(self, begun: Begun) -> None:
        """Until the answer can be made; an error on the way is `finish`'s to tell. Cancelled, it
        ends the request."""
        if begun.reply is None:
            return
        try:
            await begun.reply.wait()
        except Exception as error:  # noqa: BLE001 - `finish` raises it
            begun.reply, begun.outcome = None, error
        except BaseException:
            self._requests.end(_method(begun.request), "CANCELLED", None)
            raise

    def finish(self, begun: Begun) -> list[Buffer]:
        """The pieces of the answer. Errors: CloseConnection, Bug."""
        request, status, throttle_ms = begun.request, "CANCELLED", begun.throttle_ms
        try:
            outcome = begun.outcome
            if begun.reply is not None:
                # A throttle is put into the response.
                reply = begun.reply
                outcome = reply.response() if throttle_ms else reply.final_response()
            elif isinstance(outcome, Exception):
                raise outcome
            if throttle_ms:
                _tell(outcome, throttle_ms)
            pieces = _answer(request, outcome)
            status = OK
            return pieces
        except Exception as error:  # noqa: BLE001 - as in `answer`
            status = _status_of(error)
            return _refusal(request, error, throttle_ms).pieces
        finally:
            self._requests.end(_method(request), status, None)

    def abandon(self, begun: Begun) -> None:
        """The client has left before the answer."""
        if begun.reply is not None:
            begun.reply.abandon()
        self._requests.end(_method(begun.request), "CANCELLED", None)


async def _one_by_one(route: Route, requests: Sequence[Request]) -> list[Reply | Message]:
    outcomes: list[Reply | Message] = []
    try:
        for request in requests:
            try:
                outcomes.append(await route.handle(request.call, request.message))
            except StreamlogError as error:
                outcomes.append(error)
    except BaseException:
        for outcome in outcomes:
            if isinstance(outcome, Reply):
                outcome.abandon()
        raise
    return outcomes


def _context(header: RequestHeader, peer: Peer) -> RequestContext:
    # Kafka bounds it by 32 KiB. It is a label of metrics and log lines, so its beginning is enough.
    client_id = (header.client_id or "")[:CLIENT_ID_BYTES_MAX]
    return RequestContext(
        peer.principal, client_id, f"{peer.trace_id}-{header.correlation_id}", None, peer.address
    )


def _tell(response: Message | None, throttle_ms: int) -> bool:
    """Puts the throttle into the response; False: it has no field for it, or is encoded already."""
    if response is None or not hasattr(response, "throttle_time_ms"):
        return False
    response.throttle_time_ms = throttle_ms
    return True


def _answer(request: Request, response: Message | None) -> list[Buffer]:
    if response is None:
        return []
    return _encoded(request.header.api, request.header.version, request.call, response)


def _encoded(api: Api, version: int, call: KafkaCall, response: Message) -> list[Buffer]:
    is_encoded = isinstance(response, Encoded)
    pieces = response.pieces if is_encoded else response_codec(api.key).encode(response, version)
    size = sum(map(len, pieces))
    return [encode_response_header(api, version, call.correlation_id, size), *pieces]


def _refusal(request: Request, error: Exception, throttle_ms: int = 0) -> _Served:
    """The API's own answer with the error, where the error is one that clients are told.

    Errors: CloseConnection, for it and where the API has no answer; Bug for all others.
    """
    if not isinstance(error, StreamlogError):
        _end_connection(request, error)
    assert request.route is not None
    log.debug("request refused", extra={"method": _method(request), "error": error.message})
    respond = request.route.error_response or error_response
    try:
        response = respond(request.call, request.message, error)
        if throttle_ms:
            _tell(response, throttle_ms)
        return _Served(_answer(request, response), response)
    except Exception as failure:  # noqa: BLE001 - raised anew
        _end_connection(request, failure)


def _end_connection(request: Request, error: Exception) -> NoReturn:
    """Raises what an exception without an answer becomes: CloseConnection, or Bug, logged here."""
    if isinstance(error, CloseConnection):
        raise error
    method = _method(request)
    log.error(
        "request failed by a bug",
        extra={"method": method, "trace_id": request.call.context.trace_id},
        exc_info=error,
    )
    raise Bug(f"{method} failed by a bug") from error


def _status_of(error: BaseException) -> str:
    """The request's status in the metrics."""
    if isinstance(error, StreamlogError):
        return code_of(error).name
    if isinstance(error, CloseConnection):
        return "CLOSED"
    return "BUG" if isinstance(error, Exception) else "CANCELLED"


_METHODS = {key: f"kafka.{api.name}" for key, api in APIS.items()}


def _method(request: Request) -> str:
    return _METHODS[request.header.api.key]
