"""KVService's calls: request and result of each, for the blocking and the asyncio client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from streamlog.client.channel import BaseCaller, Call
from streamlog.errors import Internal, Invalid
from streamlog.model.kv import Key, KeyValue, KVChange, Value
from streamlog.v1 import kv_pb2
from streamlog.v1support.errors import from_proto

PAGE = 1000
WATCH = "/streamlog.v1.KVService/WatchKvs"
NOT_IN_PLACE = "the server ended the watch before it was in place"


def _entry(response: Any) -> Value | None:
    if len(response.entries) != 1:
        raise Internal(f"{len(response.entries)} entries in the answer for one key")
    return _value(response.entries[0])


def _value(entry: Any) -> Value | None:
    if entry.HasField("error"):
        raise from_proto(entry.error)
    return Value(entry.value.data, entry.value.revision) if entry.HasField("value") else None


def _stored(response: Any) -> Value:
    value = _entry(response)
    if value is None:
        raise Internal("the answer to a put has no value")
    return value


def _made(message_type: Any, **fields: Any) -> Any:
    """Errors: Invalid for values that the message cannot hold."""
    try:
        if None in fields.values():
            raise TypeError("None was given")  # It would be taken for an empty value.
        return message_type(**fields)
    except UnicodeEncodeError as error:
        raise Invalid(f"{error.object[:80]!r} cannot be written as utf-8") from error
    except (TypeError, ValueError) as error:
        raise Invalid(
            "keys, prefixes and values are bytes, namespaces text, revisions integers of 64 bits; "
            f"{error}"
        ) from error


def _key(key: Key) -> Any:
    return _made(kv_pb2.KvKey, namespace=key.namespace, name=key.name)


def get(key: Key) -> Call:
    request = kv_pb2.GetKvsRequest(keys=[_key(key)])
    return Call("KVService/GetKvs", request, kv_pb2.GetKvsResponse, _entry)


def put(key: Key, data: bytes, mode: Any, expected_revision: int = 0) -> Call:
    entry = _made(
        kv_pb2.PutKv, key=_key(key), data=data, mode=mode, expected_revision=expected_revision
    )
    request = kv_pb2.PutKvsRequest(puts=[entry])
    return Call("KVService/PutKvs", request, kv_pb2.PutKvsResponse, _stored, writes=True)


def delete(key: Key) -> Call:
    request = kv_pb2.DeleteKvsRequest(keys=[_key(key)])
    return Call("KVService/DeleteKvs", request, kv_pb2.DeleteKvsResponse, _entry, writes=True)


def list_page(namespace: str, prefix: bytes, after: bytes | None) -> Call:
    """Its result: a page, and whether there may be more behind it."""
    request = _made(kv_pb2.ListKvsRequest, namespace=namespace, prefix=prefix, limit=PAGE)
    if after is not None:
        request.after = after

    def read(response: Any) -> tuple[list[KeyValue], bool]:
        key_values: list[KeyValue] = []
        for entry in response.entries:
            value = _value(entry)
            if value is not None:
                key_values.append(KeyValue(Key(entry.key.name, entry.key.namespace), value))
        # A node that does not know `more` fills its pages.
        more = response.more or len(key_values) >= PAGE
        return key_values, more and bool(key_values)

    return Call("KVService/ListKvs", request, kv_pb2.ListKvsResponse, read)


def watch_method(caller: BaseCaller) -> Any:
    """The streaming WatchKvs of the caller's channel. Its calls have the errors of the guard."""
    return caller.guard.checked(
        caller.channel.unary_stream(
            WATCH,
            request_serializer=kv_pb2.WatchKvsRequest.SerializeToString,
            response_deserializer=kv_pb2.WatchKvsResponse.FromString,
        )
    )


def watch_request(namespace: str, prefix: bytes, from_revision: int | None) -> Any:
    begin = {} if from_revision is None else {"from_revision": from_revision}
    return _made(kv_pb2.WatchKvsRequest, namespace=namespace, prefix=prefix, **begin)


def changes(response: Any) -> Iterator[KVChange]:
    for entry in response.changes:
        key = Key(entry.key.name, entry.key.namespace)
        yield KVChange(key, _value(entry), response.revision)
