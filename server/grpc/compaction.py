"""CompactionService over gRPC.

A call runs three tasks: one reads the executor's messages, one sends it jobs, one waits until the
compactor has nothing left to merge. An error of the executor ends it (`remote.end`); then the
compactor finishes in its own order, and the call ends with that error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from streamlog.compaction.compactor import Totals
from streamlog.compaction.workers.remote import RemoteExecutor
from streamlog.errors import Closed, Invalid, StreamlogError, Unavailable
from streamlog.server.context import RequestContext
from streamlog.server.grpc.calls import Calls, Handlers, Rpc, parse
from streamlog.server.grpc.log import reader
from streamlog.server.limits.pipeline import Drain
from streamlog.server.services.merging import MergeService
from streamlog.v1 import compaction_pb2
from streamlog.v1support.errors import from_proto

SERVICE = "streamlog.v1.CompactionService"
SILENT_S = 120.0
"""Executors send a sign of life every few seconds."""

Read = Callable[[], Awaitable[bytes | None]]


class GrpcCompaction:
    def __init__(self, merging: MergeService, *, calls: Calls, drain: Drain) -> None:
        self._merging = merging
        self._calls = calls
        self._drain = drain

    def handlers(self) -> Handlers:
        raw: dict[str, Any] = {
            "ExecuteMerges": grpc.stream_stream_rpc_method_handler(
                self._calls.streaming("CompactionService/ExecuteMerges", self._on_execute_merges),
                response_serializer=compaction_pb2.ExecuteMergesResponse.SerializeToString,
            )
        }
        return grpc.method_handlers_generic_handler(SERVICE, raw)

    async def _on_execute_merges(self, context: RequestContext, _: object, rpc: Rpc) -> None:
        read = reader(rpc)
        first = await _next_message(read)
        if first is None or first.WhichOneof("said") != "executor":
            raise Invalid("the first message of the call must name the executor (`executor.owner`)")
        with self._merging.lend(context, first.executor.owner) as remote:
            await rpc.write(
                compaction_pb2.ExecuteMergesResponse(
                    accepted=compaction_pb2.MergesAccepted(
                        cluster_id=self._merging.cluster_id, store_url=self._merging.store_url
                    )
                )
            )
            totals = await self._merge(remote, read, rpc)
        settled = compaction_pb2.MergesSettled(
            merges=totals.specs, inputs=totals.inputs, outputs=totals.outputs
        )
        await rpc.write(compaction_pb2.ExecuteMergesResponse(settled=settled))

    async def _merge(self, remote: RemoteExecutor, read: Read, rpc: Rpc) -> Totals:
        def end() -> None:
            remote.end(Closed("the node is shutting down; begin again when it is back"))

        self._drain.add(end)
        try:
            async with asyncio.TaskGroup() as group:
                helpers = [
                    group.create_task(_listen(remote, read)),
                    group.create_task(_send(remote, rpc)),
                ]
                try:
                    return await self._merging.merge_all(remote)
                finally:
                    for helper in helpers:
                        helper.cancel()
        except ExceptionGroup as group_error:
            raise group_error.exceptions[0] from None
        finally:
            self._drain.remove(end)


async def _next_message(read: Read) -> Any:
    """The next message; None at the end. Errors: Invalid, Unavailable (silence)."""
    try:
        async with asyncio.timeout(SILENT_S):
            message = await read()
    except TimeoutError:
        raise Unavailable(f"the executor sent nothing for {SILENT_S:g} s") from None
    return None if message is None else parse(compaction_pb2.ExecuteMergesRequest, message)


async def _listen(remote: RemoteExecutor, read: Read) -> None:
    """Reads until the executor ends, or sends a message that is not allowed."""
    try:
        while True:
            message = await _next_message(read)
            if message is None:
                remote.end(Closed("the executor ended its call"))
                return
            kind = message.WhichOneof("said")
            if kind == "done":
                remote.done(message.done.number, message.done.outcome)
            elif kind == "failed":
                remote.failed(message.failed.number, from_proto(message.failed.error))
            elif kind == "executor":
                raise Invalid("the executor was named before; name it in the first message alone")
    except StreamlogError as error:
        remote.end(error)


async def _send(remote: RemoteExecutor, rpc: Rpc) -> None:
    while True:
        number, job = await remote.next_job()
        sent = compaction_pb2.MergeJob(number=number, job=job)
        await rpc.write(compaction_pb2.ExecuteMergesResponse(job=sent))
