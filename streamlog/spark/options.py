"""Options of `spark.read.format("streamlog")` and `readStream`: those of Spark's Kafka source, and
our own. Spark passes their names in lower case.

Options that begin with `kafka.` are refused (kafka_options.py has the reasons), except
`kafka.bootstrap.servers`, which means `server`, and `kafka.isolation.level`, for `isolation`.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, NoReturn, TypeVar

from streamlog.client.tls import Tls
from streamlog.errors import InvalidConfig, StreamlogError
from streamlog.reading.topics import TopicPartition
from streamlog.reading.urls import check_meta_url, check_store_url
from streamlog.spark.kafka_options import ISOLATION, SERVERS, refusal
from streamlog.spark.trigger_delay import MAX_TRIGGER_DELAY, parse_duration_ms

T = TypeVar("T")

EARLIEST, LATEST = -2, -1
INT64_MAX = (1 << 63) - 1
MAX_BYTES_DEFAULT = 128 << 20
PIN_TTL_MS_DEFAULT = 600_000

TLS_OPTIONS = {
    "tls": "true: the node speaks TLS; so does each further option of it say",
    "tlsCa": "PEM file of the authorities that sign nodes' certificates",
    "tlsCertificate": "PEM file of a certificate for the node, if it asks for one",
    "tlsKey": "PEM file of its private key, if it is not in the same file",
    "tlsServerName": "what the node's certificate names, if not the host in server",
}
"""Files are looked for where the query runs: on the driver, and on every executor."""
READ_OPTIONS = {
    "server": "host:port of a node",
    **TLS_OPTIONS,
    "store": "store URL that executors read objects from",
    "meta": "metadata URL of a store that no node runs on",
    "subscribe": "topics, separated by commas",
    "subscribePattern": "Java-like regular expression that whole topic names match",
    "assign": 'JSON such as {"topic": [0, 1]}',
    "startingOffsets": 'earliest, latest or JSON such as {"topic": {"0": 23, "1": -2}}',
    "endingOffsets": 'latest or JSON such as {"topic": {"0": 50, "1": -1}}',
    "startingTimestamp": "ms since 1970, for all partitions",
    "endingTimestamp": "ms since 1970, for all partitions",
    "startingOffsetsByTimestamp": 'JSON such as {"topic": {"0": 1000}}',
    "endingOffsetsByTimestamp": 'JSON such as {"topic": {"0": 1000}}',
    "startingOffsetsByTimestampStrategy": "error or latest, where no record is as late",
    "minPartitions": "Spark partitions at least",
    "maxOffsetsPerTrigger": "records of a micro-batch at most",
    "minOffsetsPerTrigger": "records that a micro-batch waits for",
    "maxTriggerDelay": "how long it waits for them, such as 15m",
    "failOnDataLoss": "true or false",
    "includeHeaders": "true or false",
    "readMode": "auto, store or service",
    "isolation": "read_committed or read_uncommitted",
    "maxBytesPerPartition": "bytes of a Spark partition, about",
    "verifyCrc": "true or false",
    "readName": "name of this read in its metrics",
    "pinTtlMs": "how long planned objects are kept unless the pin is renewed",
}
"""Names as users write them, with their values."""
_STRATEGIES = ("subscribe", "subscribePattern", "assign")
_STARTS = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
_ENDS = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
SELECTING = (*_STRATEGIES, *_STARTS, *_ENDS)
"""Options that say which records a batch has, as `isolation` does."""
_BATCH_ONLY = _ENDS
_STREAM_ONLY = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
_SPARK_OWN = ("path", "checkpointlocation", "queryname")
"""Spark adds these itself."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The partitions to read; exactly one field is given."""

    topics: tuple[str, ...] | None = None
    pattern: str | None = None
    partitions: tuple[TopicPartition, ...] | None = None

    def of(self, topics: Mapping[str, int]) -> list[TopicPartition]:
        """The chosen partitions that exist, sorted; `topics`: partition counts by name."""
        if self.partitions is not None:
            return [(t, p) for t, p in self.partitions if p < topics.get(t, 0)]
        if self.topics is not None:
            names = [name for name in sorted(set(self.topics)) if name in topics]
        else:
            matches = re.compile(self.pattern or "").fullmatch
            names = [name for name in sorted(topics) if matches(name)]
        return [(name, partition) for name in names for partition in range(topics[name])]


