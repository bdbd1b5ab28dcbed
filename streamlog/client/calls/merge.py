"""A node's merges carried out elsewhere: the call that brings jobs and takes their outcomes.

What a job and an outcome say is for whoever carries them out; here they are bytes.
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
"""When nothing else was said for so long, that the executor lives."""


class Accepted(NamedTuple):
    cluster_id: str
    store_url: str


class MergeJob(NamedTuple):
    number: int
    job: bytes


class Settled(NamedTuple):
    """What the node has committed meanwhile."""

    merges: int
    inputs: int
    outputs: int


class MergeCall:
    """One call, of one thread. Close it, or use it in `with`: what is under way is given up."""

    def __init__(self, caller: Caller, owner: str) -> None:
        """`owner`: for people who ask the node who has its merges."""
        self._said: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._say(executor=compaction_pb2.MergeExecutor(owner=owner))
        method: Any = caller.channel.stream_stream(
            "/streamlog.v1.CompactionService/ExecuteMerges",
            request_serializer=compaction_pb2.ExecuteMergesRequest.SerializeToString,
            response_deserializer=compaction_pb2.ExecuteMergesResponse.FromString,
        )
        self._call = method(self._requests(), metadata=caller.metadata)

    def events(self) -> Iterator[Accepted | MergeJob | Settled]:
        """Accepted, jobs, Settled. Errors: those of the node (Conflict: another executor has its
        merges), Unavailable, Closed.
        """
        try:
            for response in self._call:
                said = response.WhichOneof("said")
                if said == "accepted":
                    yield Accepted(response.accepted.cluster_id, response.accepted.store_url)
                elif said == "job":
                    yield MergeJob(response.job.number, response.job.job)
                elif said == "settled":
                    one = response.settled
                    yield Settled(one.merges, one.inputs, one.outputs)
        except grpc.RpcError as error:
            raise typed_error(error, writes=False) from None

    def done(self, number: int, outcome: bytes) -> None:
        self._say(done=compaction_pb2.MergeDone(number=number, outcome=outcome))

    def failed(self, number: int, error: StreamlogError) -> None:
        """An input is damaged or gone. For any other failure close the call."""
        self._say(failed=compaction_pb2.MergeFailed(number=number, error=to_proto(error)))

    def on_end(self, told: Callable[[], object]) -> None:
        """`told` is called from a thread of gRPC's when the call is over, however it ended."""
        if not self._call.add_callback(told):
            told()

    def raise_if_over(self) -> None:
        """Errors: why the node ended the call, if it did."""
        if self._call.is_active():
            return
        for _ in self.events():
            """Nothing but its end is left to be told."""
        raise Closed("the node ended the call")

    def close(self) -> None:
        """Harmless when called again."""
        self._call.cancel()
        self._said.put(None)

    def __enter__(self) -> MergeCall:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _say(self, **said: Any) -> None:
        self._said.put(compaction_pb2.ExecuteMergesRequest(**said))

    def _requests(self) -> Iterator[Any]:
        while True:
            try:
                request = self._said.get(timeout=ALIVE_S)
            except queue.Empty:
                request = compaction_pb2.ExecuteMergesRequest()
            if request is None:
                return
            yield request
