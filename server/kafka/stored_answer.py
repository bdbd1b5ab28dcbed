"""The answer of a produce request of one batch that is stored: nearly all answers are.

They differ by five numbers. So the bytes around these are made once for a version and topic, by the
generated encoder itself, and an answer is one `pack` between them: a quarter of what the messages
and their encoding cost.
"""

from __future__ import annotations

from struct import Struct

from streamlog.kafka.messages.produce_response import (
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from streamlog.kafka.protocol.apis import ApiKey, response_codec
from streamlog.server.services.records.requests import ProducePartitionResult

LOG_START_FROM = 5
"""The version from which on answers have the log start offset."""
FORMS_MAX = 4096
_NUMBERS = Struct(">ihqqq")
_NUMBERS_WITHOUT_START = Struct(">ihqq")
_NO_TEXT = (-0x0E0E0E0F, -0x0E0F, *(-0x0E0E0E0E0E0E0E0F,) * 3)
"""Their bytes are not UTF-8, and more than a topic id has: they are nowhere else in an answer."""


class StoredAnswers:
    """Encodes them, and keeps up to FORMS_MAX forms; a node's clients use a few for each topic."""

    def __init__(self) -> None:
        self._forms: dict[tuple[int, str, bytes], tuple[bytes, bytes]] = {}

    def encode(
        self, version: int, name: str, topic_id: bytes, index: int, result: ProducePartitionResult
    ) -> bytes:
        """What the generated encoder makes of a ProduceResponse without throttle, whose one
        partition has no error."""
        form = self._forms.get((version, name, topic_id))
        if form is None:
            form = self._add(version, name, topic_id)
        _, _, base_offset, append_time_ms, log_start_offset, _ = result
        if version < LOG_START_FROM:
            numbers = _NUMBERS_WITHOUT_START.pack(index, 0, base_offset, append_time_ms)
        else:
            numbers = _NUMBERS.pack(index, 0, base_offset, append_time_ms, log_start_offset)
        return form[0] + numbers + form[1]

    def _add(self, version: int, name: str, topic_id: bytes) -> tuple[bytes, bytes]:
        index, error_code, base_offset, append_time_ms, log_start_offset = _NO_TEXT
        part = PartitionProduceResponse(
            index=index,
            error_code=error_code,
            base_offset=base_offset,
            log_append_time_ms=append_time_ms,
            log_start_offset=log_start_offset,
        )
        topic = TopicProduceResponse(name=name, topic_id=topic_id, partition_responses=[part])
        pieces = response_codec(ApiKey.PRODUCE).encode(ProduceResponse(responses=[topic]), version)
        if version < LOG_START_FROM:
            numbers = _NUMBERS_WITHOUT_START.pack(*_NO_TEXT[:-1])
        else:
            numbers = _NUMBERS.pack(*_NO_TEXT)
        before, found, after = b"".join(pieces).partition(numbers)
        assert found
        if len(self._forms) >= FORMS_MAX:
            self._forms.clear()
        self._forms[version, name, topic_id] = before, after
        return before, after
