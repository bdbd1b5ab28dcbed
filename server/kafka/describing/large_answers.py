"""Answers that would hold the event loop for milliseconds while they are encoded."""

from __future__ import annotations

from streamlog.kafka.protocol.apis import ApiKey, response_codec
from streamlog.runtime.offload import Lane, Offload
from streamlog.server.kafka.call import Encoded, KafkaCall, Message

ELEMENTS_MAX = 1000
"""Elements of a response that are encoded on the loop, in about 1 ms."""


async def encoded(
    call: KafkaCall, response: Message, elements: int, offload: Offload
) -> Message | Encoded:
    """The response, encoded off the loop where it has many `elements`."""
    if elements <= ELEMENTS_MAX:
        return response
    encode = response_codec(ApiKey(call.api)).encode
    return Encoded(await offload.run(Lane.CPU, encode, response, call.version))
