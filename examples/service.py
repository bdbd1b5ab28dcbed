"""A client app of a node: one record in, one record out. Start `streamlog dev` first."""

from streamlog.client import Consumer, Producer

with Producer("127.0.0.1:9644") as producer:
    sent = producer.send("greetings", b"hello", key=b"k")
    print(sent.result().offset)

with Consumer("127.0.0.1:9644", auto_offset_reset="earliest") as consumer:
    consumer.subscribe(["greetings"])
    for record in consumer:
        print(record.offset, record.value)
        break
