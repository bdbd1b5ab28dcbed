"""Rows like log lines: all different, and compressed by zstd to about a third."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.spark.kafka import PARTITIONS

TEXT_BYTES = 16 << 20


def write_seed(folder: Path, record_bytes: int, count: int) -> str:
    """The path of a folder of Parquet files, one per partition, with a column `value`."""
    folder.mkdir(parents=True)
    chosen = np.random.default_rng(record_bytes)
    text = _text()
    for number in range(PARTITIONS):
        rows = count // PARTITIONS
        places = np.cumsum(np.full(rows + 1, record_bytes)) - record_bytes
        starts = chosen.integers(0, len(text) - record_bytes, rows)
        data = np.lib.stride_tricks.sliding_window_view(text, record_bytes)[starts]
        offsets = pa.py_buffer(places.astype(np.int32))
        values = pa.Array.from_buffers(pa.binary(), rows, [None, offsets, pa.py_buffer(data)])
        table = pa.table({"value": values})
        path = folder / f"part-{number}.parquet"
        pq.write_table(table, path, compression="none", use_dictionary=False)
    return str(folder)


def _text() -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    chosen = random.Random(7)
    words = [b"%x" % chosen.getrandbits(chosen.randrange(8, 40)) for _ in range(4000)]
    joined = b" ".join(chosen.choices(words, k=TEXT_BYTES // 6))
    return np.frombuffer(joined, np.uint8)
