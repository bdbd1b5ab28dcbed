"""Settings of remote object stores."""

from __future__ import annotations

from dataclasses import dataclass

from streamlog.runtime.config import setting

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """How requests to a remote store are sent, repeated and checked. Local stores: of no effect."""

    puts_in_flight_max: int = setting(
        16,
        "Writes, lists and deletes at a time, parts of large objects among them; each has a "
        "connection and a thread. More raise throughput on stores with long latency.",
        minimum=1,
        maximum=1024,
    )
    gets_in_flight_max: int = setting(
        24,
        "GETs at a time, repeated ones among them; each has a connection and a thread.",
        minimum=1,
        maximum=1024,
    )
    connect_timeout_ms: int = setting(
        2000, "How long a new connection may take. Lower notices a dead host sooner.", minimum=1
    )
    read_timeout_ms: int = setting(
        10_000,
        "Longest silence of the store within a request; then it is sent again. Lower notices a "
        "hanging store sooner; too low repeats writes that were only slow.",
        minimum=1,
    )
    request_deadline_ms: int = setting(
        30_000,
        "How long one call is tried, repetitions included, before its caller gets "
        "StoreUnavailable. Each part of a large object has its own deadline.",
        minimum=1,
    )
    retry_backoff_ms: int = setting(
        50, "First wait after a failed request; doubles up to the maximum, with jitter.", minimum=1
    )
    retry_backoff_ms_max: int = setting(
        2000, "Longest wait between two tries of a request.", minimum=1
    )
    multipart_bytes_min: int = setting(
        32 * MIB,
        "Larger objects are sent in parts, several at a time: faster on stores that are slow per "
        "connection, for some requests more.",
        minimum=5 * MIB,
    )
    part_bytes: int = setting(
        16 * MIB,
        "Size of such a part. Smaller ones are sooner repeated, and cost requests.",
        minimum=5 * MIB,
        maximum=5 << 30,
    )
    parts_in_flight_max: int = setting(
        4, "Parts of one object at a time; more take connections from other writes.", minimum=1
    )
    checksum: str = setting(
        "crc32c",
        "Checksum that the store compares with what it received: crc32c (0.1 ms per MiB), md5 "
        "(2 ms per MiB; for stores that know no other), or none (a byte that changes on the way "
        "is then found by the first reader, after the acknowledgement). client=obstore sends "
        "crc64nvme in place of crc32c and md5.",
        choices=("crc32c", "md5", "none"),
    )
    hedge_get_delay_ms_min: int = setting(
        200,
        "A GET that takes longer than three times the running p95 of its size, and than this, is "
        "sent a second time; the first answer counts. Lower cuts tail latency and costs GETs.",
        minimum=1,
    )
    hedge_get_share_max: float = setting(
        0.05,
        "At most this share of GETs is sent a second time, so that a store that is slow as a whole "
        "gets no double load; 0 sends none.",
        minimum=0,
        maximum=1,
    )
