"""Errors that only reading by Spark has."""

from __future__ import annotations

from streamlog.errors import StreamlogError


class DataLost(StreamlogError):
    """Records that were asked for are gone; failOnDataLoss=false goes on without them."""
