"""What is damaged: requests that clients sent, and random ones of every version.

A recorded request names topics by name and, in newer versions, by an id that was true then.
`Corpus.of_topics` writes the ids of topics of the same names that exist now in their place.
"""

from __future__ import annotations

import gzip
import json
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streamlog.kafka.protocol.apis import APIS, ApiKey, request_codec
from streamlog.kafka.protocol.headers import encode_request_header
from tests.fuzz.frames.fields import Place, places
from tests.kafka.shapes import Shape, every_shape, random_message
from tests.kafka_clients.wire import request_header

RECORDED = Path(__file__).parent / "recorded.jsonl.gz"
RANDOM = "random"
"""In place of a client's name: requests of every version from the shapes of messages."""
WEIGHTS = {
    int(api): weight
    for api, weight in {
        ApiKey.PRODUCE: 8,
        ApiKey.FETCH: 8,
        ApiKey.LIST_OFFSETS: 4,
        ApiKey.METADATA: 2,
        ApiKey.API_VERSIONS: 2,
        ApiKey.OFFSET_FOR_LEADER_EPOCH: 2,
        ApiKey.INIT_PRODUCER_ID: 2,
    }.items()
}
RANDOM_BYTES_MAX = 600
UUID_BYTES = 16


@dataclass(frozen=True, slots=True)
class Sample:
    """A request without its size, and where its fields lie."""

    client: str
    api: int
    version: int
    frame: bytes
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class Recorded:
    topics: Mapping[str, int]
    """How many partitions each had when the recording ended."""
    ids: Mapping[str, bytes]
    frames: Sequence[tuple[str, bytes]]
    """By client."""


def recorded() -> Recorded:
    lines = [json.loads(line) for line in gzip.decompress(RECORDED.read_bytes()).splitlines()]
    topics = [line for line in lines if "topic" in line]
    return Recorded(
        {line["topic"]: line["partitions"] for line in topics},
        {line["topic"]: bytes.fromhex(line["id"]) for line in topics},
        [(line["client"], bytes.fromhex(line["frame"])) for line in lines if "frame" in line],
    )


class Corpus:
    """Samples, and the bytes of their fields by kind, for topics with the given ids."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self.samples = samples
        by_kind: dict[str, dict[bytes, None]] = defaultdict(dict)  # In an order that stays.
        by_client: dict[str, dict[int, list[Sample]]] = defaultdict(lambda: defaultdict(list))
        for sample in samples:
            by_client[sample.client][sample.api].append(sample)
            for place in sample.places:
                by_kind[place.kind][sample.frame[place.start : place.end]] = None
        self.by_kind = {kind: list(values) for kind, values in by_kind.items()}
        self.by_client = [
            [by_api[api] for api in sorted(by_api) for _ in range(WEIGHTS.get(api, 1))]
            for _, by_api in sorted(by_client.items())
        ]
        """Every client's samples, by API; those that clients ask most are there several times."""

    @classmethod
    def of_topics(cls, found: Recorded, ids: Mapping[str, bytes], seed: int) -> Corpus:
        now = {old: ids[name] for name, old in found.ids.items()}
        frames = [(client, _with_ids(frame, now)) for client, frame in found.frames]
        frames += [(RANDOM, frame) for frame in random_requests(sorted(ids.items()), seed)]
        return cls([_sample(client, frame) for client, frame in frames])


def _with_ids(frame: bytes, now: Mapping[bytes, bytes]) -> bytes:
    for old, new in now.items():
        frame = frame.replace(old, new)
    return frame


def _sample(client: str, frame: bytes) -> Sample:
    header = request_header(frame)
    shape = _request_shapes()[header.api]
    # A client that asks for the versions of a node does so in its own newest one.
    is_known = header.version <= shape.last
    found = tuple(places(shape, header.version, frame)) if is_known else ()
    return Sample(client, header.api, header.version, frame, found)


def _request_shapes() -> dict[int, Shape]:
    return {int(shape.key): shape for shape in every_shape() if shape.is_request}


def random_requests(topics: Sequence[tuple[str, bytes]], seed: int) -> list[bytes]:
    """One request of every API and version."""
    rng = random.Random(seed)

    def choose(field: dict[str, Any], rng: random.Random) -> Any:
        name = str(field.get("name", ""))
        if field.get("type") == "uuid":
            return rng.choice(topics)[1]
        if field.get("type") == "string" and name in ("topic", "name", "topic_names"):
            return rng.choice(topics)[0]
        if name in ("max_wait_ms", "timeout_ms"):
            return rng.choice((0, 1, 10))
        if name == "acks":
            return rng.choice((1, -1, 0))
        if "partition" in name and field.get("type") == "int32":
            return rng.choice((0, 0, 1))
        return None

    frames = []
    for shape in _request_shapes().values():
        for version in shape.versions:
            body = bytes(RANDOM_BYTES_MAX + 1)
            while len(body) > RANDOM_BYTES_MAX:
                message = random_message(shape, version, rng, choose)
                body = b"".join(request_codec(shape.key).encode(message, version))
            header = encode_request_header(APIS[ApiKey(shape.key)], version, 0, "random")
            frames.append(header + body)
    return frames
