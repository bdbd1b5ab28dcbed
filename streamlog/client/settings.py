"""The settings of producers and consumers, and their limits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from streamlog.codec.batch import Compression
from streamlog.errors import InvalidConfig
from streamlog.runtime.config import setting

COMPRESSIONS = {codec.name.lower(): codec for codec in Compression}
ACKS = {"all": -1, "-1": -1, "1": 1, "0": 0}

UNANSWERED_BATCHES_MAX = 32
"""Of one partition: as many as the server remembers to recognise a repetition."""
MESSAGES_IN_FLIGHT_MAX = 32
BYTES_IN_FLIGHT_MAX = 16 << 20
LINGERING_MESSAGES_MAX = 4
"""With so many messages under way a batch that is not full is not sent yet: it would wait on the
server too, and larger messages cost less."""
MESSAGE_BYTES_MAX = 4 << 20
"""Upper bound on a message of several batches; a larger batch is sent alone."""
MESSAGE_BYTES_TARGET = 512 << 10
"""A message of this many bytes takes no further batch."""
RECORD_BYTES_MAX_DEFAULT = (1 << 20) + 12
"""Kafka's default of max.message.bytes, where the server does not say another."""
UNKNOWN_TOPIC_ATTEMPTS_MAX = 5
"""How many attempts a topic gets that the server does not know."""
WAIT_S_MAX = 1e9
"""31 years. Python's locks take no longer waits, such as `float("inf")`."""


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    linger_ms: float = setting(
        5.0,
        "How long a batch waits for more records, at most half of delivery_timeout_ms; latency for "
        "fewer requests.",
        minimum=0,
    )
    batch_size_bytes: int = setting(
        128 << 10, "Size at which a batch is sent; it grows under load.", minimum=128
    )
    batch_size_max_bytes: int = setting(
        1 << 20, "What a batch grows to while answers are waited for.", minimum=128
    )
    compression: str = setting("none", "How batches are compressed.", choices=tuple(COMPRESSIONS))
    buffer_memory_bytes: int = setting(
        64 << 20, "Records not answered yet, all together; send() waits above.", minimum=1024
    )
    max_block_ms: int = setting(
        60_000, "How long send() waits for room or for the topic's metadata.", minimum=0
    )
    delivery_timeout_ms: int = setting(
        120_000, "From send() to the answer, all retries included; then an error.", minimum=1
    )
    request_timeout_ms: int = setting(
        30_000, "An answer that takes longer counts as lost and the batch is sent again.", minimum=1
    )
    retry_backoff_ms: float = setting(50.0, "Wait before the first retry; doubles.", minimum=0)
    retry_backoff_max_ms: float = setting(1000.0, "Longest wait before a retry.", minimum=0)
    metadata_max_age_ms: int = setting(
        300_000, "How often partition counts and size limits are asked for again.", minimum=1
    )
    acks: str = setting("all", "all and 1: durable; 0: not waited for.", choices=tuple(ACKS))
    idempotence: bool = setting(True, "Retries neither lose nor duplicate.")
    transactional_id: str = setting(
        "",
        "Name of the one producer that writes in transactions under it, the same after a restart: "
        "a newer producer of that name fences this one. Empty: no transactions.",
    )
    transaction_timeout_ms: int = setting(
        60_000,
        "The coordinator aborts a transaction that is open for longer; until then it holds back "
        "read_committed readers of its partitions, also where this process is gone.",
        minimum=1,
    )
    client_id: str = setting("", "Who calls; for metrics, logs and quotas.")

    @property
    def is_idempotent(self) -> bool:
        return self.idempotence and self.wants_answer

    @property
    def wants_answer(self) -> bool:
        """False: acks=0, offsets are -1 and a lost batch is not noticed."""
        return ACKS[self.acks] != 0


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    isolation_level: str = setting(
        "read_uncommitted",
        "read_committed leaves out what belongs to open or aborted transactions.",
        choices=("read_uncommitted", "read_committed"),
    )
    auto_offset_reset: str = setting(
        "earliest",
        "Where to begin without a position, or to go on from one that the log does not hold; "
        "take_offset_resets() tells what was skipped. none: a poll raises OffsetOutOfRange.",
        choices=("earliest", "latest", "none"),
    )
    fetch_max_bytes: int = setting(16 << 20, "Largest answer; memory is about three.", minimum=1)
    fetch_min_bytes: int = setting(1, "The server waits for so much.", minimum=1)
    fetch_max_wait_ms: int = setting(500, "The server waits no longer.", minimum=0)
    max_partition_fetch_bytes: int = setting(
        8 << 20, "Largest part of an answer for one partition.", minimum=1
    )
    metadata_max_age_ms: int = setting(
        30_000, "How soon new partitions of subscribed topics are followed.", minimum=1
    )
    request_timeout_ms: int = setting(30_000, "A call without an answer is repeated.", minimum=1)
    default_api_timeout_ms: int = setting(
        60_000, "How long offset look-ups are retried before their error is raised.", minimum=1
    )
    retry_backoff_ms: float = setting(50.0, "Wait before the first retry; doubles.", minimum=0)
    retry_backoff_max_ms: float = setting(1000.0, "Longest wait before a retry.", minimum=0)
    check_crcs: bool = setting(True, "Batches are checked before they are decoded.")
    decoded_batch_bytes_max: int = setting(
        128 << 20,
        "What one compressed batch may expand to; InvalidRecord for a larger one, which a seek "
        "passes over. Memory of a poll: this and poll_bytes_max.",
        minimum=1,
    )
    poll_bytes_max: int = setting(
        64 << 20,
        "poll() takes no further batch once it has decoded so many bytes; records take several "
        "times that as objects.",
        minimum=1,
    )
    client_id: str = setting("", "Who calls; for metrics, logs and quotas.")


