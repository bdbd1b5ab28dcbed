"""`kill -9` of broker and clients under transactions that copy one topic into another, and on.

Copiers (`programs/copying`) read a partition each and write to all partitions of the next topic by
transactions, at random aborted. Whatever is killed meanwhile, in the end each record of a topic was
copied once, in order, and each transaction is whole or not to be seen: `checks.py` says what may be
wrong. `python -m tests.kafka_clients.kills.transactions` kills often; `test_kills.py` a few times.
"""
