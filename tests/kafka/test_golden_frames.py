"""Frames written by hand from Kafka's specification: what is on the wire does not move."""

from __future__ import annotations

import pytest

from streamlog.kafka.messages.api_versions_request import ApiVersionsRequest
from streamlog.kafka.messages.api_versions_response import ApiVersion, ApiVersionsResponse
from streamlog.kafka.messages.fetch_response import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from streamlog.kafka.messages.init_producer_id_response import InitProducerIdResponse
from streamlog.kafka.messages.metadata_request import MetadataRequest, MetadataRequestTopic
from streamlog.kafka.messages.metadata_response import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from streamlog.kafka.messages.produce_request import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from streamlog.kafka.protocol.apis import (
    APIS,
    ApiKey,
    Codec,
    decode_request,
    decode_response,
    request_codec,
    response_codec,
)
from streamlog.kafka.protocol.headers import decode_request_header, encode_request_header
from streamlog.kafka.protocol.primitives import Structure

TOPIC_ID = bytes(range(16))

REQUESTS: dict[str, tuple[ApiKey, int, Structure, str]] = {
    "ApiVersions 3": (
        ApiKey.API_VERSIONS,
        3,
        ApiVersionsRequest(client_software_name="librdkafka", client_software_version="2.16.1"),
        "0b 6c696272646b61666b61  07 322e31362e31  00",
    ),
    "Metadata 1, all topics": (ApiKey.METADATA, 1, MetadataRequest(topics=None), "ffffffff"),
    "Metadata 4, one topic": (
        ApiKey.METADATA,
        4,
        MetadataRequest(topics=[MetadataRequestTopic(name="t1")], allow_auto_topic_creation=False),
        "00000001  0002 7431  00",
    ),
    "Metadata 13, by id": (
        ApiKey.METADATA,
        13,
        MetadataRequest(
            topics=[MetadataRequestTopic(topic_id=TOPIC_ID, name=None)],
            include_topic_authorized_operations=True,
        ),
        # One topic: id, null name, no tags; auto-creation, authorized operations, no tags.
        "02  000102030405060708090a0b0c0d0e0f 00 00  01 01 00",
    ),
    "Produce 3": (
        ApiKey.PRODUCE,
        3,
        ProduceRequest(
            acks=-1,
            timeout_ms=30_000,
            topic_data=[
                TopicProduceData(
                    name="t1",
                    partition_data=[PartitionProduceData(index=5, records=b"batch")],
                )
            ],
        ),
        "ffff ffff 00007530  00000001 0002 7431  00000001 00000005  00000005 6261746368",
    ),
    "Produce 13": (
        ApiKey.PRODUCE,
        13,
        ProduceRequest(
            transactional_id="x",
            acks=1,
            timeout_ms=1,
            topic_data=[
                TopicProduceData(
                    topic_id=TOPIC_ID,
                    partition_data=[PartitionProduceData(index=5, records=b"batch")],
                )
            ],
        ),
        "02 78  0001 00000001  02 000102030405060708090a0b0c0d0e0f"
        "02 00000005  06 6261746368  00  00  00",
    ),
}
RESPONSES: dict[str, tuple[ApiKey, int, Structure, str]] = {
    "ApiVersions 0, unsupported version": (
        ApiKey.API_VERSIONS,
        0,
        ApiVersionsResponse(
            error_code=35, api_keys=[ApiVersion(api_key=18, min_version=0, max_version=4)]
        ),
        "0023  00000001  0012 0000 0004",
    ),
    "ApiVersions 3": (
        ApiKey.API_VERSIONS,
        3,
        ApiVersionsResponse(
            api_keys=[ApiVersion(api_key=0, min_version=0, max_version=13)],
            throttle_time_ms=5,
            finalized_features_epoch=1,
        ),
        # The epoch is tag 1, 8 bytes.
        "0000  02 0000 0000 000d 00  00000005  01 01 08 0000000000000001",
    ),
    "InitProducerId 4": (
        ApiKey.INIT_PRODUCER_ID,
        4,
        InitProducerIdResponse(producer_id=1000, producer_epoch=0),
        "00000000 0000 00000000000003e8 0000 00",
    ),
    "Metadata 0": (
        ApiKey.METADATA,
        0,
        MetadataResponse(
            brokers=[MetadataResponseBroker(node_id=1, host="h", port=9092)],
            topics=[
                MetadataResponseTopic(
                    name="t",
                    partitions=[
                        MetadataResponsePartition(
                            partition_index=2, leader_id=1, replica_nodes=[1], isr_nodes=(1,)
                        )
                    ],
                )
            ],
        ),
        "00000001  00000001 0001 68 00002384"
        "00000001  0000 0001 74  00000001"
        "0000 00000002 00000001  00000001 00000001  00000001 00000001",
    ),
    "Fetch 4": (
        ApiKey.FETCH,
        4,
        FetchResponse(
            responses=[
                FetchableTopicResponse(
                    topic="t",
                    partitions=[
                        PartitionData(
                            high_watermark=9,
                            last_stable_offset=8,
                            aborted_transactions=[
                                AbortedTransaction(producer_id=3, first_offset=7)
                            ],
                            records=b"batch",
                        )
                    ],
                )
            ]
        ),
        "00000000  00000001 0001 74  00000001"
        "00000000 0000 0000000000000009 0000000000000008"
        "00000001 0000000000000003 0000000000000007  00000005 6261746368",
    ),
    "Fetch 18, another leader": (
        ApiKey.FETCH,
        18,
        FetchResponse(
            session_id=77,
            responses=[
                FetchableTopicResponse(
                    topic_id=TOPIC_ID,
                    partitions=[
                        PartitionData(
                            partition_index=1,
                            error_code=6,
                            high_watermark=-1,
                            last_stable_offset=-1,
                            log_start_offset=-1,
                            aborted_transactions=None,
                            current_leader=LeaderIdAndEpoch(leader_id=2, leader_epoch=5),
                        )
                    ],
                )
            ],
            node_endpoints=[NodeEndpoint(node_id=2, host="h", port=9093)],
        ),
        "00000000 0000 0000004d  02 000102030405060708090a0b0c0d0e0f"
        "02 00000001 0006 ffffffffffffffff ffffffffffffffff ffffffffffffffff"
        # No aborted transactions (null), no preferred replica, null records.
        "00 ffffffff 00"
        # Tag 1, 9 bytes: leader, epoch, no tags. Then the topic's tags.
        "01 01 09 00000002 00000005 00  00"
        # Tag 0 of the message, 13 bytes: one endpoint with a null rack.
        "01 00 0d 02 00000002 02 68 00002385 00 00",
    ),
}


def assert_golden(codec: Codec, message: Structure, version: int, wire: str) -> bytes:
    raw = bytes.fromhex(wire)
    assert b"".join(codec.encode(message, version)).hex(" ") == raw.hex(" ")
    return raw


@pytest.mark.parametrize("name", REQUESTS)
def test_requests(name: str) -> None:
    key, version, message, wire = REQUESTS[name]
    raw = assert_golden(request_codec(key), message, version, wire)
    assert decode_request(key, version, memoryview(raw), 0) == message
    frame = memoryview(encode_request_header(APIS[key], version, 1, "me") + raw)
    header = decode_request_header(frame)
    assert decode_request(key, version, frame, header.body_at) == message


@pytest.mark.parametrize("name", RESPONSES)
def test_responses(name: str) -> None:
    key, version, message, wire = RESPONSES[name]
    raw = assert_golden(response_codec(key), message, version, wire)
    assert decode_response(key, version, memoryview(raw), 0) == message
