"""Small values under names, linearizable."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc

from streamlog.client.calls import kv as kv_calls
from streamlog.client.channel import UNARY_TIMEOUT_MS, Retry, typed_error
from streamlog.client.closing import CallingClient
from streamlog.client.settings import WAIT_S_MAX
from streamlog.client.tls import Tls
from streamlog.errors import StreamlogError, Unavailable
from streamlog.model.kv import NAMESPACE_DEFAULT, Key, KeyValue, KVChange, Value
from streamlog.v1 import kv_pb2


class KV(CallingClient):
    __doc__ = CallingClient.__doc__

    def __init__(
        self,
        server: str,
        *,
        timeout_ms: int = UNARY_TIMEOUT_MS,
        client_id: str = "",
        tls: Tls | bool | None = None,
    ) -> None:
        super().__init__(server, timeout_ms=timeout_ms, client_id=client_id, tls=tls)
        self._watch = kv_calls.watch_method(self._caller)

    def get(self, name: bytes, *, namespace: str = NAMESPACE_DEFAULT) -> Value | None:
        """The key's value; None where the key does not exist."""
        value: Value | None = self._caller.run(kv_calls.get(Key(name, namespace)))
        return value

    def put(self, name: bytes, data: bytes, *, namespace: str = NAMESPACE_DEFAULT) -> Value:
        """Stores `data` and returns the stored value."""
        return self._put(Key(name, namespace), data, kv_pb2.PUT_MODE_ALWAYS)

    def put_if_absent(
        self, name: bytes, data: bytes, *, namespace: str = NAMESPACE_DEFAULT
    ) -> Value:
        """Stores `data` unless the key exists; returns the value stored now."""
        return self._put(Key(name, namespace), data, kv_pb2.PUT_MODE_IF_ABSENT)

    def compare_and_set(
        self,
        name: bytes,
        data: bytes,
        expected_revision: int,
        *,
        namespace: str = NAMESPACE_DEFAULT,
    ) -> Value:
        """Stores `data` if the key has that revision (0: absent). Errors: ValueConflict."""
        key = Key(name, namespace)
        return self._put(key, data, kv_pb2.PUT_MODE_COMPARE_AND_SET, expected_revision)

    def _put(self, key: Key, data: bytes, mode: Any, expected_revision: int = 0) -> Value:
        stored: Value = self._caller.run(kv_calls.put(key, data, mode, expected_revision))
        return stored

    def delete(self, name: bytes, *, namespace: str = NAMESPACE_DEFAULT) -> Value | None:
        """Removes the key; returns its value, None where it did not exist."""
        removed: Value | None = self._caller.run(kv_calls.delete(Key(name, namespace)))
        return removed

    def list(
        self, *, namespace: str = NAMESPACE_DEFAULT, prefix: bytes = b""
    ) -> Iterator[KeyValue]:
        """All keys with that prefix, in order, page by page."""
        after: bytes | None = None
        while True:
            page, more = self._caller.run(kv_calls.list_page(namespace, prefix, after))
            yield from page
            if not more:
                return
            after = page[-1].key.name

    def watch(
        self,
        *,
        namespace: str = NAMESPACE_DEFAULT,
        prefix: bytes = b"",
        from_revision: int | None = None,
    ) -> Iterator[KVChange]:
        """Changes in revision order, from `from_revision` (inclusive) or from now on, without end.

        The watch is in place when this returns. Errors: RevisionCompacted; Unavailable where it is
        not in place in time, or where it breaks off later.
        """
        request = kv_calls.watch_request(namespace, prefix, from_revision)
        retry = Retry(self._caller, self._timeout_ms)
        while True:
            try:
                return self._changes(*self._begun(request, retry.left_s()))
            except StreamlogError as error:
                wait_s = retry.wait_s(error)
            time.sleep(wait_s)

    def _begun(self, request: Any, timeout_s: float) -> tuple[Any, Any]:
        """A watch and its first answer, which confirms that it is in place.

        A deadline of gRPC would end the whole watch, so that a timer bounds the first answer alone.
        """
        call = self._watch(request, metadata=self._caller.metadata)
        timer = threading.Timer(min(timeout_s, WAIT_S_MAX), call.cancel)
        timer.daemon = True
        timer.start()
        try:
            return call, next(call)
        except StopIteration:
            raise Unavailable(kv_calls.NOT_IN_PLACE) from None
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.CANCELLED and not self._caller.guard.is_ended:
                raise Unavailable("no answer came") from None
            raise typed_error(error, writes=False) from None
        finally:
            timer.cancel()

    def _changes(self, call: Any, response: Any) -> Iterator[KVChange]:
        try:
            yield from kv_calls.changes(response)
            for response in call:
                yield from kv_calls.changes(response)
        except grpc.RpcError as error:
            self._caller.guard.check()
            raise typed_error(error, writes=False) from None
        finally:
            call.cancel()
