"""Records of the transaction log as Kafka 4.1.1 writes them."""

from __future__ import annotations

from streamlog.coordinator.api import TransactionState
from streamlog.coordinator.transactions.state import Transaction
from streamlog.model.partition import TopicPartition

PARTITIONS = frozenset({TopicPartition("a", 0), TopicPartition("a", 3), TopicPartition("b", 1)})
BEGUN = (TransactionState.ONGOING, PARTITIONS, 1500)
PREPARED = (TransactionState.PREPARE_COMMIT, PARTITIONS, 1500)
COMPLETED = (TransactionState.COMPLETE_COMMIT, frozenset[TopicPartition](), 1500)
KEY = "0000000574782dc3bc"
WRITTEN_BY_KAFKA = {
    "0001000000000000000700000000ea60000000000000000003e8ffffffffffffffff00": Transaction(
        "tx-ü", 7, 0, 60_000, 1000
    ),
    "0001000000000000000700050000ea6001030261030000000000000003000262020000000100000000000000"
    "07d000000000000005dc00": Transaction("tx-ü", 7, 5, 60_000, 2000, *BEGUN),
    "0001000000000000000700060000ea6002030261030000000000000003000262020000000100000000000000"
    "0bb800000000000005dc0102020002": Transaction(
        "tx-ü", 7, 6, 60_000, 3000, *PREPARED, client_version=2
    ),
    "0001000000000000000700060000ea6004010000000000000fa000000000000005dc0102020002": Transaction(
        "tx-ü", 7, 6, 60_000, 4000, *COMPLETED, client_version=2
    ),
}
"""As Kafka 4.1.1's TransactionLog writes them (`tests/kafka_clients/more/test_transaction_log.py`
asks it)."""
