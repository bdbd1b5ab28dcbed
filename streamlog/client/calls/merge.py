"""A node's merges carried out elsewhere: the call that brings jobs and takes their outcomes.

Jobs and outcomes are bytes here; the executor reads and writes them.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import grpc

from streamlog.client.channel import Caller, typed_error
from streamlog.errors import Closed, StreamlogError
from streamlog.v1 import compaction_pb2
from streamlog.v1support.errors import to_proto

ALIVE_S = 5.0
"""After so long without a request, an empty one tells the node that the executor lives."""


class Accepted(NamedTuple):
    cluster_id: str
    store_url: str


class MergeJob(NamedTuple):
    number: int
    job: bytes


class MergesCommitted(NamedTuple):
    """What the node has committed in all."""

    merges: int
    inputs: int
    outputs: int


class MergeCall:
    """One call, used by one thread. Close it, or use it in `with`: jobs under way are given up."""

    def __init__(self, caller: Caller, owner: str) -> None:
        """`owner`: a name for the executor, which the node shows to people."""
        self._requests_out: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._send(executor=compaction_pb2.MergeExecutor(owner=owner))
        method: Any = caller.channel.stream_stream(
            "/streamlog.v1.CompactionService/ExecuteMerges",
            request_serializer=compaction_pb2.ExecuteMergesRequest.SerializeToString,
            response_deserializer=compaction_pb2.ExecuteMergesResponse.FromString,
        )
        self._call = method(self._requests(), metadata=caller.metadata)

    def events(self) -> Iterator[Accepted | MergeJob | MergesCommitted]:
        """Accepted, then jobs, then what was committed in all.

        Errors: those of the node (Conflict: another executor has its merges), Unavailable, Closed.
        """
        try:
            for response in self._call:
                kind = response.WhichOneof("said")
                if kind == "accepted":
                    yield Accepted(response.accepted.cluster_id, response.accepted.store_url)
                elif kind == "job":
                    yield MergeJob(response.job.number, response.job.job)
                elif kind == "settled":
                    progress = response.settled
                    yield MergesCommitted(progress.merges, progress.inputs, progress.outputs)
        except grpc.RpcError as error:
            raise typed_error(error, writes=False) from None

    def done(self, number: int, outcome: bytes) -> None:
        self._send(done=compaction_pb2.MergeDone(number=number, outcome=outcome))

    def failed(self, number: int, error: StreamlogError) -> None:
        """An input is damaged or gone. For any other failure close the call."""
        self._send(failed=compaction_pb2.MergeFailed(number=number, error=to_proto(error)))

    def on_end(self, callback: Callable[[], object]) -> None:
        """Runs `callback` in a thread of gRPC's when the call is over, however it ended."""
        if not self._call.add_callback(callback):
            callback()

    def raise_if_over(self) -> None:
        """Errors: why the node ended the call, if it did."""
        if self._call.is_active():
            return
        for _ in self.events():
            """The next event is the error that ended the call."""
        raise Closed("the node ended the call")

    def close(self) -> None:
        """Harmless when called again."""
        self._call.cancel()
        self._requests_out.put(None)

    def __enter__(self) -> MergeCall:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self, **fields: Any) -> None:
        self._requests_out.put(compaction_pb2.ExecuteMergesRequest(**fields))

    def _requests(self) -> Iterator[Any]:
        while True:
            try:
                request = self._requests_out.get(timeout=ALIVE_S)
            except queue.Empty:
                request = compaction_pb2.ExecuteMergesRequest()
            if request is None:
                return
            yield request
