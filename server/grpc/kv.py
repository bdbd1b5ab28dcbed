"""KVService over gRPC; in a request for several keys each key has its own error."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import grpc

from streamlog.errors import Closed, Invalid, StreamlogError
from streamlog.model.kv import Key, Value
from streamlog.server.context import RequestContext
from streamlog.server.grpc.calls import Calls, Handlers, Rpc, deserializer
from streamlog.server.limits.pipeline import Drain
from streamlog.server.services.kv import KVService, PutMode, checked_limit
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


class GrpcKV:
    def __init__(self, kv: KVService, *, calls: Calls, drain: Drain) -> None:
        self._kv = kv
        self._calls = calls
        self._drain = drain

    def handlers(self) -> Handlers:
        raw: dict[str, Any] = {}
        for name, handle, request, response in (
            ("GetKvs", self._get, kv_pb2.GetKvsRequest, kv_pb2.GetKvsResponse),
            ("PutKvs", self._put, kv_pb2.PutKvsRequest, kv_pb2.PutKvsResponse),
            ("DeleteKvs", self._delete, kv_pb2.DeleteKvsRequest, kv_pb2.DeleteKvsResponse),
            ("ListKvs", self._list, kv_pb2.ListKvsRequest, kv_pb2.ListKvsResponse),
        ):
            raw[name] = grpc.unary_unary_rpc_method_handler(
                self._calls.unary(f"KVService/{name}", handle),
                request_deserializer=deserializer(request),
                response_serializer=response.SerializeToString,
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
        response = kv_pb2.GetKvsResponse()
        for key in request.keys:
            await _entry(response.entries.add(key=key), partial(self._kv.get, context, _key(key)))
        return response

    async def _put(
        self, context: RequestContext, request: kv_pb2.PutKvsRequest, _: Rpc
    ) -> kv_pb2.PutKvsResponse:
        _check_count(len(request.puts))
        if any(put.mode not in _MODES for put in request.puts):
            raise Invalid("a put has an unknown mode")
        response = kv_pb2.PutKvsResponse()
        for put in request.puts:
            await _entry(
                response.entries.add(key=put.key),
                partial(
                    self._kv.put,
                    context,
                    _key(put.key),
                    put.data,
                    _MODES[put.mode],
                    put.expected_revision,
                ),
            )
        return response

    async def _delete(
        self, context: RequestContext, request: kv_pb2.DeleteKvsRequest, _: Rpc
    ) -> kv_pb2.DeleteKvsResponse:
        _check_count(len(request.keys))
        response = kv_pb2.DeleteKvsResponse()
        for key in request.keys:
            await _entry(
                response.entries.add(key=key), partial(self._kv.delete, context, _key(key))
            )
        return response

    async def _list(
        self, context: RequestContext, request: kv_pb2.ListKvsRequest, _: Rpc
    ) -> kv_pb2.ListKvsResponse:
        items = await self._kv.list(
            context,
            request.namespace,
            request.prefix,
            request.after if request.HasField("after") else None,
            checked_limit(request.limit),
        )
        response = kv_pb2.ListKvsResponse()
        for item in items:
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
        raise Closed("the node is shutting down; watch again, from the last revision seen + 1")


def _check_count(count: int) -> None:
    if count > KEYS_MAX:
        raise Invalid(f"the request names {count} keys; at most {KEYS_MAX} are allowed")


def _key(key: kv_pb2.KvKey) -> Key:
    return Key(key.name, key.namespace)


async def _entry(entry: kv_pb2.KvEntry, work: Callable[[], Awaitable[Value | None]]) -> None:
    try:
        value = await work()
    except StreamlogError as error:
        entry.error.CopyFrom(to_proto(error))
    else:
        if value is not None:
            _set_value(entry, value)


def _set_key(proto: kv_pb2.KvKey, key: Key) -> None:
    proto.namespace = key.namespace
    proto.name = key.name


def _set_value(entry: kv_pb2.KvEntry, value: Value) -> None:
    # The field must be there for an empty value, too.
    entry.value.SetInParent()
    entry.value.data = value.data
    entry.value.revision = value.revision
