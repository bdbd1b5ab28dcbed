"""The write-ahead log of `wal=disk`."""
