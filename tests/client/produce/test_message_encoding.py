"""A message is encoded without the producer's lock: changes meanwhile do not change its bytes."""

from __future__ import annotations

import pytest

from streamlog.client.produce.accumulator import TopicMetadata
from streamlog.client.produce.core import ProducerCore
from streamlog.client.settings import ProducerSettings
from streamlog.codec.batch import scan
from streamlog.codec.records import decode
from streamlog.v1 import log_pb2

NOW_S = 100.0
TIMEOUT_MS = 1000


@pytest.fixture
def core() -> ProducerCore:
    settings = ProducerSettings(idempotence=False, linger_ms=0, delivery_timeout_ms=TIMEOUT_MS)
    core = ProducerCore(settings)
    topic = core.accumulator.update_topic("t", TopicMetadata(1, topic_id="old"), NOW_S)
    core.append(topic, None, (1, b"key", b"value", []), NOW_S)
    return core


def produced(message: bytes) -> tuple[str, list[bytes | None]]:
    """The topic's id, and the values for its partition."""
    request = log_pb2.ProduceStreamRequest.FromString(message).request
    (topic,) = request.topics
    (partition,) = topic.partitions
    batches = scan(partition.record_batches)
    return topic.topic_id, [record[3] for batch in batches for record in decode(batch.view)]


def test_a_message_made_before_its_topic_was_made_anew_goes_to_the_old_topic(
    core: ProducerCore,
) -> None:
    message = core.next_message(NOW_S)
    assert message is not None
    core.accumulator.update_topic("t", TopicMetadata(1, topic_id="new"), NOW_S)
    assert produced(message.encode(core.acks, TIMEOUT_MS)) == ("old", [b"value"])


def test_a_message_whose_batch_expires_meanwhile_is_sent_whole(core: ProducerCore) -> None:
    message = core.next_message(NOW_S)
    assert message is not None
    core.expire(NOW_S + 2 * TIMEOUT_MS / 1000)
    assert [batch.done for batch in core.take_done()] == [True]
    assert produced(message.encode(core.acks, TIMEOUT_MS)) == ("old", [b"value"])
