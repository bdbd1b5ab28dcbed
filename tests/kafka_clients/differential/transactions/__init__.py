"""The same transactions on a real Kafka and on a node: offsets, errors, aborted lists, stable ends.

`sequence` makes seeded calls (`calls`) of several producers that share partitions. Producer ids
differ between brokers, so calls name producers by the order in which their ids appeared (`side`).
`python -m tests.kafka_clients.differential.transactions` runs many.
"""
