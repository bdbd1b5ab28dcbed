from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

producer = Producer({"bootstrap.servers": "127.0.0.1:9092"})
producer.produce("hellos", b"hello", partition=0)
producer.flush()

consumer = Consumer(
    {"bootstrap.servers": "127.0.0.1:9092", "group.id": "none", "enable.auto.commit": False}
)
consumer.assign([TopicPartition("hellos", 0, OFFSET_BEGINNING)])
message = consumer.poll(30)
print(message.offset(), message.value().decode())
consumer.close()
