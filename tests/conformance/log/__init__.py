"""Kafka's tests of a log with producers and transactions: the behaviours, and where each is tested.

`kafka_tests.toml` has every case. The classes that a kind of log inherits are public:
`streamlog.testing`.
"""
