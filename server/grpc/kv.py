"""KVService over gRPC; in a request for several keys each key has its own error.

A request names a thousand keys, and the same one as often, so each answer is bounded by the bytes
of its values. Messages with values to put count in the connection's bytes in flight.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import grpc

from streamlog.errors import Closed, Invalid, MessageTooLarge, StreamlogError
from streamlog.model.kv import Key, Value
from streamlog.server.context import RequestContext
from streamlog.server.grpc.calls import Calls, Handlers, Rpc, deserializer, parse
from streamlog.server.limits.in_flight import Budgets
from streamlog.server.limits.pipeline import Drain
from streamlog.server.services.kv import ANSWER_BYTES_MAX, KVService, PutMode, checked_limit
from streamlog.v1 import kv_pb2
from streamlog.v1support.errors import to_proto

SERVICE = "streamlog.v1.KVService"
KEYS_MAX = 1000

_MODES = {
    kv_pb2.PUT_MODE_UNSPECIFIED: PutMode.ALWAYS,
    kv_pb2.PUT_MODE_ALWAYS: PutMode.ALWAYS,
    kv_pb2.PUT_MODE_IF_ABSENT: PutMode.IF_ABSENT,
    kv_pb2.PUT_MODE_COMPARE_AND_SET: PutMode.COMPARE_AND_SET,
}


class _Room:
    """What is left of an answer's bytes of values."""

    def __init__(self) -> None:
        self._used_bytes = 0

    async def fill(
        self,
        entry: kv_pb2.KvEntry,
        work: Callable[[], Awaitable[Value | None]],
        sent_bytes: int = 0,
    ) -> None:
        """Does the work for one key, if there is room for its value, of which the client has sent
        so many bytes itself."""
        try:
            if self._used_bytes >= ANSWER_BYTES_MAX:
                raise MessageTooLarge(
                    f"the answer has {self._used_bytes} bytes of values, and nothing was done for "
                    "this key: name it in another request",
                    size_bytes=self._used_bytes,
                    max_bytes=ANSWER_BYTES_MAX,
                )
            value = await work()
        except StreamlogError as error:
            entry.error.CopyFrom(to_proto(error))
        else:
            if value is not None:
                self._used_bytes += max(0, len(value.data) - sent_bytes)
                _set_value(entry, value)


class GrpcKV:
    def __init__(self, kv: KVService, *, calls: Calls, budgets: Budgets, drain: Drain) -> None:
        self._kv = kv
        self._calls = calls
        self._budgets = budgets
        self._drain = drain

    def handlers(self) -> Handlers:
        raw: dict[str, Any] = {}
        for name, handle, request, response in (
            ("GetKvs", self._get, kv_pb2.GetKvsRequest, kv_pb2.GetKvsResponse),
            ("DeleteKvs", self._delete, kv_pb2.DeleteKvsRequest, kv_pb2.DeleteKvsResponse),
            ("ListKvs", self._list, kv_pb2.ListKvsRequest, kv_pb2.ListKvsResponse),
        ):
            raw[name] = grpc.unary_unary_rpc_method_handler(
                self._calls.unary(f"KVService/{name}", handle),
                request_deserializer=deserializer(request),
                response_serializer=response.SerializeToString,
            )
        raw["PutKvs"] = grpc.unary_unary_rpc_method_handler(
            self._calls.unary("KVService/PutKvs", self._put),
            response_serializer=kv_pb2.PutKvsResponse.SerializeToString,
        )
        raw["WatchKvs"] = grpc.unary_stream_rpc_method_handler(
            self._calls.streaming("KVService/WatchKvs", self._watch),
            request_deserializer=deserializer(kv_pb2.WatchKvsRequest),
            response_serializer=kv_pb2.WatchKvsResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(SERVICE, raw)

    async def _get(
        self, context: RequestContext, request: kv_pb2.GetKvsRequest, _: Rpc
    ) -> kv_pb2.GetKvsResponse:
        _check_count(len(request.keys))
        response, room = kv_pb2.GetKvsResponse(), _Room()
        for key in request.keys:
            await room.fill(
                response.entries.add(key=key), partial(self._kv.get, context, _key(key))
            )
        return response

    async def _put(self, context: RequestContext, message: bytes, _: Rpc) -> kv_pb2.PutKvsResponse:
        with self._budgets.of(context.peer) as budget:
            await budget.take(len(message))
            try:
                return await self._put_all(context, parse(kv_pb2.PutKvsRequest, message))
            finally:
                budget.release(len(message))

    async def _put_all(
        self, context: RequestContext, request: kv_pb2.PutKvsRequest
    ) -> kv_pb2.PutKvsResponse:
        _check_count(len(request.puts))
        if any(put.mode not in _MODES for put in request.puts):
            raise Invalid("a put has an unknown mode")
        response, room = kv_pb2.PutKvsResponse(), _Room()
        for put in request.puts:
            await room.fill(
                response.entries.add(key=put.key),
                partial(
                    self._kv.put,
                    context,
                    _key(put.key),
                    put.data,
                    _MODES[put.mode],
                    put.expected_revision,
                ),
                sent_bytes=len(put.data),
            )
        return response

    async def _delete(
        self, context: RequestContext, request: kv_pb2.DeleteKvsRequest, _: Rpc
    ) -> kv_pb2.DeleteKvsResponse:
        _check_count(len(request.keys))
        response, room = kv_pb2.DeleteKvsResponse(), _Room()
        for key in request.keys:
            await room.fill(
                response.entries.add(key=key), partial(self._kv.delete, context, _key(key))
            )
        return response

    async def _list(
        self, context: RequestContext, request: kv_pb2.ListKvsRequest, _: Rpc
    ) -> kv_pb2.ListKvsResponse:
        page, more = await self._kv.list(
            context,
            request.namespace,
            request.prefix,
            request.after if request.HasField("after") else None,
            checked_limit(request.limit),
        )
        response = kv_pb2.ListKvsResponse(more=more)
        for item in page:
            entry = response.entries.add()
            _set_key(entry.key, item.key)
            _set_value(entry, item.value)
        return response

    async def _watch(
        self, context: RequestContext, request: kv_pb2.WatchKvsRequest, rpc: Rpc
    ) -> None:
        start, changes = await self._kv.watch(
            context,
            request.namespace,
            request.prefix,
            request.from_revision if request.HasField("from_revision") else None,
        )
        await rpc.write(kv_pb2.WatchKvsResponse(revision=start - 1))
        async for change in self._drain.until(changes):
            response = kv_pb2.WatchKvsResponse(revision=change.revision)
            entry = response.changes.add()
            _set_key(entry.key, change.key)
            if change.value is not None:
                _set_value(entry, change.value)
            await rpc.write(response)
        # It forgets old changes with its memory: no watch goes on behind its restart.
        raise Closed("the node is shutting down; read the keys again, and watch from then on")


def _check_count(count: int) -> None:
    if count > KEYS_MAX:
        raise Invalid(f"the request names {count} keys; at most {KEYS_MAX} are allowed")


def _key(key: kv_pb2.KvKey) -> Key:
    return Key(key.name, key.namespace)


def _set_key(proto: kv_pb2.KvKey, key: Key) -> None:
    proto.namespace = key.namespace
    proto.name = key.name


def _set_value(entry: kv_pb2.KvEntry, value: Value) -> None:
    # The field must be there for an empty value, too.
    entry.value.SetInParent()
    entry.value.data = value.data
    entry.value.revision = value.revision
