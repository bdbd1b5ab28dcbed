"""Splits record batches of the source, which may hold several partitions."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa


def runs(batch: pa.RecordBatch) -> Iterator[tuple[int, int]]:
    """(start, end) of each run of rows of one partition. The source joins small batches."""
    topics = batch.column("topic").dictionary_encode().indices.to_numpy()
    partitions = batch.column("partition").to_numpy()
    changes: Any = np.flatnonzero((np.diff(topics) != 0) | (np.diff(partitions) != 0)) + 1
    bounds = [0, *changes.tolist(), batch.num_rows]
    yield from pairwise(bounds)
