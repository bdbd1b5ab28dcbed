"""`[limits]`: bounds on what clients may ask of a node."""

from __future__ import annotations

from dataclasses import dataclass

from streamlog.runtime.config import setting

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class LimitsConfig:
    """Bounds on what clients may ask of one node."""

    connections_max: int = setting(
        2000,
        "TCP connections to the gRPC port, as many to each Kafka listener, and as many to the HTTP "
        "port, where scrapers and probes keep theirs; the next one is closed at once. A connection "
        "costs about 30 KiB of memory.",
        minimum=1,
        maximum=100_000,
    )
    requests_max: int = setting(
        20_000,
        "Requests under way on all connections together, long polls included; the next one is "
        "refused with RESOURCE_EXHAUSTED.",
        minimum=10,
        maximum=1_000_000,
        dynamic=True,
    )
    requests_per_connection_max: int = setting(
        4096,
        "Requests under way on one connection; the client's library holds back the next one.",
        minimum=1,
        maximum=100_000,
    )
    in_flight_bytes_per_connection_max: int = setting(
        32 * MIB,
        "Bytes of produce and append requests of one connection, and of those that put small "
        "values, that are not answered yet; above this the connection is not read from (streams) "
        "or the request waits (unary calls). One request may pass the bound when it is alone.",
        minimum=64 * 1024,
        maximum=1024 * MIB,
    )
    message_bytes_max: int = setting(
        32 * MIB,
        "Size of one gRPC message from a client; a larger one is refused with RESOURCE_EXHAUSTED. "
        "A topic's max.message.bytes is at most this less 1 KiB.",
        minimum=64 * 1024,
        maximum=1024 * MIB,
    )
    kafka_request_bytes_max: int = setting(
        100 * MIB,
        "Size of one request of Kafka's protocol, Kafka's socket.request.max.bytes; a connection "
        "that sends a larger one is closed.",
        minimum=64 * 1024,
        maximum=1024 * MIB,
    )
    connections_max_idle_ms: int = setting(
        600_000,
        "How long a connection of Kafka's protocol stays open without a whole request and without "
        "reading what it was answered, Kafka's connections.max.idle.ms. A client that waits for an "
        "answer is not idle.",
        minimum=1000,
        maximum=86_400_000,
    )
    fetch_bytes_max: int = setting(
        16 * MIB,
        "Bytes of record batches in one fetch answer (Fetch, FetchStream), even if a client asks "
        "for more; one batch may pass it. Memory: this much for each fetch under way.",
        minimum=64 * 1024,
        maximum=1024 * MIB,
    )
    fetch_wait_ms_max: int = setting(
        300_000,
        "Longest wait of a long poll; a request for more gets this.",
        minimum=0,
        maximum=86_400_000,
    )
    fetch_sessions_max: int = setting(
        1000,
        "Fetch sessions of Kafka consumers; each consumer has one on each node that it reads from. "
        "When all places are taken, a new one takes that of a session unused for two minutes, or "
        "of a smaller one; a consumer without a session names all its partitions in each fetch.",
        minimum=0,
        maximum=1_000_000,
    )
    fetch_session_partitions_max: int = setting(
        250_000,
        "Partitions in all fetch sessions together; a session that would pass it is not kept, "
        "unless sessions unused for two minutes make room. "
        "Memory: about 600 bytes each.",
        minimum=0,
        maximum=100_000_000,
    )
    produce_timeout_ms: int = setting(
        30_000,
        "How long produce and append wait for room, and DeleteRecords for its deletions, when the "
        "client names no time.",
        minimum=1,
        maximum=3_600_000,
    )
    open_wait_ms: int = setting(
        10_000,
        "How long a request that reads, asks for offsets or describes waits for its partitions "
        "that are being opened, all together; then each that is not open gets a retriable error, "
        "and the open goes on. Longer: fewer retries while a node starts. Shorter: clients learn "
        "sooner that a store is away.",
        minimum=1,
        maximum=3_600_000,
    )
    client_ids_max: int = setting(
        100,
        "Client ids that have metric lines of their own; requests of further ones are counted "
        "under `(other)`, those without one under `(none)`. Each costs three lines of a scrape.",
        minimum=1,
        maximum=10_000,
    )
    partitions_per_request_max: int = setting(
        10_000, "Partitions named in one request.", minimum=1, maximum=1_000_000
    )
    pins_max: int = setting(
        10_000,
        "Pins that readers who go to the store themselves hold at once, through all nodes together "
        "and about; the next one is refused until some end. A batch read on Spark leaves its pin "
        "behind for pinTtlMs. Cost: about 200 bytes of metadata each, read whenever the collector "
        "looks and a pin is put; and pinned objects are not deleted.",
        minimum=1,
        maximum=1_000_000,
    )
    locates_max: int = setting(
        4,
        "Requests for the places of records, plans of reads on Spark, that are answered at once; "
        "16 times as many wait for their turn. Each takes some seconds of a core for a million "
        "objects; more of them leave less to produce and fetch.",
        minimum=1,
        maximum=1000,
    )
    kv_value_bytes_max: int = setting(
        512 * 1024, "Size of one value put through KVService.", minimum=1, maximum=MIB
    )


TOPIC_NAME_BYTES_MAX = 249
"""Kafka's bound; the letters are Kafka's too: [a-zA-Z0-9._-]."""
KV_NAME_BYTES_MAX = 1024
NAMESPACE_BYTES_MAX = 64
TAGS_BYTES_MAX = 1024
CLIENT_ID_BYTES_MAX = 255
MESSAGE_OVERHEAD_BYTES_MAX = 1024
"""The fields of a produce message beside one record batch: topic, its id, partition, lengths."""
RECORDS_FORM_BYTES_MAX = MIB
"""Produce with plain records, and a fetch answer in plain records."""