@dataclass(frozen=True, slots=True)
class Bound:
    """Where reading begins or ends: `everywhere` (-2, -1), offsets, one timestamp for all
    partitions, or timestamps by partition; then `everywhere` applies to partitions that are not
    named.
    """

    everywhere: int
    offsets: Mapping[TopicPartition, int] | None = None
    timestamp_ms: int | None = None
    timestamps_ms: Mapping[TopicPartition, int] | None = None


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Checked options of a batch or streaming read; holds no secrets."""

    chosen: Chosen
    start: Bound
    end: Bound
    server: str | None = None
    store: str | None = None
    meta: str | None = None
    tls: Tls | None = None
    read_mode: str = "auto"
    isolation: str = "read_committed"
    fail_on_data_loss: bool = True
    include_headers: bool = False
    verify_crc: bool = True
    is_late_an_error: bool = True
    """Whether a start timestamp that no record reaches is an error; otherwise it means the end."""
    min_partitions: int | None = None
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = 0
    """How long a micro-batch waits for `min_offsets_per_trigger` records."""
    max_bytes_per_partition: int = MAX_BYTES_DEFAULT
    pin_ttl_ms: int = PIN_TTL_MS_DEFAULT
    read_name: str | None = None


def parse_read_options(given: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """Errors: InvalidConfig, which names the option."""
    options = OptionValues(given)
    options.check_known()
    unfit = _BATCH_ONLY if streaming else _STREAM_ONLY
    for name in unfit:
        if options.has(name):
            kind = "batch" if streaming else "streaming"
            options.refuse(name, f"is for {kind} queries alone")
    chosen = _chosen(options)
    start = _bound(options, _STARTS, LATEST if streaming else EARLIEST, chosen, ends=False)
    if not streaming and (start.everywhere == LATEST or LATEST in (start.offsets or {}).values()):
        options.refuse("startingOffsets", "cannot be latest (-1) for a batch query")
    end = _bound(options, _ENDS, LATEST, chosen, ends=True)
    places = _places(options)
    least, most = _rows_per_trigger(options)
    strategy = options.choice("startingOffsetsByTimestampStrategy", ("error", "latest"), "error")
    return ReadOptions(
        chosen=chosen,
        start=start,
        end=end,
        server=places.server,
        store=places.store,
        meta=places.meta,
        tls=options.tls(),
        read_mode=places.read_mode,
        isolation=_isolation(options),
        fail_on_data_loss=options.flag("failOnDataLoss", True),
        include_headers=options.flag("includeHeaders", False),
        verify_crc=options.flag("verifyCrc", True),
        is_late_an_error=strategy == "error",
        min_partitions=options.number("minPartitions", 1),
        max_offsets_per_trigger=most,
        min_offsets_per_trigger=least,
        max_trigger_delay_ms=_max_trigger_delay_ms(options),
        max_bytes_per_partition=options.number("maxBytesPerPartition", 1) or MAX_BYTES_DEFAULT,
        pin_ttl_ms=options.number("pinTtlMs", 1000, 3_600_000) or PIN_TTL_MS_DEFAULT,
        read_name=options.text("readName"),
    )


class OptionValues:
    """Values by lower-case name, and errors that name an option as the docs spell it."""

    def __init__(
        self,
        given: Mapping[str, str],
        known: Iterable[str] = READ_OPTIONS,
        *,
        is_write: bool = False,
    ) -> None:
        self._is_write = is_write
        self._spelled = {name.lower(): name for name in known}
        self._given = {name.lower(): str(value) for name, value in given.items()}
        self._kafka_names: dict[str, str] = {}
        self._take_kafka_name(SERVERS, "server")
        if not is_write:
            self._take_kafka_name(ISOLATION, "isolation")

    def _take_kafka_name(self, kafka_name: str, ours: str) -> None:
        """Takes an option under Kafka's name; refuses it if both names are given and disagree."""
        value = self._given.pop(kafka_name, None)
        if value is None:
            return
        if ours not in self._given:
            self._given[ours], self._kafka_names[ours] = value, kafka_name
        elif self._given[ours].lower() != value.lower():
            self.refuse(kafka_name, f"is {value!r} and {ours} is {self._given[ours]!r}: give one")

    def refuse(self, name: str, why: str) -> NoReturn:
        """Raises InvalidConfig, which names the option as it was given."""
        name = self._kafka_names.get(name, name)
        raise InvalidConfig(f"option {name} {why}", name=name)

    def check_known(self) -> None:
        for name in self._given:
            if name in self._spelled or name in _SPARK_OWN or name.startswith("__"):
                continue
            refused = refusal(name, is_write=self._is_write)
            if refused is not None:
                self.refuse(*refused)
            near = difflib.get_close_matches(name, self._spelled, n=1)
            hint = f"; did you mean {self._spelled[near[0]]}?" if near else ""
            self.refuse(name, f"is not known{hint}")

    def has(self, name: str) -> bool:
        return name.lower() in self._given

    def text(self, name: str) -> str | None:
        value = self._given.get(name.lower())
        if value is not None and not value.strip():
            self.refuse(name, "is empty")
        return value

    def server(self) -> str | None:
        value = self.text("server")
        if value is not None and not re.fullmatch(r"[^\s/,]+:\d+", value):
            self.refuse("server", f"is {value!r}, not one host:port such as 127.0.0.1:9644")
        return value

    def tls(self) -> Tls | None:
        """How the node is reached; None: without TLS."""
        names = ("tlsCa", "tlsCertificate", "tlsKey", "tlsServerName")
        given = [name for name in names if self.has(name)]
        is_on = self.flag("tls", bool(given))
        if given and not is_on:
            self.refuse(given[0], "is given, and tls is false: leave one of them out")
        if given and not self.has("server"):
            self.refuse(given[0], "is for the way to a node: give server, too")
        if self.has("tlsKey") and not self.has("tlsCertificate"):
            self.refuse("tlsKey", "is the key of tlsCertificate: give both")
        return Tls(*map(self.text, names)) if is_on else None

    def choice(self, name: str, choices: tuple[str, ...], default: str) -> str:
        value = (self.text(name) or default).lower()
        if value not in choices:
            self.refuse(name, f"is {value!r}; choose one of {', '.join(choices)}")
        return value

    def flag(self, name: str, default: bool) -> bool:
        return self.choice(name, ("true", "false"), str(default).lower()) == "true"

    def number(self, name: str, least: int, most: int = INT64_MAX) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        try:
            number = int(value)
        except ValueError:
            self.refuse(name, f"is {value!r}, not a number")
        if not least <= number <= most:
            self.refuse(name, f"is {number}; {least} to {most} is allowed")
        return number

    def parsed(self, name: str, parse: Callable[[str], T]) -> T | None:
        value = self.text(name)
        if value is None:
            return None
        try:
            return parse(value)
        except StreamlogError as error:
            self.refuse(name, f"cannot be used: {error.message}")


