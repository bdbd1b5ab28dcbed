"""Metrics of the server; their cost is per request or per batch, never per record."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from streamlog.errors import StreamlogError
from streamlog.runtime.counts import Count, Counts

NO_CLIENT_ID = "(none)"
OTHER_CLIENT_IDS = "(other)"
_LAG_BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)


class TopicTraffic:
    """Records and bytes per topic; a deleted topic's lines are removed.

    `is_known`: whether a topic of that name exists. Without this check a request that ends after
    the topic's deletion would bring its lines back for good.
    """

    def __init__(self, registry: CollectorRegistry, is_known: Callable[[str], bool]) -> None:
        self._is_known = is_known
        self._records_in = Counts(
            "streamlog_topic_records_in",
            "Records stored by produce requests, duplicates left out.",
            ["topic"],
            registry,
        )
        self._bytes_in = Counts(
            "streamlog_topic_bytes_in",
            "Bytes of record batches stored by produce requests.",
            ["topic"],
            registry,
        )
        self._records_out = Counts(
            "streamlog_topic_records_out",
            "Records handed to consumers by fetches, counted by their offsets.",
            ["topic"],
            registry,
        )
        self._bytes_out = Counts(
            "streamlog_topic_bytes_out",
            "Bytes of record batches handed to consumers.",
            ["topic"],
            registry,
        )
        self._in: dict[str, tuple[Count, Count]] = {}
        self._out: dict[str, tuple[Count, Count]] = {}

    def produced(self, topic: str, records: int, size_bytes: int) -> None:
        pair = self._in.get(topic)
        if pair is None:
            if not self._is_known(topic):
                return
            pair = self._records_in.labels(topic), self._bytes_in.labels(topic)
            self._in[topic] = pair
        pair[0].inc(records)
        pair[1].inc(size_bytes)

    def fetched(self, topic: str, records: int, size_bytes: int) -> None:
        pair = self._out.get(topic)
        if pair is None:
            if not self._is_known(topic):
                return
            pair = self._records_out.labels(topic), self._bytes_out.labels(topic)
            self._out[topic] = pair
        pair[0].inc(records)
        pair[1].inc(size_bytes)

    def forget(self, topic: str) -> None:
        if self._in.pop(topic, None) is not None:
            self._records_in.remove(topic)
            self._bytes_in.remove(topic)
        if self._out.pop(topic, None) is not None:
            self._records_out.remove(topic)
            self._bytes_out.remove(topic)

    def forget_deleted(self) -> None:
        """Removes the lines of topics that another node deleted, too."""
        for topic in {*self._in, *self._out}:
            if not self._is_known(topic):
                self.forget(topic)


class ClientMetrics:
    """Requests and bytes per client id; at most `ids_max` ids have lines of their own.

    Clients choose their ids: without a bound they could fill the memory of the node, and of the
    metrics system that scrapes it.
    """

    def __init__(self, registry: CollectorRegistry, ids_max: int) -> None:
        self._ids_max = ids_max

        def counter(name: str, text: str) -> Counts:
            return Counts(f"streamlog_client_{name}", text, ["client_id"], registry)

        self._requests = counter("requests", "Requests begun, by the client's own name.")
        self._bytes_in = counter("bytes_in", "Bytes of record batches that clients sent.")
        self._bytes_out = counter("bytes_out", "Bytes of record batches handed to clients.")
        self._throttled = Counts(
            "streamlog_client_throttle_seconds",
            "Time for which requests above a quota throttled their clients, by quota.",
            ["client_id", "quota"],
            registry,
        )
        self._lines: dict[str, tuple[Count, Count, Count]] = {}

    def requested(self, client_id: str, requests: int = 1) -> None:
        self._of(client_id)[0].inc(requests)

    def sent(self, client_id: str, size_bytes: int) -> None:
        self._of(client_id)[1].inc(size_bytes)

    def took(self, client_id: str, size_bytes: int) -> None:
        self._of(client_id)[2].inc(size_bytes)

    def throttled(self, client_id: str, quota: str, seconds: float) -> None:
        """`quota`: one of the few names of quotas."""
        self._of(client_id)
        label = client_id or NO_CLIENT_ID
        if client_id not in self._lines:
            label = OTHER_CLIENT_IDS
        self._throttled.labels(label, quota).inc(seconds)

    def _of(self, client_id: str) -> tuple[Count, Count, Count]:
        lines = self._lines.get(client_id)
        if lines is not None:
            return lines
        label = client_id or NO_CLIENT_ID
        if len(self._lines) >= self._ids_max and label != OTHER_CLIENT_IDS:
            return self._of(OTHER_CLIENT_IDS)
        lines = (
            self._requests.labels(label),
            self._bytes_in.labels(label),
            self._bytes_out.labels(label),
        )
        self._lines[client_id] = lines
        return lines


class FetchSessionMetrics:
    """Fetch sessions of Kafka consumers."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.count = Gauge(
            "streamlog_fetch_sessions",
            "Fetch sessions of Kafka consumers that are kept between their fetches.",
            registry=registry,
        )
        self.count_bound = Gauge(
            "streamlog_fetch_sessions_bound", "Bound on fetch sessions.", registry=registry
        )
        self.partitions = Gauge(
            "streamlog_fetch_session_partitions",
            "Partitions in all fetch sessions together.",
            registry=registry,
        )
        self.partitions_bound = Gauge(
            "streamlog_fetch_session_partitions_bound",
            "Bound on partitions in all fetch sessions together.",
            registry=registry,
        )
        self.evictions = Counter(
            "streamlog_fetch_session_evictions",
            "Fetch sessions that ended because another one needed the place.",
            registry=registry,
        )


