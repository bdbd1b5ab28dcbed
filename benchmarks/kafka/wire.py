"""One blocking connection that speaks Kafka's protocol, and frames encoded beforehand."""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from streamlog.kafka.messages.create_topics_request import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from streamlog.kafka.messages.delete_topics_request import DeleteTopicsRequest
from streamlog.kafka.messages.describe_configs_request import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from streamlog.kafka.messages.init_producer_id_request import InitProducerIdRequest
from streamlog.kafka.messages.metadata_request import MetadataRequest, MetadataRequestTopic
from streamlog.kafka.messages.produce_request import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from streamlog.kafka.protocol.apis import APIS, ApiKey, decode_response, request_codec
from streamlog.kafka.protocol.errors import KafkaError
from streamlog.kafka.protocol.headers import (
    decode_response_header,
    encode_request_header,
)

SIZE_BYTES = 4
CLIENT_ID = "bench"
TIMEOUT_MS = 30_000
VERSIONS = {
    ApiKey.PRODUCE: 9,
    ApiKey.FETCH: 12,
    ApiKey.LIST_OFFSETS: 8,
    ApiKey.METADATA: 9,
    ApiKey.CREATE_TOPICS: 5,
    ApiKey.DELETE_TOPICS: 4,
    ApiKey.DESCRIBE_CONFIGS: 4,
    ApiKey.INIT_PRODUCER_ID: 4,
    ApiKey.FIND_COORDINATOR: 3,
    ApiKey.ADD_PARTITIONS_TO_TXN: 3,
    ApiKey.END_TXN: 3,
}
LEADER_TIMEOUT_S = 60.0
TOPIC_RESOURCE = 2
_STARTING = (KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.COORDINATOR_NOT_AVAILABLE)
_FOUND = (KafkaError.NONE, KafkaError.TOPIC_ALREADY_EXISTS)


def encode_frame(
    api: ApiKey, request: Any, correlation_id: int, client_id: str = CLIENT_ID
) -> bytes:
    """The request with its size and header."""
    version = VERSIONS[api]
    head = encode_request_header(APIS[api], version, correlation_id, client_id)
    body = b"".join((head, *request_codec(api).encode(request, version)))
    return len(body).to_bytes(SIZE_BYTES, "big") + body


def produce_frame(
    topic: str, partition: int, batch: bytes, correlation_id: int, client_id: str = CLIENT_ID
) -> bytes:
    part = PartitionProduceData(index=partition, records=memoryview(batch))
    request = ProduceRequest(
        transactional_id=None,
        acks=-1,
        timeout_ms=TIMEOUT_MS,
        topic_data=[TopicProduceData(name=topic, partition_data=[part])],
    )
    return encode_frame(ApiKey.PRODUCE, request, correlation_id, client_id)


