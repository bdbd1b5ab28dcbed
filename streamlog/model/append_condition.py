"""AppendCondition: what a log has to be like when an append is sequenced."""

from __future__ import annotations

from typing import NamedTuple

from streamlog.errors import Conflict, OffsetConflict, TokenMismatch
from streamlog.model.fencing_token import check_token, shown_token
from streamlog.model.numbers import OFFSET_MAX, checked_int
from streamlog.model.partition import TopicPartition


class AppendCondition(NamedTuple):
    """Both parts are tested at the place that the append would get; None is not tested.

    `expected_next_offset`: the log's end. `fencing_token`: the log's token (≤ 64 bytes); b"" is
    that of a log without one.
    """

    expected_next_offset: int | None = None
    fencing_token: bytes | None = None

    def check(self) -> None:
        """Errors: Invalid for values that no log can have."""
        if self.expected_next_offset is not None:
            checked_int("expected_next_offset", self.expected_next_offset, 0, OFFSET_MAX)
        if self.fencing_token is not None:
            check_token(self.fencing_token)

    def refusal(self, partition: TopicPartition, end_offset: int, token: bytes) -> Conflict | None:
        """Why a log with this end and token refuses; None where it does not.

        The token comes first: a writer that was shut out learns so, whatever the log's end is.
        """
        if self.fencing_token is not None and self.fencing_token != token:
            expected, actual = shown_token(self.fencing_token), shown_token(token)
            return TokenMismatch(
                f"the fencing token of {partition} is {actual!r}, not {expected!r}; nothing was "
                "changed: another writer may have taken over",
                expected=expected,
                actual=actual,
            )
        offset = self.expected_next_offset
        if offset is not None and offset != end_offset:
            return OffsetConflict(
                f"the next offset of {partition} is {end_offset}, not {offset}; nothing was "
                "stored: read what came before, then decide anew",
                expected=offset,
                actual=end_offset,
            )
        return None


ANY = AppendCondition()
"""Nothing is tested."""
