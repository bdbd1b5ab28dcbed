"""Whether bytes are the answer of an API's version: by our decoder, and, for some, by kio."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

from kio.index import load_response_schema
from kio.serial import entity_reader
from kio.serial.errors import OutOfBoundValue

from streamlog.kafka.protocol.apis import APIS, ApiKey, decode_response
from streamlog.kafka.protocol.headers import decode_response_header
from streamlog.kafka.protocol.primitives import Malformed
from tests.kafka_clients.wire import error_codes

SECOND_OPINION_EVERY = 40
SECOND_OPINION_BYTES_MAX = 64 * 1024


class Answers:
    """Reads answers, and counts what they were."""

    def __init__(self) -> None:
        self.read = 0
        self.read_twice = 0
        self.errors: Counter[tuple[str, int]] = Counter()
        """Of those that were read twice: API and error code."""

    def wrong(self, key: int, version: int, answer: memoryview) -> str | None:
        """What is wrong with an answer without its size; None: nothing."""
        api = APIS[ApiKey(key)]
        # What a node does not know it answers in the first version.
        read_as = version if version <= api.last else 0
        try:
            _, at = decode_response_header(api, read_as, answer)
            message = decode_response(api.key, read_as, answer, at)
        except Malformed as error:
            return f"{api.name} v{version}: {error.message}"
        self.read += 1
        if self.read % SECOND_OPINION_EVERY or len(answer) > SECOND_OPINION_BYTES_MAX:
            return None
        self.read_twice += 1
        for code in set(error_codes(message)) or {0}:
            self.errors[api.name, code] += 1
        return _kio_differs(key, read_as, bytes(answer[at:]))


def _kio_differs(key: int, version: int, body: bytes) -> str | None:
    try:
        _, size = _kio_reader(key, version)(body, 0)
    except OutOfBoundValue as error:
        # Kafka describes a transaction that has not begun by the start time -1, which kio has not.
        if "negative timestamp" in str(error):
            return None
        return f"{ApiKey(key).name} v{version}: kio does not read it: {error!r}"
    except Exception as error:  # noqa: BLE001 - whatever it raises, it does not read the answer
        return f"{ApiKey(key).name} v{version}: kio does not read it: {error!r}"
    return None if size == len(body) else f"{ApiKey(key).name} v{version}: kio reads {size} bytes"


@cache
def _kio_reader(key: int, version: int) -> Any:
    return entity_reader(load_response_schema(key, version))
