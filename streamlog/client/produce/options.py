"""Arguments, errors and reports that the blocking and the asyncio producer share. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import replace
from typing import Any

from streamlog.client.channel import BaseCaller, Call, Retry
from streamlog.client.produce.accumulator import TopicMetadata
from streamlog.client.produce.batches import PendingBatch, RecordMetadata, Run
from streamlog.client.produce.delivery import is_delivering
from streamlog.client.settings import ACKS, ProducerSettings, check
from streamlog.errors import InvalidConfig, Overloaded, StreamlogError
from streamlog.v1 import log_pb2

LOOKUP_TRY_S_MAX = 30.0
TRANSACTIONAL_ID_BYTES_MAX = 32_767
"""What Kafka's protocol carries."""
NO_HEADERS: list[tuple[str, bytes | None]] = []

OnDelivery = Callable[[RecordMetadata | None, StreamlogError | None], object]
"""Called with the metadata or with the error, from the producer's thread: it must be quick."""

TopicLookup = Callable[[str, float], Generator[Call, Any, TopicMetadata]]
"""(topic, now) → the calls of a look-up: a method of `TopicDirectory`."""


def producer_settings(**given: Any) -> ProducerSettings:
    """Errors: InvalidConfig for an unknown setting or a value outside its limits."""
    unknown = given.keys() - ProducerSettings.__dataclass_fields__.keys()
    if unknown:
        raise InvalidConfig(f"a producer has no setting {', '.join(sorted(unknown))}")
    named = {"acks": str(given.get("acks", "all"))}
    named["transactional_id"] = _transactional_id(given.get("transactional_id"))
    settings = ProducerSettings(**{**given, **named})
    check(settings)
    if settings.transactional_id and not (settings.idempotence and ACKS[settings.acks] == -1):
        raise InvalidConfig(
            "a producer with a transactional_id needs acks = all and idempotence", name="acks"
        )
    if settings.batch_size_max_bytes < settings.batch_size_bytes:
        settings = replace(settings, batch_size_max_bytes=settings.batch_size_bytes)
    return settings


def _transactional_id(given: Any) -> str:
    """Empty: none. Errors: InvalidConfig for what a request cannot hold."""
    if given is None:
        return ""
    is_text = isinstance(given, str) and not any("\ud800" <= char <= "\udfff" for char in given)
    if not is_text or not 0 < len(given.encode()) <= TRANSACTIONAL_ID_BYTES_MAX:
        raise InvalidConfig(
            f"transactional_id is {given!r:.80}; give a text of 1 to {TRANSACTIONAL_ID_BYTES_MAX} "
            "bytes, or None",
            name="transactional_id",
        )
    return str(given)


def checked_headers(
    headers: Iterable[tuple[str, bytes | None]],
) -> list[tuple[str, bytes | None]]:
    """The pairs as a list. Errors: TypeError for anything but pairs."""
    pairs = list(headers)
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2 or not isinstance(pair[0], str):
            raise TypeError(
                f"headers are pairs (name, value) of str and bytes or None, not {pair!r}"
            )
    return pairs


def overloaded(settings: ProducerSettings, charged_bytes: int, taken: int) -> Overloaded:
    """The buffer stayed full. `taken`: how many records of the call are on their way."""
    if is_delivering():
        waited = "a delivery callback cannot wait for room: answers come by its own thread"
    else:
        waited = f"no room came free within max_block_ms = {settings.max_block_ms}"
    return Overloaded(
        f"{charged_bytes} bytes wait for the server and {waited}; send less, or raise "
        f"buffer_memory_bytes = {settings.buffer_memory_bytes}",
        queued_bytes=charged_bytes,
        bound_bytes=settings.buffer_memory_bytes,
        taken=taken,
    )


def note_taken(error: StreamlogError, runs: Sequence[Run], deliveries: object) -> None:
    """Tells in a send_many's error which records are on their way."""
    error.fields["taken"] = sum(run.record_count for run in runs)
    error.deliveries = deliveries  # type: ignore[attr-defined]


def blocking_retry(settings: ProducerSettings, caller: BaseCaller) -> Retry:
    """Retries of a look-up that the caller of send() waits for: `max_block_ms` in all."""
    return Retry(
        caller, settings.max_block_ms, settings.retry_backoff_ms, settings.retry_backoff_max_ms
    )


def try_ms(retry: Retry) -> float:
    """The time limit of one try of a look-up."""
    return min(retry.left_s(), LOOKUP_TRY_S_MAX) * 1000


def delivery_report(
    batch: PendingBatch, index: int, timestamp_ms: int, on_delivery: OnDelivery
) -> Callable[[], None]:
    """A callback for the end of `batch`, which tells `on_delivery` of record `index`."""

    def report() -> None:
        error = batch.error_of(index)
        if error is not None:
            on_delivery(None, error)
        else:
            on_delivery(batch.metadata(index, timestamp_ms), None)

    return report


def produce_stream(channel: Any) -> Any:
    """The channel's ProduceStream; requests are bytes that `wire` makes."""
    return channel.stream_stream(
        "/streamlog.v1.LogService/ProduceStream",
        request_serializer=None,
        response_deserializer=log_pb2.ProduceStreamResponse.FromString,
    )