class ServerMetrics:
    """One node's requests, connections and event loop."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str, labels: Sequence[str] = ()) -> Gauge:
            return Gauge(name, text, labels, registry=registry)

        def counter(name: str, text: str, labels: Sequence[str] = ()) -> Counter:
            return Counter(name, text, labels, registry=registry)

        self.requests = Counts(
            "streamlog_requests",
            "Requests ended, by method and status; on Kafka listeners, by API and error.",
            ["method", "status"],
            registry,
        )
        self._appends_failed = counter(
            "streamlog_appends_failed",
            "Partitions of produce requests and appends to streams that were answered with an "
            "error, by the error's name; the request or stream that carries them ends as OK.",
            ["error"],
        )
        self.requests_active = gauge(
            "streamlog_requests_active",
            "Requests under way, long polls and open streams included.",
        )
        self.requests_bound = gauge("streamlog_requests_bound", "Bound on requests under way.")
        self.connections = gauge(
            "streamlog_connections", "Open connections of clients, by listener.", ["listener"]
        )
        self.connections_bound = gauge(
            "streamlog_connections_bound", "Bound on open connections of each listener."
        )
        self.connections_ended = counter(
            "streamlog_connections_ended",
            "Connections of Kafka's protocol that the node ended, by listener and reason: bound "
            "(one too many), idle, not_kafka, refused (an API or version that is not served, bytes "
            "that are no request, or an error of acks=0), bug.",
            ["listener", "reason"],
        )
        self.in_flight = Count()
        """Bytes of all connections; every request changes them twice."""
        gauge(
            "streamlog_in_flight_bytes",
            "Bytes of produce and append requests, and of all requests of Kafka's clients, "
            "that are not answered yet, all connections.",
        ).set_function(lambda: self.in_flight.value)
        self.in_flight_bytes_bound = gauge(
            "streamlog_in_flight_bytes_per_connection_bound",
            "Bound on those bytes for one connection.",
        )
        self.in_flight_waits = counter(
            "streamlog_in_flight_waits",
            "Times that a connection was not read from because its bytes in flight were at the "
            "bound.",
        )
        self.long_polls = gauge("streamlog_long_polls", "Fetches that wait for new records.")
        self.fetch_sessions = FetchSessionMetrics(registry)
        self.read_stream_bytes = gauge(
            "streamlog_read_stream_bytes",
            "Bytes that ReadStream calls have read and not yet handed to their connection.",
        )
        self.message_bytes_bound = gauge("streamlog_message_bytes_bound", "Bound on one message.")
        self.topics = gauge("streamlog_topics", "Topics.")
        self.topics_bound = gauge("streamlog_topics_bound", "Bound on topics.")
        self.partitions = gauge("streamlog_partitions", "Partitions.")
        self.partitions_bound = gauge("streamlog_partitions_bound", "Bound on partitions.")
        self.loop_lag = Histogram(
            "streamlog_loop_lag_seconds",
            "How much later than asked for the event loop ran a timer.",
            buckets=_LAG_BUCKETS_S,
            registry=registry,
        )
        self.rss_bytes = gauge("streamlog_resident_memory_bytes", "Resident memory of the process.")
        self.is_ready = gauge("streamlog_ready", "1 while the node accepts requests.")
        self.is_insecure = gauge(
            "streamlog_insecure_listener",
            "1 when a port listens beyond loopback and takes clients without a certificate.",
        )

    def append_failed(self, error: StreamlogError) -> None:
        """A partition of a produce request, or an append to a stream, is answered with `error`."""
        self._appends_failed.labels(type(error).__name__).inc()
