"""The hand-written envelope is what the generated parser reads."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamlog.client.produce.wire import encode_produce, topic_head
from streamlog.v1 import log_pb2

names = st.text(max_size=40)
parts = st.lists(
    st.tuples(names, names, st.integers(0, 2**31 - 1), st.binary(max_size=300)), max_size=5
)


@given(st.integers(0, 2**64 - 1), st.sampled_from([1, 2]), st.integers(0, 2**31 - 1), parts)
def test_protobuf_parses_the_hand_written_envelope(
    correlation_id: int, acks: int, timeout_ms: int, parts_sent: list[tuple[str, str, int, bytes]]
) -> None:
    encoded = encode_produce(
        correlation_id,
        acks,
        timeout_ms,
        [(topic_head(name, topic_id), number, data) for name, topic_id, number, data in parts_sent],
    )
    message = log_pb2.ProduceStreamRequest.FromString(encoded)
    assert message.correlation_id == correlation_id
    assert message.request.acks == acks
    assert message.request.timeout_ms == timeout_ms
    parsed = [
        (topic.topic, topic.topic_id, part.partition, part.record_batches)
        for topic in message.request.topics
        for part in topic.partitions
    ]
    assert parsed == parts_sent
