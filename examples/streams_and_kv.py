"""Appends to a stream below topics and keeps its id under a name; a node must be running.

streamlog dev &
python examples/streams_and_kv.py 127.0.0.1:9644
"""

from __future__ import annotations

import sys

from streamlog.client import KV, Append, Streams
from streamlog.errors import OffsetConflict


def main(server: str) -> None:
    with Streams(server) as streams, KV(server) as names:
        created = streams.create(tags={"for": "example"})
        names.put(b"example-stream", b"%d" % created.stream_id)

        value = names.get(b"example-stream")
        if value is None:
            raise SystemExit("the name is gone")
        stream_id = int(value.data)
        first = streams.append(stream_id, b"one")
        second = streams.append(stream_id, b"two", expected_next_offset=first.end_offset)
        try:
            streams.append(stream_id, b"late", expected_next_offset=first.end_offset)
        except OffsetConflict as conflict:
            print(f"refused: the next offset is {conflict.actual}")

        # Pipelined: up to 32 are under way; results come in order.
        many = [Append(b"%d" % number, record_count=10) for number in range(100)]
        *_, last = streams.append_many(stream_id, many)
        print(f"offsets {second.base_offset} to {last.end_offset - 1}")
        batches = list(streams.read(stream_id, 0, end_offset=last.end_offset))
        print(f"{len(batches)} batches, the last holds {batches[-1].payload!r}")

        streams.delete(stream_id)
        names.delete(b"example-stream")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9644")
