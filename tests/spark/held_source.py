"""The data source with a driver that waits before its commit, to be let go or killed.

The option `hold` is a folder: the commit makes the file `held` there and waits for the file `go`.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter

from streamlog.spark.sink.sink import BatchWriter, StreamWriter, batch_writer, stream_writer
from streamlog.spark.source import StreamlogDataSource


class HeldSource(StreamlogDataSource):
    @classmethod
    def name(cls) -> str:
        return "held"

    def writer(self, schema: Any, overwrite: bool) -> DataSourceWriter:
        hold, options = _hold(self.options)
        return HeldBatch(batch_writer(options, schema, overwrite)._sink, hold)

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:
        hold, options = _hold(self.options)
        return HeldStream(stream_writer(options, schema)._sink, hold)


class HeldBatch(BatchWriter):
    def __init__(self, sink: Any, hold: str) -> None:
        super().__init__(sink)
        self._hold = hold

    def commit(self, messages: Any) -> None:
        _wait(self._hold)
        super().commit(messages)


class HeldStream(StreamWriter):
    def __init__(self, sink: Any, hold: str) -> None:
        super().__init__(sink)
        self._hold = hold

    def commit(self, messages: Any, batchId: int) -> None:
        _wait(self._hold)
        super().commit(messages, batchId)


def _hold(options: Any) -> tuple[str, dict[str, str]]:
    named = {name.lower(): value for name, value in options.items()}
    return named.pop("hold"), named


def _wait(folder: str) -> None:
    (Path(folder) / "held").touch()
    while not (Path(folder) / "go").exists():
        time.sleep(0.02)
