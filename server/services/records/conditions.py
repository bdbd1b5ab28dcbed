"""Whether a condition may be put on an append to this log."""

from __future__ import annotations

from streamlog.errors import Invalid
from streamlog.log.api.abstract_log import AbstractLog
from streamlog.model.append_condition import AppendCondition


def check_condition(log: AbstractLog, condition: AppendCondition, *, has_answer: bool) -> None:
    """Errors: Invalid."""
    condition.check()
    if not has_answer:
        raise Invalid(
            "an append with expected_next_offset or fencing_token needs an answer: nobody would "
            "hear that it was refused; send it with ACKS_ALL"
        )
    if not log.tests_conditions:
        raise Invalid(f"{log.topic_partition} tests no conditions: its kind of log cannot")