class KafkaConnection:
    def __init__(self, server: str, tls: ssl.SSLContext | None = None) -> None:
        host, _, port = server.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=120)
        if tls is not None:
            self._socket = tls.wrap_socket(self._socket, server_hostname=host)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = bytearray()

    def __enter__(self) -> KafkaConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, api: ApiKey, request: Any) -> Any:
        """The response to the only request under way."""
        self.send(encode_frame(api, request, 1))
        return self.response(api)

    def send(self, frame: bytes) -> None:
        self._socket.sendall(frame)

    def response(self, api: ApiKey) -> Any:
        """The next response."""
        received = self._received
        while len(received) < SIZE_BYTES or len(received) < SIZE_BYTES + _size(received):
            more = self._socket.recv(1 << 16)
            if not more:
                raise RuntimeError("the server closed the connection")
            received += more
        end = SIZE_BYTES + _size(received)
        frame = memoryview(bytes(received[SIZE_BYTES:end]))
        del received[:end]
        version = VERSIONS[api]
        _, at = decode_response_header(APIS[api], version, frame)
        return decode_response(api, version, frame, at)

    def make_topic(
        self, name: str, partitions: int, settings: Mapping[str, str] | None = None
    ) -> bool:
        """Creates the topic, where it is not there, and returns when its partitions have leaders:
        True if it was not there."""
        configs = [
            CreatableTopicConfig(name=setting, value=value)
            for setting, value in (settings or {}).items()
        ]
        topic = CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=1, configs=configs
        )
        made = self.ask(
            ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=[topic], timeout_ms=TIMEOUT_MS)
        )
        error = KafkaError(made.topics[0].error_code)
        if error not in _FOUND:
            raise RuntimeError(f"no topic {name}: {error.name} {made.topics[0].error_message}")
        give_up = time.monotonic() + LEADER_TIMEOUT_S
        while time.monotonic() < give_up:
            found = self.ask(
                ApiKey.METADATA, MetadataRequest(topics=[MetadataRequestTopic(name=name)])
            )
            leaders = [part.leader_id for part in found.topics[0].partitions]
            if len(leaders) == partitions and min(leaders) >= 0:
                return error is KafkaError.NONE
            time.sleep(0.1)
        raise RuntimeError(f"topic {name} has no leaders after {LEADER_TIMEOUT_S} s")

    def topic_settings(self, name: str, settings: Sequence[str]) -> dict[str, str | None]:
        """Those of the topic's settings that the server knows."""
        resource = DescribeConfigsResource(
            resource_type=TOPIC_RESOURCE, resource_name=name, configuration_keys=settings
        )
        request = DescribeConfigsRequest(resources=[resource])
        (result,) = self.ask(ApiKey.DESCRIBE_CONFIGS, request).results
        if result.error_code:
            raise RuntimeError(f"settings of {name}: {KafkaError(result.error_code).name}")
        return {one.name: one.value for one in result.configs}

    def delete_topic(self, name: str) -> None:
        """A topic that is gone already is well."""
        request = DeleteTopicsRequest(topic_names=[name], timeout_ms=TIMEOUT_MS)
        error = KafkaError(self.ask(ApiKey.DELETE_TOPICS, request).responses[0].error_code)
        if error not in (KafkaError.NONE, KafkaError.UNKNOWN_TOPIC_OR_PARTITION):
            raise RuntimeError(f"topic {name} was not deleted: {error.name}")

    def new_producer(self) -> tuple[int, int]:
        """A producer id and its epoch."""
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=-1)
        give_up = time.monotonic() + LEADER_TIMEOUT_S
        while True:
            made = self.ask(ApiKey.INIT_PRODUCER_ID, request)
            error = KafkaError(made.error_code)
            if error is KafkaError.NONE:
                break
            # A Kafka that was started just now asks its controller for ids first.
            if error not in _STARTING or time.monotonic() > give_up:
                raise RuntimeError(f"no producer id: {error.name}")
            time.sleep(0.1)
        return made.producer_id, made.producer_epoch

    def blast(
        self,
        frames: Iterable[bytes],
        unanswered_max: int,
        distance_s: float = 0.0,
        answered: list[float] | None = None,
    ) -> list[float]:
        """Milliseconds from each produce frame's sending to its answer; every answer is checked.

        `distance_s`: between the times at which frames are due; latency counts from there.
        `answered`: gets the time of each answer, by time.perf_counter.
        """
        if not distance_s:
            return self.blast_when_due(frames, unanswered_max, None, answered)
        began = time.perf_counter()
        return self.blast_when_due(
            frames, unanswered_max, lambda number: began + number * distance_s, answered
        )

    def blast_when_due(
        self,
        frames: Iterable[bytes],
        unanswered_max: int,
        due_at: Callable[[int], float] | None,
        answered: list[float] | None = None,
    ) -> list[float]:
        """As `blast`. `due_at`: when the frame of this number is due, by time.perf_counter; None:
        at once. A frame that is due is sent after the answers that have come, so one thread does
        for both.
        """
        latencies: list[float] = []
        sent: list[float] = []
        for number, frame in enumerate(frames):
            while len(sent) - len(latencies) >= unanswered_max:
                self._take_answer(sent, latencies, answered)
            due = 0.0 if due_at is None else due_at(number)
            while (left := due - time.perf_counter()) > 0:
                if len(sent) > len(latencies) and self._is_readable(left):
                    self._take_answer(sent, latencies, answered)
                elif len(sent) == len(latencies):
                    time.sleep(left)
            sent.append(due or time.perf_counter())
            self.send(frame)
        while len(latencies) < len(sent):
            self._take_answer(sent, latencies, answered)
        return latencies

    def _take_answer(
        self, sent: list[float], latencies: list[float], answered: list[float] | None
    ) -> None:
        response = self.response(ApiKey.PRODUCE)
        now = time.perf_counter()
        latencies.append((now - sent[len(latencies)]) * 1e3)
        if answered is not None:
            answered.append(now)
        for topic in response.responses:
            for part in topic.partition_responses:
                if part.error_code:
                    name = KafkaError(part.error_code).name
                    raise RuntimeError(f"refused: {name} {part.error_message}")

    def _is_readable(self, wait_s: float) -> bool:
        readable, _, _ = select.select([self._socket], [], [], wait_s)
        return bool(readable) or len(self._received) >= SIZE_BYTES


def _size(received: bytearray) -> int:
    return int.from_bytes(received[:SIZE_BYTES], "big")
