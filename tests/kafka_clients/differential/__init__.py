"""The same calls to a real Kafka and to a node: offsets, errors and visible bytes have to agree.

`sequence` makes seeded calls (`calls`), runs each on both sides (`side`), and compares what they
answer, but for what `known` names. `python -m tests.kafka_clients.differential` runs many.
"""
