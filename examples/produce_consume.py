"""Sends keyed records to a topic and reads them back; a node must be running.

streamlog dev &
python examples/produce_consume.py 127.0.0.1:9644
"""

from __future__ import annotations

import sys

from streamlog.client import Admin, Consumer, Producer
from streamlog.errors import TopicAlreadyExists

TOPIC = "example-orders"


def main(server: str) -> None:
    with Admin(server) as admin:
        try:
            admin.create_topic(TOPIC, partitions=3)
        except TopicAlreadyExists:
            print(f"{TOPIC} is there already")

    with Producer(server) as producer:
        sent = [
            producer.send(TOPIC, b"order %d" % number, key=b"customer %d" % (number % 5))
            for number in range(1000)
        ]
        # send() does not wait; result() waits until the record is durable.
        metadata = [delivery.result() for delivery in sent]
        print(f"the last record is at {metadata[-1].partition}:{metadata[-1].offset}")

        # Many records at once are faster, and share one result.
        for run in producer.send_many(TOPIC, [b"order"] * 1000).result():
            print(f"{run.record_count} records from {run.partition}:{run.base_offset} on")

    with Consumer(server) as consumer:
        partitions = [(TOPIC, partition) for partition in range(3)]
        ends = consumer.end_offsets(partitions)
        consumer.assign(partitions)
        read = 0
        while any(consumer.position(*tp) < end for tp, end in ends.items()):
            for record in consumer.poll(1.0):
                read += 1
                if record.value == b"order 0":
                    print(f"{record.key!r} is at {record.partition}:{record.offset}")
        print(f"read {read} records")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9644")