def _isolation(options: OptionValues) -> str:
    return options.choice("isolation", ("read_committed", "read_uncommitted"), "read_committed")


def _rows_per_trigger(options: OptionValues) -> tuple[int | None, int | None]:
    """minOffsetsPerTrigger and maxOffsetsPerTrigger."""
    least = options.number("minOffsetsPerTrigger", 1)
    most = options.number("maxOffsetsPerTrigger", 1)
    if least is not None and most is not None and least > most:
        options.refuse("minOffsetsPerTrigger", f"is {least}, more than maxOffsetsPerTrigger {most}")
    return least, most


def _max_trigger_delay_ms(options: OptionValues) -> int:
    text = options.text("maxTriggerDelay")
    if text is not None and not options.has("minOffsetsPerTrigger"):
        options.refuse("maxTriggerDelay", "is how long to wait for minOffsetsPerTrigger: give both")
    try:
        return parse_duration_ms(text or MAX_TRIGGER_DELAY)
    except ValueError as error:
        options.refuse("maxTriggerDelay", f"cannot be used: {error}")


def _chosen(options: OptionValues) -> Chosen:
    given = [name for name in _STRATEGIES if options.has(name)]
    if len(given) != 1:
        rest = f"not {' and '.join(given)}" if given else "none is given"
        options.refuse(
            given[1] if given else "subscribe", f"and its like: give one of {_STRATEGIES}, {rest}"
        )
    if given == ["assign"]:
        return Chosen(partitions=_assigned(options))
    text = options.text(given[0]) or ""
    if given == ["subscribe"]:
        topics = tuple(name.strip() for name in text.split(",") if name.strip())
        if not topics:
            options.refuse("subscribe", "names no topic")
        return Chosen(topics=topics)
    try:
        re.compile(text)
    except re.error as error:
        options.refuse("subscribePattern", f"is no regular expression: {error}")
    return Chosen(pattern=text)


