"""Moves money between two topics: both sides of a transfer become visible, or neither does.

streamlog dev &
python examples/transactional_transfer.py 127.0.0.1:9644
"""

from streamlog.client import Consumer, Producer

with Producer("127.0.0.1:9644", transactional_id="transfers") as producer:
    with producer.transaction():
        producer.send("debits", b"alice 5")
        producer.send("credits", b"bob 5")

    try:
        with producer.transaction():
            producer.send("debits", b"alice 1000")
            raise ValueError("alice has less than 1000")
    except ValueError as error:
        print(f"nothing of it is visible: {error}")

with Consumer("127.0.0.1:9644", isolation_level="read_committed") as consumer:
    consumer.subscribe(["debits", "credits"])
    for count, record in enumerate(consumer, start=1):
        print(f"{record.topic}: {record.value!r}")
        if count == 2:
            break
