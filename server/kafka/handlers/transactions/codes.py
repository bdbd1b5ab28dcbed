"""Error codes of the APIs that a transaction coordinator answers.

Clients know few of them: at any other code they give the transaction, or the producer, up. So an
error that passes by itself becomes one of those after which every client asks again.
Source: TransactionStateManager.appendTransactionToLog; what Java, librdkafka, aiokafka and franz-go
ask again after.
"""

from __future__ import annotations

from streamlog.errors import (
    ConcurrentTransactions,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    NotCoordinator,
    OutcomeUnknown,
    StreamlogError,
    Unauthorized,
)
from streamlog.kafka.protocol.errors import KafkaError, code_of

_KNOWN = (
    ConcurrentTransactions,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    NotCoordinator,
)


def coordinator_code(error: StreamlogError) -> KafkaError:
    """COORDINATOR_LOAD_IN_PROGRESS for what passes: clients wait, and ask the same node again.

    An unknown outcome is no other case: the same call again finds what the first one did.
    """
    if isinstance(error, _KNOWN):
        return code_of(error)
    if isinstance(error, Unauthorized):
        return KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if error.is_retryable or isinstance(error, OutcomeUnknown):
        return KafkaError.COORDINATOR_LOAD_IN_PROGRESS
    code = code_of(error)
    # The coordinator's log has another owner.
    return KafkaError.NOT_COORDINATOR if code is KafkaError.NOT_LEADER_OR_FOLLOWER else code


def fenced_code(error: StreamlogError, version: int, knows_from: int) -> KafkaError:
    """As `coordinator_code`; clients below version `knows_from` do not know PRODUCER_FENCED."""
    code = coordinator_code(error)
    if code is KafkaError.PRODUCER_FENCED and version < knows_from:
        return KafkaError.INVALID_PRODUCER_EPOCH
    return code
