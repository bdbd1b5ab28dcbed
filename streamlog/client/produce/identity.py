"""A producer's id and epoch, and when to ask the server for them. Pure."""

from __future__ import annotations

from enum import Enum

from streamlog.client.producer_identity import NO_IDENTITY, ProducerIdentity
from streamlog.client.settings import ProducerSettings, backoff_s
from streamlog.errors import Invalid, StreamlogError, Unauthorized

NEVER = float("inf")


class IdentityState(Enum):
    """MISSING → ASKING → KNOWN → (a partition needs a newer epoch) MISSING."""

    MISSING = "missing"
    ASKING = "asking"
    KNOWN = "known"


class IdentityRequests:
    """The current identity, and the InitProducerId calls that renew it."""

    def __init__(self, settings: ProducerSettings) -> None:
        self._settings = settings
        self.current = NO_IDENTITY
        self.state = IdentityState.MISSING
        self.refusal: StreamlogError | None = None
        """Why the last request failed; None once one succeeds."""
        self._failures = 0
        self._retry_at = 0.0

    @property
    def is_known(self) -> bool:
        return self.state is IdentityState.KNOWN

    def request(self, now: float) -> ProducerIdentity | None:
        """The identity to send with InitProducerId (NO_IDENTITY: a new one); None: not now."""
        if self.state is not IdentityState.MISSING or now < self._retry_at:
            return None
        self.state = IdentityState.ASKING
        return self.current

    def wake_at(self) -> float:
        """When the next request is due."""
        return self._retry_at if self.state is IdentityState.MISSING else NEVER

    def renew(self) -> None:
        """A partition needs a newer epoch."""
        self.state = IdentityState.MISSING

    def granted(self, identity: ProducerIdentity) -> None:
        self.state = IdentityState.KNOWN
        self._failures = 0
        self.refusal = None
        self.current = identity

    def refused(self, error: StreamlogError, now: float) -> bool:
        """Asks again later. True: batches that were never sent have to fail.

        Asks for a new id only where the node does not know the old one: a new id would not fence
        attempts in flight under the old one.
        """
        self.state = IdentityState.MISSING
        self._failures += 1
        self.refusal = error
        self._retry_at = now + backoff_s(
            self._failures, self._settings.retry_backoff_ms, self._settings.retry_backoff_max_ms
        )
        if error.is_retryable:
            return False
        if self.current == NO_IDENTITY or isinstance(error, Unauthorized):
            return True
        if type(error) is Invalid:
            # Not its subclasses: gRPC's own RESOURCE_EXHAUSTED is one, and is not about the id.
            self.current = NO_IDENTITY
        return False
