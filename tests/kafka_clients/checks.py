"""What the tests of all clients assert."""

from __future__ import annotations

from collections.abc import Set

from streamlog.codec.batch import scan
from tests.kafka_clients.brokers import Broker
from tests.kafka_clients.cases import CASES, CODECS
from tests.kafka_clients.known_exchanges import unexplained
from tests.kafka_clients.raw_client import RawClient, part, request
from tests.kafka_clients.runs import Run, Runs
from tests.kafka_clients.tap import Exchange


def check_client(client: str, runs: Runs, kafka: Broker, node: Broker) -> None:
    """All cases of a client pass with both brokers; what it compressed is stored so; it asked both
    the same, and heard the same. One test: each worker of the tests runs what it needs anew."""
    for broker in (kafka, node):
        run = runs.of(client, broker)
        failed = {case: error for case in CASES if (error := _error_of(run, case))}
        assert failed == {}, f"{client} with {broker.name}: {failed}"
        for codec in CODECS:
            check_codec(broker, client, codec)
    check_exchanges(client, runs, kafka, node)


def _error_of(run: Run, case: str) -> str | None:
    if case not in run.cases:
        return f"the program did not come to it; {run.output}"
    return run.cases[case].error


def check_codec(broker: Broker, client: str, codec: str) -> None:
    """All batches of the case `codecs` are stored as the client compressed them."""
    batches = fetched(broker, f"case-{client}-{codec}")
    stored = {CODECS[batch.header.codec] for batch in scan(batches)}
    assert stored == {codec}, f"{client} with {broker.name}, {codec}"


def check_exchanges(client: str, runs: Runs, kafka: Broker, node: Broker) -> None:
    """The client asked both brokers the same APIs in the same versions, and got the same errors."""
    by_kafka, by_node = runs.of(client, kafka), runs.of(client, node)
    assert kafka.tap.failures == node.tap.failures == []
    check_same(client, by_kafka.exchanged, by_node.exchanged)


def check_same(client: str, by_kafka: Set[Exchange], by_node: Set[Exchange]) -> None:
    """Each exchange was had with both brokers, but for those that are known to differ."""
    only = {one: "kafka" if one in by_kafka else "streamlog" for one in by_kafka ^ by_node}
    assert unexplained(client, only) == {}


def fetched(broker: Broker, topic: str, offset: int = 0) -> bytes:
    """Record batches of partition 0 as they are stored, up to 8 MiB."""
    place = part("fetch", "FetchPartition", fetch_offset=offset, partition_max_bytes=8 << 20)
    asked = part("fetch", "FetchTopic", topic=topic, partitions=[place])
    with RawClient(broker.server) as client:
        answer = client.call("fetch", 12, request("fetch", topics=[asked], min_bytes=1))
    (found,) = answer.responses[0].partitions
    assert found.error_code == 0
    return (
        b"".join(map(bytes, found.records))
        if isinstance(found.records, list)
        else bytes(found.records or b"")
    )