def _assigned(options: OptionValues) -> tuple[TopicPartition, ...]:
    assigned = _json(options, "assign")
    partitions: set[TopicPartition] = set()
    for topic, numbers in assigned.items():
        if not isinstance(numbers, list) or not all(
            isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in numbers
        ):
            options.refuse("assign", f"needs a list of partitions for {topic!r}")
        partitions.update((topic, number) for number in numbers)
    if not partitions:
        options.refuse("assign", "names no partition")
    return tuple(sorted(partitions))


def _json(options: OptionValues, name: str) -> dict[str, object]:
    text = options.text(name) or ""
    try:
        value = json.loads(text)
    except ValueError as error:
        options.refuse(name, f"is no JSON ({error}): {READ_OPTIONS[name]}")
    if not isinstance(value, dict):
        options.refuse(name, f"is no JSON object: {READ_OPTIONS[name]}")
    return value


def _by_partition(options: OptionValues, name: str, least: int) -> dict[TopicPartition, int]:
    values: dict[TopicPartition, int] = {}
    for topic, partitions in _json(options, name).items():
        if not isinstance(partitions, dict):
            options.refuse(name, f"needs partitions for {topic!r}: {READ_OPTIONS[name]}")
        for partition, value in partitions.items():
            if (
                not str(partition).isdecimal()
                or not isinstance(value, int)
                or isinstance(value, bool)
                or not least <= value <= INT64_MAX
            ):
                options.refuse(
                    name, f"has {partition!r}: {value!r} for {topic!r}: {READ_OPTIONS[name]}"
                )
            values[topic, int(partition)] = value
    return values


def _bound(
    options: OptionValues, names: tuple[str, str, str], default: int, chosen: Chosen, *, ends: bool
) -> Bound:
    """The first of `names` that is given wins, as in Spark's Kafka source."""
    timestamp, timestamps, offsets = names
    if options.has(timestamp):
        return Bound(default, timestamp_ms=options.number(timestamp, 0))
    if options.has(timestamps):
        by_time = _by_partition(options, timestamps, 0)
        _check_chosen(options, timestamps, by_time, chosen)
        return Bound(default, timestamps_ms=by_time)
    text = options.text(offsets)
    if text is None:
        return Bound(default)
    word = text.strip().lower()
    if word == "latest":
        return Bound(LATEST)
    if word == "earliest":
        if ends:
            options.refuse(offsets, "can be latest or offsets, not earliest")
        return Bound(EARLIEST)
    named = _by_partition(options, offsets, EARLIEST)
    if ends and EARLIEST in named.values():
        options.refuse(offsets, "has -2 (earliest), which is no end")
    _check_chosen(options, offsets, named, chosen)
    return Bound(default, offsets=named)


def _check_chosen(
    options: OptionValues, name: str, named: Mapping[TopicPartition, int], chosen: Chosen
) -> None:
    """Checks named partitions without a look-up of topics."""
    if chosen.partitions is not None and set(named) != set(chosen.partitions):
        options.refuse(name, "must name exactly the partitions of assign")
    if chosen.topics is not None:
        others = sorted({topic for topic, _ in named} - set(chosen.topics))
        if others:
            options.refuse(name, f"names {', '.join(others)}, which subscribe does not")


class _Places(NamedTuple):
    server: str | None
    store: str | None
    meta: str | None
    read_mode: str


def _places(options: OptionValues) -> _Places:
    """The places of a read. Errors: InvalidConfig, if they do not fit together."""
    server, store, meta = options.server(), options.text("store"), options.text("meta")
    options.parsed("store", check_store_url)
    options.parsed("meta", check_meta_url)
    mode = options.choice("readMode", ("auto", "store", "service"), "auto")
    if server is None and store is None:
        options.refuse("server", "is missing: give it, or store and meta")
    if server is not None and meta is not None:
        options.refuse("meta", "goes with store where no node runs; leave out server or meta")
    if server is None and mode == "service":
        options.refuse("readMode", "is service, which needs server")
    return _Places(server, store, meta, mode)
