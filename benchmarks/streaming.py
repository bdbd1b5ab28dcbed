"""Sends encoded batches over a ProduceStream, to a node or to the bare server."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence

from streamlog.v1 import log_pb2, log_pb2_grpc

MESSAGES_IN_FLIGHT_MAX = 32
BYTES_IN_FLIGHT_MAX = 16 << 20


def window(message_bytes: int) -> int:
    """The default number of unanswered messages of the client's producer."""
    return min(MESSAGES_IN_FLIGHT_MAX, BYTES_IN_FLIGHT_MAX // message_bytes)


def stream_batches(
    stub: log_pb2_grpc.LogServiceStub,
    batches: Sequence[tuple[str, int, bytes]],
    unanswered_max: int,
    distance_s: float = 0.0,
) -> list[float]:
    """Milliseconds from each message's sending to its answer; every answer is checked.

    `distance_s`: between the times at which messages are due; latency counts from there, so that a
    stalled server does not hide the wait of those behind.
    """
    room = threading.Semaphore(unanswered_max)
    sent_at: dict[int, float] = {}
    began = time.perf_counter()

    def requests() -> Iterator[log_pb2.ProduceStreamRequest]:
        for number, (topic, partition, data) in enumerate(batches):
            if distance_s:
                due = began + number * distance_s
                time.sleep(max(0.0, due - time.perf_counter()))
                sent_at[number] = due
            room.acquire()
            if not distance_s:
                sent_at[number] = time.perf_counter()
            part = log_pb2.ProducePartition(partition=partition, record_batches=data)
            request = log_pb2.ProduceRequest(
                topics=[log_pb2.ProduceTopic(topic=topic, partitions=[part])]
            )
            yield log_pb2.ProduceStreamRequest(correlation_id=number, request=request)

    latencies: list[float] = []
    for message in stub.ProduceStream(requests()):
        now = time.perf_counter()
        for answer in message.answers:
            room.release()
            latencies.append((now - sent_at.pop(answer.correlation_id)) * 1e3)
            result = answer.response.topics[0].partitions[0]
            if result.HasField("error") or answer.HasField("error"):
                raise RuntimeError(f"refused: {answer}")
    if len(latencies) != len(batches):
        raise RuntimeError(f"{len(latencies)} answers to {len(batches)} messages")
    return latencies
