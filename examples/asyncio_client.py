"""One task produces while another consumes, in one event loop; a node must be running.

streamlog dev &
python examples/asyncio_client.py 127.0.0.1:9644
"""

from __future__ import annotations

import asyncio
import sys

from streamlog.client.aio import Admin, Consumer, Producer
from streamlog.errors import TopicAlreadyExists

TOPIC = "example-ticks"
COUNT = 500


async def produce(server: str) -> int:
    """Returns the offset of the first record."""
    async with Producer(server, linger_ms=2) as producer:
        sent = [await producer.send(TOPIC, b"tick %d" % number) for number in range(COUNT)]
        metadata = [await delivery for delivery in sent]
        return metadata[0].offset


async def consume(server: str, start: int) -> None:
    async with Consumer(server) as consumer:
        await consumer.assign([(TOPIC, 0)])
        await consumer.seek(TOPIC, 0, start)
        read = 0
        async for record in consumer:
            read += 1
            if read == COUNT:
                print(f"read {read} records, the last is {record.value!r} at {record.offset}")
                return


async def main(server: str) -> None:
    async with Admin(server) as admin:
        try:
            await admin.create_topic(TOPIC, partitions=1)
        except TopicAlreadyExists:
            print(f"{TOPIC} is there already")
    async with Consumer(server) as consumer:
        end = (await consumer.end_offsets([(TOPIC, 0)]))[TOPIC, 0]
    first, _ = await asyncio.gather(produce(server), consume(server, end))
    print(f"the first record is at {first}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9644"))
