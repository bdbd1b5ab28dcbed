"""Errors of the Spark integration alone."""

from __future__ import annotations

from streamlog.errors import Fenced, StreamlogError


class DataLost(StreamlogError):
    """Requested records were deleted; failOnDataLoss=false goes on without them."""


class EpochPassed(Fenced):
    """The writer has committed a later epoch: the checkpoint is an older one, or another query's.

    Fields: `writer_id`, `epoch`, `last_epoch`.
    """


class SparkFailed(StreamlogError):
    """Spark did not start, or refused what it was asked for."""

    has_no_side_effects = False
