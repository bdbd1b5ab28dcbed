"""Errors that only Spark's part has."""

from __future__ import annotations

from streamlog.errors import Fenced, StreamlogError


class DataLost(StreamlogError):
    """Records that were asked for are gone; failOnDataLoss=false goes on without them."""


class EpochPassed(Fenced):
    """The writer has committed a later epoch: the checkpoint is an older or another one.

    Fields: `writer_id`, `epoch`, `last_epoch`.
    """
