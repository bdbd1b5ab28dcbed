"""Small values under names, linearizable; for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

from streamlog.client.aio.channel import CallingClient, closed_not_cancelled
from streamlog.client.calls import kv as kv_calls
from streamlog.client.channel import UNARY_TIMEOUT_MS, Retry, typed_error
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

    async def get(self, name: bytes, *, namespace: str = NAMESPACE_DEFAULT) -> Value | None:
        """The key's value; None where the key does not exist."""
        value: Value | None = await self._caller.run(kv_calls.get(Key(name, namespace)))
        return value

    async def put(self, name: bytes, data: bytes, *, namespace: str = NAMESPACE_DEFAULT) -> Value:
        """Stores `data` and returns the stored value."""
        return await self._put(Key(name, namespace), data, kv_pb2.PUT_MODE_ALWAYS)

    async def put_if_absent(
        self, name: bytes, data: bytes, *, namespace: str = NAMESPACE_DEFAULT
    ) -> Value:
        """Stores `data` unless the key exists; returns the value stored now."""
        return await self._put(Key(name, namespace), data, kv_pb2.PUT_MODE_IF_ABSENT)

    async def compare_and_set(
        self,
        name: bytes,
        data: bytes,
        expected_revision: int,
        *,
        namespace: str = NAMESPACE_DEFAULT,
    ) -> Value:
        """Stores `data` if the key has that revision (0: absent). Errors: ValueConflict."""
        key = Key(name, namespace)
        return await self._put(key, data, kv_pb2.PUT_MODE_COMPARE_AND_SET, expected_revision)

    async def _put(self, key: Key, data: bytes, mode: Any, expected_revision: int = 0) -> Value:
        stored: Value = await self._caller.run(kv_calls.put(key, data, mode, expected_revision))
        return stored

    async def delete(self, name: bytes, *, namespace: str = NAMESPACE_DEFAULT) -> Value | None:
        """Removes the key; returns its value, None where it did not exist."""
        removed: Value | None = await self._caller.run(kv_calls.delete(Key(name, namespace)))
        return removed

    async def list(
        self, *, namespace: str = NAMESPACE_DEFAULT, prefix: bytes = b""
    ) -> AsyncIterator[KeyValue]:
        """All keys with that prefix, in order, page by page."""
        after: bytes | None = None
        while True:
            page, more = await self._caller.run(kv_calls.list_page(namespace, prefix, after))
            for entry in page:
                yield entry
            if not more:
                return
            after = page[-1].key.name

    async def watch(
        self,
        *,
        namespace: str = NAMESPACE_DEFAULT,
        prefix: bytes = b"",
        from_revision: int | None = None,
    ) -> AsyncIterator[KVChange]:
        """Changes in revision order, from `from_revision` (inclusive) or from now on, without end.

        `async for change in await kv.watch()`: the watch is in place when `await` ends. Errors:
        RevisionCompacted; Unavailable where it is not in place in time, or where it breaks off
        later.
        """
        request = kv_calls.watch_request(namespace, prefix, from_revision)
        retry = Retry(self._caller, self._timeout_ms)
        while True:
            try:
                return self._changes(*await self._begun(request, retry.left_s()))
            except StreamlogError as error:
                wait_s = retry.wait_s(error)
            await asyncio.sleep(wait_s)

    async def _begun(self, request: Any, timeout_s: float) -> tuple[Any, Any, Any]:
        """A watch, its answers, and the first of them, which confirms that it is in place."""
        call = self._watch(request, metadata=self._caller.metadata)
        responses = aiter(call)
        is_begun = False
        try:
            with closed_not_cancelled(self._caller.guard):
                async with asyncio.timeout(min(timeout_s, WAIT_S_MAX)):
                    first = await anext(responses)
            is_begun = True
        except TimeoutError:
            raise Unavailable("no answer came") from None
        except StopAsyncIteration:
            raise Unavailable(kv_calls.NOT_IN_PLACE) from None
        except grpc.RpcError as error:
            raise typed_error(error, writes=False) from None
        finally:
            if not is_begun:
                call.cancel()
        return call, responses, first

    async def _changes(self, call: Any, responses: Any, response: Any) -> AsyncIterator[KVChange]:
        try:
            for change in kv_calls.changes(response):
                yield change
            with closed_not_cancelled(self._caller.guard):
                async for response in responses:
                    for change in kv_calls.changes(response):
                        yield change
        except grpc.RpcError as error:
            raise typed_error(error, writes=False) from None
        finally:
            call.cancel()