def check(settings: ProducerSettings | ConsumerSettings) -> None:
    """Errors: InvalidConfig for a value of another type or outside its limits.

    A value that a request or a timer cannot hold is refused here: later it would end the client's
    background thread.
    """
    for name, field in type(settings).__dataclass_fields__.items():
        value = getattr(settings, name)
        limits = field.metadata
        if limits["choices"] and value not in limits["choices"]:
            raise InvalidConfig(
                f"{name} is {value!r}; choose one of {', '.join(limits['choices'])}", name=name
            )
        # Annotations are strings in this module (`from __future__ import annotations`).
        if field.type == "bool" and not isinstance(value, bool):
            raise InvalidConfig(f"{name} is {value!r}; give True or False", name=name)
        if field.type in ("int", "float"):
            check_number(name, value, is_whole=field.type == "int", least=limits["minimum"])


INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
MEMORY_SETTINGS = {"buffer_memory_bytes", "decoded_batch_bytes_max", "poll_bytes_max"}
"""No request carries them, so they may be larger than an int32."""


def check_number(name: str, value: Any, *, is_whole: bool, least: float) -> None:
    """Errors: InvalidConfig for anything but a number from `least` to what a request can hold."""
    kind = int if is_whole else int | float
    if isinstance(value, bool) or not isinstance(value, kind) or math.isnan(value):
        noun = "a whole number" if is_whole else "a number"
        raise InvalidConfig(f"{name} is {value!r}; give {noun}, at least {least}", name=name)
    most = INT64_MAX if name in MEMORY_SETTINGS else INT32_MAX
    if value < least:
        raise InvalidConfig(f"{name} is {value!r}; at least {least} is needed", name=name)
    if value > most:
        raise InvalidConfig(f"{name} is {value!r}; {most} is the most", name=name)


def wait_s(timeout: float | None) -> float | None:
    """A caller's time-out as Python's locks take it. None waits for ever, NaN not at all.

    Errors: TypeError for anything but a number, before the call does anything.
    """
    if timeout is None:
        return None
    if not isinstance(timeout, int | float):
        raise TypeError(f"a time-out is a number of seconds or None, not {timeout!r}")
    return 0.0 if math.isnan(timeout) else min(max(0.0, timeout), WAIT_S_MAX)


def backoff_s(failures: int, first_ms: float, max_ms: float) -> float:
    """Seconds to wait after `failures` (≥ 1) in a row."""
    return float(min(first_ms * 2 ** min(failures - 1, 20), max_ms)) / 1000
