"""`kill -9` of the broker under idempotent producers and a consumer of Kafka's own.

Programs in each client's language write numbered records (`programs/numbered`) while the broker is
killed at random moments and started again. In the end all that is stored is held against what the
writers were told: `history.py` says what may be wrong. `python -m tests.kafka_clients.kills` kills
often, a node or, for comparison, a real Kafka; `test_kills.py` a few times.
"""
